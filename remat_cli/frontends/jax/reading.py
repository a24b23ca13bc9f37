"""Reads the payloads and metadata of a captured step, see :mod:`remat_cli.frontends.jax.document`.

A document may come from a stranger, so reading is strict: everything that remat would not write is refused, with its
place.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Any

from remat_cli.errors import UsageError
from remat_cli.frontends.jax.document import (
    FRONTEND,
    ITEM_BYTES,
    VERSION,
    ArraySpec,
    Constant,
    Data,
    Input,
    Operation,
    Place,
    PlaceSpec,
    Result,
    Step,
    Value,
)
from remat_cli.graph.model import Graph
from remat_cli.graph.quoting import quote
from remat_cli.printable import printable

_KINDS = ("argument", "captured")
_RESULTS = ("loss", "auxiliary", "gradient")
_LARGEST = (1 << 63) - 1
_LARGEST_FUNCTION = 1 << 26
"""Bytes of the largest function that is read: a few bytes of compressed zeros must not fill the memory."""


def require_jax_graph(graph: Graph) -> None:
    """Check that this frontend made a graph.

    Raises:
        UsageError: If it did not, or another version of remat made it.
    """
    metadata = graph.metadata
    if not isinstance(metadata, dict) or metadata.get("frontend") != FRONTEND:
        raise UsageError(
            f"the graph {printable(graph.name)} was not made by the JAX frontend, so there is nothing to run",
            hint="make it with remat export jax:FILE.py:NAME",
        )
    if metadata.get("version") != VERSION:
        raise UsageError(
            f"the graph {printable(graph.name)} was made for another version of remat", hint="export it again"
        )


def damaged(graph: Graph, at: str, message: str) -> UsageError:
    """The error for a payload or metadata that this frontend does not write; ``at`` is the place."""
    return UsageError(
        f"the graph {printable(graph.name)} holds a payload that remat did not write: {printable(at)}: {message}",
        hint="export it again",
    )


def read_step(graph: Graph) -> Step:
    """The contents of the payloads and the metadata of ``graph``.

    Raises:
        UsageError: If they hold anything that this frontend does not write, with its place.
    """
    require_jax_graph(graph)
    reader, metadata = _Reader(graph), graph.metadata
    places = tuple(reader.place(item, at) for item, at in reader.items(metadata.get("places"), "metadata.places"))
    constants = tuple(reader.data(i, at) for i, at in reader.items(metadata.get("constants"), "metadata.constants"))
    functions = tuple(reader.function(i, at) for i, at in reader.items(metadata.get("functions"), "metadata.functions"))
    reader.places, reader.constants, reader.functions = len(places), len(constants), len(functions)
    operations = tuple(reader.operation(number) for number in range(len(graph.nodes)))
    made = reader.items(metadata.get("results"), "metadata.results")
    results = tuple(reader.result(item, at) for item, at in made)
    step = Step(
        graph=graph,
        operations=operations,
        functions=functions,
        places=places,
        constants=constants,
        results=results,
        device=reader.text(metadata.get("device"), "metadata.device", ("cpu", "cuda")),
        jax=reader.text(metadata.get("jax"), "metadata.jax"),
    )
    for result, (_, at) in zip(results, made, strict=True):
        reader.require_kept(step, result, at)
    return step


class _Reader:
    """Reads the documents of one graph. In all methods, ``at`` is the place of the value, for messages."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values = {graph.value_name(value): value for value in range(len(graph.size))}
        self.places = self.constants = self.functions = 0

    def wrong(self, at: str, message: str) -> UsageError:
        return damaged(self.graph, at, message)

    def items(self, value: Any, at: str) -> list[tuple[Any, str]]:
        """The items of a list, each with its place."""
        if not isinstance(value, list):
            raise self.wrong(at, "it is not a list")
        return [(item, f"{at}[{k}]") for k, item in enumerate(value)]

    def fields(self, value: Any, at: str, needed: tuple[str, ...], others: tuple[str, ...] = ()) -> dict[str, Any]:
        """An object with all fields of ``needed``, and otherwise only fields of ``others``."""
        if not isinstance(value, dict):
            raise self.wrong(at, "it is not an object")
        for name in needed:
            if name not in value:
                raise self.wrong(at, f'it has no "{name}"')
        for name in value:
            if name not in needed and name not in others:
                raise self.wrong(at, f"it has an unknown field {quote(name)}")
        return value

    def number(self, value: Any, at: str, below: int | None = None) -> int:
        """A whole number that is not negative."""
        if type(value) is not int or value < 0:
            raise self.wrong(at, f"{quote(value)} is not a whole number from 0 on")
        if value > _LARGEST:
            raise self.wrong(at, f"{quote(value)} is more than an array can have")
        if below is not None and value >= below:
            raise self.wrong(at, f"there is no number {value}: there are {below}")
        return value

    def text(self, value: Any, at: str, known: tuple[str, ...] = ()) -> str:
        if not isinstance(value, str) or (known and value not in known):
            raise self.wrong(at, f"{quote(value)} is not {' or '.join(known) if known else 'text'}")
        return value

    def spec(self, value: dict[str, Any], at: str) -> ArraySpec:
        if self.text(value["dtype"], f"{at}.dtype") not in ITEM_BYTES:
            raise self.wrong(f"{at}.dtype", f"{quote(value['dtype'])} is not a type that graphs have")
        shape = tuple(self.number(item, place) for item, place in self.items(value["shape"], f"{at}.shape"))
        key = self.text(value["key"], f"{at}.key") if "key" in value else None
        spec = ArraySpec(value["dtype"], shape, key)
        if spec.bytes > _LARGEST:
            raise self.wrong(at, "it has more bytes than an array can have")
        return spec

    def place(self, value: Any, at: str) -> PlaceSpec:
        found = self.fields(value, at, ("kind", "name", "dtype", "shape"), ("key", "below"))
        return PlaceSpec(
            kind=self.text(found["kind"], f"{at}.kind", _KINDS),
            name=self.text(found["name"], f"{at}.name"),
            spec=self.spec(found, at),
            below=self.number(found["below"], f"{at}.below") if "below" in found else None,
        )

    def bytes_in(self, value: Any, at: str) -> bytes:
        """The bytes that a text in base64 stands for."""
        try:
            return base64.b64decode(self.text(value, at), validate=True)
        except (binascii.Error, ValueError) as error:
            raise self.wrong(at, str(error)) from None

    def data(self, value: Any, at: str) -> Data:
        found = self.fields(value, at, ("dtype", "shape", "data"), ("key",))
        spec, data = self.spec(found, at), self.bytes_in(found["data"], f"{at}.data")
        if spec.bytes != len(data):
            raise self.wrong(f"{at}.data", f"it has another size, {len(data)} bytes, than its shape")
        return Data(spec, data)

    def function(self, value: Any, at: str) -> bytes:
        unpacker = zlib.decompressobj()
        try:
            found = unpacker.decompress(self.bytes_in(value, at), _LARGEST_FUNCTION)
        except zlib.error as error:
            raise self.wrong(at, str(error)) from None
        if not unpacker.eof:
            raise self.wrong(at, "it ends early, or is longer than any function")
        return found

    def operation(self, number: int) -> Operation:
        node = self.graph.nodes[number]
        at = f"node {node.id}"
        found = self.fields(node.payload, at, ("function", "reads", "values"))
        values = tuple(
            self.spec(self.fields(value, place, ("dtype", "shape"), ("key",)), place)
            for value, place in self.items(found["values"], f"{at}: values")
        )
        if len(values) != len(node.outputs):
            raise self.wrong(at, f"it makes {len(node.outputs)} values, and tells of {len(values)}")
        reads = tuple(self.read(item, place, len(node.inputs)) for item, place in self.items(found["reads"], at))
        if {read.position for read in reads if isinstance(read, Input)} != set(range(len(node.inputs))):
            raise self.wrong(at, "its function does not read exactly what the node reads")
        return Operation(self.number(found["function"], f"{at}: function", self.functions), reads, values)

    def read(self, value: Any, at: str, inputs: int) -> Input | Place | Constant:
        """What a function reads."""
        if isinstance(value, dict) and set(value) == {"input"}:
            return Input(self.number(value["input"], at, inputs))
        return self.given(value, at)

    def given(self, value: Any, at: str) -> Place | Constant:
        """An array that is always there."""
        if isinstance(value, dict) and set(value) == {"place"}:
            return Place(self.number(value["place"], at, self.places))
        if isinstance(value, dict) and set(value) == {"constant"}:
            return Constant(self.number(value["constant"], at, self.constants))
        raise self.wrong(at, f"{quote(value)} is nothing that remat writes")

    def result(self, value: Any, at: str) -> Result:
        found = self.fields(value, at, ("kind", "name", "array", "dtype", "shape"), ("key",))
        array = found["array"]
        made: Value | Place | Constant
        if isinstance(array, dict) and set(array) == {"value"}:
            if not isinstance(array["value"], str) or array["value"] not in self.values:
                raise self.wrong(f"{at}.array", f"the graph has no value {quote(array['value'])}")
            made = Value(self.values[array["value"]])
        else:
            made = self.given(array, f"{at}.array")
        return Result(
            kind=self.text(found["kind"], f"{at}.kind", _RESULTS),
            name=self.text(found["name"], f"{at}.name"),
            array=made,
            spec=self.spec(found, at),
        )

    def require_kept(self, step: Step, result: Result, at: str) -> None:
        """Check that a result is there at the end, and is what it says."""
        match result.array:
            case Value(number):
                if number not in self.graph.outputs:
                    raise self.wrong(at, f"{quote(self.graph.value_name(number))} is not an output of the graph")
                spec = step.spec_of(number)
            case Place(number):
                spec = step.places[number].spec
            case Constant(number):
                spec = step.constants[number].spec
        if spec != result.spec:
            raise self.wrong(at, "it has another type or shape than what it is")
