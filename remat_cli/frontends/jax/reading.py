"""Reads the payloads and metadata of a captured step, see :mod:`remat_cli.frontends.jax.document`.

A document may come from a stranger, so reading is strict: everything that remat would not write is refused, with its
place.
"""

from __future__ import annotations

import zlib
from typing import Any

from remat_cli.frontends.captured.reading import Reader
from remat_cli.frontends.jax.document import (
    FRONTEND,
    ITEM_BYTES,
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

_KINDS = ("argument", "captured")
_RESULTS = ("loss", "auxiliary", "gradient")
_LARGEST_FUNCTION = 1 << 26
"""Bytes of the largest function that is read: a few bytes of compressed zeros must not fill the memory."""


def read_step(graph: Graph) -> Step:
    """The contents of the payloads and the metadata of ``graph``.

    Raises:
        UsageError: If they hold anything that this frontend does not write, with its place.
    """
    FRONTEND.require(graph)
    reader, metadata = _Reader(graph), graph.metadata
    places = tuple(reader.place(item, at) for item, at in reader.listed("places"))
    constants = tuple(reader.constant(i, at) for i, at in reader.listed("constants"))
    functions = tuple(reader.function(i, at) for i, at in reader.listed("functions"))
    reader.places, reader.constants, reader.functions = len(places), len(constants), len(functions)
    operations = tuple(reader.operation(number) for number in range(len(graph.nodes)))
    made = reader.listed("results")
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


class _Reader(Reader):
    """Reads the documents of one graph. In all methods, ``at`` is the place of the value, for messages."""

    item_bytes = ITEM_BYTES
    called = "an array"

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.functions = 0

    def spec(self, value: dict[str, Any], at: str) -> ArraySpec:
        key = self.text(value["key"], f"{at}.key") if "key" in value else None
        dtype, shape = self.dtype(value["dtype"], f"{at}.dtype"), self.numbers(value["shape"], f"{at}.shape")
        spec = ArraySpec(dtype, shape, key)
        self.require_size(spec.bytes, at)
        return spec

    def place(self, value: Any, at: str) -> PlaceSpec:
        found = self.fields(value, at, ("kind", "name", "dtype", "shape"), ("key", "below"))
        return PlaceSpec(
            kind=self.text(found["kind"], f"{at}.kind", _KINDS),
            name=self.text(found["name"], f"{at}.name"),
            spec=self.spec(found, at),
            below=self.limit(found, at),
        )

    def constant(self, value: Any, at: str) -> Data:
        found = self.fields(value, at, ("dtype", "shape", "data"), ("key",))
        spec = self.spec(found, at)
        return Data(spec, self.data(found["data"], at, spec.bytes))

    def function(self, value: Any, at: str) -> bytes:
        unpacker = zlib.decompressobj()
        try:
            found = unpacker.decompress(self.base64(value, at), _LARGEST_FUNCTION)
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
        self.require_made(at, len(node.outputs), len(values))
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
            made = Value(self.value_named(array["value"], f"{at}.array"))
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
                spec = step.spec_of(number)
            case Place(number):
                spec = step.places[number].spec
            case Constant(number):
                spec = step.constants[number].spec
        if spec != result.spec:
            raise self.wrong(at, "it has another type or shape than what it is")
