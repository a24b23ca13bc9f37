"""Reads the payloads and metadata of a captured step, see :mod:`remat_cli.frontends.torch.document`.

A document may come from a stranger, so reading is strict: everything that remat would not write is refused, with its
place.
"""

from __future__ import annotations

import base64
import binascii
import keyword
import math
from typing import Any

from remat_cli.errors import UsageError
from remat_cli.frontends.aten.program import TANGENTS
from remat_cli.frontends.torch.document import (
    FORMS,
    FRONTEND,
    ITEM_BYTES,
    NAMED,
    VERSION,
    Argument,
    Complex,
    Constant,
    Data,
    Float,
    Input,
    Named,
    Operation,
    Place,
    Placeholder,
    Result,
    Returned,
    Step,
    TensorSpec,
    Value,
    View,
    tensors_read,
)
from remat_cli.graph.model import Graph
from remat_cli.graph.quoting import quote
from remat_cli.printable import printable

_KINDS = ("parameter", "buffer", "input", "captured", "tangent")
_RESULTS = ("result", "update", "gradient", "dropped")
_DEEPEST = 190
"""Deepest nesting of brackets in an argument: Python compiles at most 200 levels, and a call adds some."""
_LARGEST = (1 << 63) - 1
"""PyTorch counts sizes and bytes in 64 bits with a sign."""


def require_torch_graph(graph: Graph) -> None:
    """Check that this frontend made a graph.

    Raises:
        UsageError: If it did not, or another version of remat made it.
    """
    metadata = graph.metadata
    if not isinstance(metadata, dict) or metadata.get("frontend") != FRONTEND:
        raise UsageError(
            f"the graph {printable(graph.name)} was not made by the PyTorch frontend, so there is nothing to run",
            hint="make it with remat export torch:FILE.py:NAME",
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


def read_padding(graph: Graph) -> int:
    """Bytes that profiling has added to the graph's fixed memory, because an allocator rounds sizes up; 0 before it.

    Raises:
        UsageError: If the metadata states anything else.
    """
    reader = _Reader(graph)
    profile = graph.metadata.get("profile")
    if profile is None:
        return 0
    if not isinstance(profile, dict):
        raise reader.wrong("metadata.profile", "it is not an object")
    padding = reader.number(profile.get("fixed_padding", 0), "metadata.profile.fixed_padding")
    if padding > graph.fixed_memory:
        raise reader.wrong("metadata.profile.fixed_padding", f"{padding} is more than the fixed memory")
    return padding


def read_origin(graph: Graph) -> tuple[str | None, str | None]:
    """Version of torch that a graph was exported with, and the kind of device; None where it does not say.

    Raises:
        UsageError: If the metadata states anything but text.
    """
    metadata = graph.metadata if isinstance(graph.metadata, dict) else {}
    for key in ("torch", "device"):
        if metadata.get(key) is not None:
            _Reader(graph).text(metadata[key], f"metadata.{key}")
    return metadata.get("torch"), metadata.get("device")


def read_step(graph: Graph) -> Step:
    """The contents of the payloads and the metadata of ``graph``.

    Raises:
        UsageError: If they hold anything that this frontend does not write, with its place.
    """
    metadata = graph.metadata if isinstance(graph.metadata, dict) else {}
    reader = _Reader(graph)
    given, data, made = (
        reader.items(metadata.get(key), f"metadata.{key}") for key in ("places", "constants", "results")
    )
    places = tuple(reader.placeholder(item, at) for item, at in given)
    constants = tuple(reader.data(item, at) for item, at in data)
    reader.places = sum(place.kind != "tangent" for place in places)
    reader.constants = len(constants)
    if any(place.kind == "tangent" for place in places[: reader.places]):
        raise reader.wrong("metadata.places", "tangents are not the last of them")
    operations = tuple(reader.operation(number) for number in range(len(graph.nodes)))
    reader.require_parts(operations)
    results = tuple(reader.result(item, at) for item, at in made)
    tangents, (_, device) = reader.tangents(operations, places), read_origin(graph)
    step = Step(graph, operations, places, constants, results, tangents, device)
    for k, result in enumerate(results):
        for tensor in tensors_read([result.tensor]):
            if isinstance(tensor, Value) and result.kind != "dropped":
                reader.require_kept(step, tensor, f"metadata.results[{k}].tensor")
    return step


class _Reader:
    """Reads the documents of one graph. In all methods, ``at`` is the place of the value, for messages."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values = {graph.value_name(value): value for value in range(len(graph.size))}
        self.places = self.constants = 0

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
            raise self.wrong(at, f"{quote(value)} is more than a tensor can have")
        if below is not None and value >= below:
            raise self.wrong(at, f"there is no number {value}: there are {below}")
        return value

    def text(self, value: Any, at: str, known: tuple[str, ...] = ()) -> str:
        if not isinstance(value, str) or (known and value not in known):
            raise self.wrong(at, f"{quote(value)} is not {' or '.join(known) if known else 'text'}")
        return value

    def numbers(self, value: Any, at: str) -> tuple[int, ...]:
        return tuple(self.number(item, place) for item, place in self.items(value, at))

    def spec(self, value: dict[str, Any], at: str) -> TensorSpec:
        shape = self.numbers(value["shape"], f"{at}.shape")
        stride = self.numbers(value["stride"], f"{at}.stride")
        if len(shape) != len(stride):
            raise self.wrong(at, f"it has {len(shape)} sizes and {len(stride)} strides")
        spec = TensorSpec(self.dtype(value["dtype"], f"{at}.dtype"), shape, stride)
        if spec.bytes > _LARGEST:
            raise self.wrong(at, "it has more bytes than a tensor can have")
        return spec

    def dtype(self, value: Any, at: str) -> str:
        if self.text(value, at) not in ITEM_BYTES:
            raise self.wrong(at, f"{quote(value)} is not a type that graphs have")
        return str(value)

    def placeholder(self, value: Any, at: str) -> Placeholder:
        found = self.fields(value, at, ("kind", "name", "dtype", "shape", "stride", "bytes"), ("below",))
        spec = self.spec(found, at)
        size = self.number(found["bytes"], f"{at}.bytes")
        if spec.bytes > size:
            raise self.wrong(f"{at}.bytes", f"its sizes and strides reach over {spec.bytes} bytes, and it has {size}")
        return Placeholder(
            kind=self.text(found["kind"], f"{at}.kind", _KINDS),
            name=self.text(found["name"], f"{at}.name"),
            spec=spec,
            storage_bytes=size,
            below=self.number(found["below"], f"{at}.below") if "below" in found else None,
        )

    def data(self, value: Any, at: str) -> Data:
        found = self.fields(value, at, ("dtype", "shape", "data"))
        try:
            data = base64.b64decode(self.text(found["data"], f"{at}.data"), validate=True)
        except (binascii.Error, ValueError) as error:
            raise self.wrong(f"{at}.data", str(error)) from None
        dtype, shape = self.dtype(found["dtype"], f"{at}.dtype"), self.numbers(found["shape"], f"{at}.shape")
        if math.prod(shape) * ITEM_BYTES[dtype] != len(data):
            raise self.wrong(f"{at}.data", f"it has another size, {len(data)} bytes, than its shape")
        return Data(dtype, shape, data)

    def result(self, value: Any, at: str) -> Result:
        found = self.fields(value, at, ("kind", "of", "tensor"))
        kind, of = self.text(found["kind"], f"{at}.kind", _RESULTS), found["of"]
        own = kind in {"result", "dropped"}
        if not own or not isinstance(of, str):
            of = self.number(of, f"{at}.of", None if own else self.places)
        return Result(kind, of, self.argument(found["tensor"], f"{at}.tensor", None))

    def operation(self, number: int) -> Operation:
        node = self.graph.nodes[number]
        at = f"node {node.id}"
        found = self.fields(node.payload, at, ("call", "args", "kwargs", "values"), ("random",))
        values = tuple(
            tuple(self.returned(tensor, place) for tensor, place in self.items(tensors, whole))
            for tensors, whole in self.items(found["values"], f"{at}: values")
        )
        if [bool(tensors) for tensors in values] != [True] * len(node.outputs):
            raise self.wrong(at, f"it makes {len(node.outputs)} values, and tells of {sum(map(bool, values))}")
        items = [tensor.item for tensors in values for tensor in tensors]
        if None in items and len(items) > 1:
            raise self.wrong(at, "one of its tensors is on its own, and there are others")
        random = found.get("random", False)
        if type(random) is not bool:
            raise self.wrong(f"{at}: random", f"{quote(random)} is neither true nor false")
        args, kwargs = self.arguments(found, f"{at}: ", number, 0)
        return Operation(self.text(found["call"], f"{at}: call"), args, kwargs, values, random)

    def returned(self, value: Any, at: str) -> Returned:
        found = self.fields(value, at, ("item", "dtype", "shape", "stride"))
        item = None if found["item"] is None else self.number(found["item"], f"{at}.item")
        return Returned(item, self.spec(found, at))

    def require_parts(self, operations: tuple[Operation, ...]) -> None:
        """Check that values have the parts that operations read."""
        parts = [len(tensors) for operation in operations for tensors in operation.values]
        for node, operation in zip(self.graph.nodes, operations, strict=True):
            for tensor in tensors_read((*operation.args, *operation.kwargs.values())):
                if isinstance(tensor, Input):
                    self.number(tensor.part, f"node {node.id}: part", parts[node.inputs[tensor.position]])

    def tangents(self, operations: tuple[Operation, ...], places: tuple[Placeholder, ...]) -> int:
        """The node that makes the tangents, one for each of those places."""
        found = [number for number, operation in enumerate(operations) if operation.call == TANGENTS]
        if len(found) != 1:
            raise self.wrong("nodes", f"{len(found)} of them make the tangents, and one has to")
        made = [tuple(tensor.spec for tensor in tensors) for tensors in operations[found[0]].values]
        if made != [(place.spec,) for place in places[self.places :]]:
            at = f"node {self.graph.nodes[found[0]].id}: values"
            raise self.wrong(at, "they are not the tangents among the places")
        return found[0]

    def require_kept(self, step: Step, value: Value, at: str) -> None:
        """Check that a tensor is there at the end."""
        if value.number not in self.graph.outputs:
            raise self.wrong(at, f"{quote(self.graph.value_name(value.number))} is not an output of the graph")
        self.number(value.part, f"{at}.part", len(step.tensors(value.number)))

    def arguments(
        self, call: dict[str, Any], at: str, node: int | None, depth: int
    ) -> tuple[tuple[Argument, ...], dict[str, Argument]]:
        """Arguments of a call by position, and by name."""
        args = tuple(self.argument(item, place, node, depth) for item, place in self.items(call["args"], f"{at}args"))
        if not isinstance(call["kwargs"], dict):
            raise self.wrong(f"{at}kwargs", "it is not an object")
        for key in call["kwargs"]:
            if not key.isidentifier() or keyword.iskeyword(key):  # keys go into generated code
                raise self.wrong(f"{at}kwargs", f"{quote(key)} is not the name of an argument")
        return args, {k: self.argument(item, f"{at}{k}", node, depth) for k, item in call["kwargs"].items()}

    def argument(self, value: Any, at: str, node: int | None, depth: int = 0) -> Argument:
        """An argument of ``node``, which names values by position; if ``node`` is None, by their names in the graph."""
        if depth > _DEEPEST:
            raise self.wrong(at[:80], f"it has more than {_DEEPEST} brackets in brackets")
        if value is None or isinstance(value, bool | str) or type(value) is int:
            return value
        if isinstance(value, list):
            return tuple(self.argument(item, f"{at}[{k}]", node, depth + 1) for k, item in enumerate(value))
        if not isinstance(value, dict):
            raise self.wrong(at, f"{quote(value)} is nothing that remat writes")
        if "call" in value:
            found = self.fields(value, at, ("call", "args", "kwargs"), ("item",))
            args, kwargs = self.arguments(found, f"{at}.", node, depth + 1)
            item = self.number(found["item"], f"{at}.item") if "item" in found else None
            return View(self.text(found["call"], f"{at}.call"), args, kwargs, item)
        return self.leaf(value, at, node)

    def leaf(self, value: dict[str, Any], at: str, node: int | None) -> Argument:
        """An argument that is an object, but not a view."""
        key = next((key for key in value if key != "part"), None)
        others = ("part",) if key in {"input", "value"} else ()
        found = value[key] if key is not None else None
        if key in {"float", "complex", *NAMED, "input", "value", "place", "constant"}:
            self.fields(value, at, (str(key),), others)
        part = self.number(value.get("part", 0), f"{at}.part")
        match key:
            case "float":
                return Float(self.hexadecimal(found, at))
            case "complex" if isinstance(found, list) and len(found) == 2:
                return Complex(*(self.hexadecimal(item, at) for item in found))
            case "input" if node is not None:
                return Input(self.number(found, at, len(self.graph.nodes[node].inputs)), part)
            case "value" if node is None and isinstance(found, str) and found in self.values:
                return Value(self.values[found], part)
            case "place":
                return Place(self.number(found, at, self.places))
            case "constant":
                return Constant(self.number(found, at, self.constants))
            case "dtype":
                return Named(key, self.dtype(found, at))
            case str() if key in NAMED:
                return Named(key, self.text(found, at, FORMS.get(key, ())))
        raise self.wrong(at, f"{quote(value)} is nothing that remat writes")

    def hexadecimal(self, value: Any, at: str) -> str:
        """A number as ``float.hex`` writes it."""
        try:
            float.fromhex(value)
        except (TypeError, ValueError, OverflowError):
            raise self.wrong(at, f"{quote(value)} is not a number as remat writes it") from None
        return str(value)
