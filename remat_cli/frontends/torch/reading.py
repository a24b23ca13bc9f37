"""Reads the payloads and metadata of a captured step, see :mod:`remat_cli.frontends.torch.document`.

A document may come from a stranger, so reading is strict: everything that remat would not write is refused, with its
place.
"""

from __future__ import annotations

import base64
import binascii
import keyword
from typing import Any

from remat_cli.errors import UsageError
from remat_cli.frontends.aten.program import TANGENTS
from remat_cli.frontends.torch.document import (
    FRONTEND,
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

_KINDS = ("parameter", "buffer", "input", "captured", "tangent")
_RESULTS = ("result", "update", "gradient")
_DEEPEST = 190
"""Deepest nesting of brackets in an argument: Python compiles at most 200 levels, and a call adds some."""


def require_torch_graph(graph: Graph) -> None:
    """Check that this frontend made a graph.

    Raises:
        UsageError: If it did not, or another version of remat made it.
    """
    metadata = graph.metadata
    if not isinstance(metadata, dict) or metadata.get("frontend") != FRONTEND:
        raise UsageError(
            f"the graph {graph.name} was not made by the PyTorch frontend, so there is nothing to run",
            hint="make it with remat export torch:FILE.py:NAME",
        )
    if metadata.get("version") != VERSION:
        raise UsageError(f"the graph {graph.name} was made for another version of remat", hint="export it again")


def read_step(graph: Graph) -> Step:
    """The contents of the payloads and the metadata of ``graph``.

    Raises:
        UsageError: If they hold anything that this frontend does not write, with its place.
    """
    metadata = graph.metadata if isinstance(graph.metadata, dict) else {}
    reader = _Reader(graph)
    places = tuple(reader.placeholder(item, at) for item, at in reader.items(metadata.get("places"), "places"))
    constants = tuple(reader.data(item, at) for item, at in reader.items(metadata.get("constants"), "constants"))
    reader.places = sum(place.kind != "tangent" for place in places)
    reader.constants = len(constants)
    if any(place.kind == "tangent" for place in places[: reader.places]):
        raise reader.wrong("places", "tangents are not the last of them")
    operations = tuple(reader.operation(number) for number in range(len(graph.nodes)))
    reader.require_parts(operations)
    results = tuple(reader.result(item, at) for item, at in reader.items(metadata.get("results"), "results"))
    tangents = [number for number, operation in enumerate(operations) if operation.call == TANGENTS]
    if len(tangents) != 1:
        raise reader.wrong("nodes", f"{len(tangents)} of them make the tangents, and one has to")
    device = metadata.get("device")
    if device is not None and not isinstance(device, str):
        raise reader.wrong("device", "it is not text")
    return Step(graph, operations, places, constants, results, tangents[0], device)


class _Reader:
    """Reads the documents of one graph. In all methods, ``at`` is the place of the value, for messages."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values = {graph.value_name(value): value for value in range(len(graph.size))}
        self.places = self.constants = 0

    def wrong(self, at: str, message: str) -> UsageError:
        return UsageError(
            f"the graph {self.graph.name} holds a payload that remat did not write: {at}: {message}",
            hint="export it again",
        )

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
                raise self.wrong(at, f"it has an unknown field {name!r}")
        return value

    def number(self, value: Any, at: str, below: int | None = None) -> int:
        """A whole number that is not negative."""
        if type(value) is not int or value < 0:
            raise self.wrong(at, f"{value!r} is not a whole number from 0 on")
        if below is not None and value >= below:
            raise self.wrong(at, f"there is no number {value}: there are {below}")
        return value

    def text(self, value: Any, at: str, known: tuple[str, ...] = ()) -> str:
        if not isinstance(value, str) or (known and value not in known):
            raise self.wrong(at, f"{value!r} is not {' or '.join(known) if known else 'text'}")
        return value

    def numbers(self, value: Any, at: str) -> tuple[int, ...]:
        return tuple(self.number(item, place) for item, place in self.items(value, at))

    def spec(self, value: dict[str, Any], at: str) -> TensorSpec:
        shape = self.numbers(value["shape"], f"{at}.shape")
        stride = self.numbers(value["stride"], f"{at}.stride")
        if len(shape) != len(stride):
            raise self.wrong(at, f"it has {len(shape)} sizes and {len(stride)} strides")
        return TensorSpec(self.text(value["dtype"], f"{at}.dtype"), shape, stride)

    def placeholder(self, value: Any, at: str) -> Placeholder:
        found = self.fields(value, at, ("kind", "name", "dtype", "shape", "stride", "bytes"), ("below",))
        return Placeholder(
            kind=self.text(found["kind"], f"{at}.kind", _KINDS),
            name=self.text(found["name"], f"{at}.name"),
            spec=self.spec(found, at),
            storage_bytes=self.number(found["bytes"], f"{at}.bytes"),
            below=self.number(found["below"], f"{at}.below") if "below" in found else None,
        )

    def data(self, value: Any, at: str) -> Data:
        found = self.fields(value, at, ("dtype", "shape", "data"))
        try:
            data = base64.b64decode(self.text(found["data"], f"{at}.data"), validate=True)
        except (binascii.Error, ValueError) as error:
            raise self.wrong(f"{at}.data", str(error)) from None
        return Data(self.text(found["dtype"], f"{at}.dtype"), self.numbers(found["shape"], f"{at}.shape"), data)

    def result(self, value: Any, at: str) -> Result:
        found = self.fields(value, at, ("kind", "of", "tensor"))
        kind, of = self.text(found["kind"], f"{at}.kind", _RESULTS), found["of"]
        if kind != "result" or not isinstance(of, str):
            of = self.number(of, f"{at}.of", None if kind == "result" else self.places)
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
            raise self.wrong(f"{at}: random", f"{random!r} is neither true nor false")
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

    def arguments(
        self, call: dict[str, Any], at: str, node: int | None, depth: int
    ) -> tuple[tuple[Argument, ...], dict[str, Argument]]:
        """Arguments of a call by position, and by name."""
        args = tuple(self.argument(item, place, node, depth) for item, place in self.items(call["args"], f"{at}args"))
        if not isinstance(call["kwargs"], dict):
            raise self.wrong(f"{at}kwargs", "it is not an object")
        for key in call["kwargs"]:
            if not key.isidentifier() or keyword.iskeyword(key):  # keys go into generated code
                raise self.wrong(f"{at}kwargs", f"{key!r} is not the name of an argument")
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
            raise self.wrong(at, f"{value!r} is nothing that remat writes")
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
            case str() if key in NAMED:
                return Named(key, self.text(found, at))
        raise self.wrong(at, f"{value!r} is nothing that remat writes")

    def hexadecimal(self, value: Any, at: str) -> str:
        """A number as ``float.hex`` writes it."""
        try:
            float.fromhex(value)
        except (TypeError, ValueError, OverflowError):
            raise self.wrong(at, f"{value!r} is not a number as remat writes it") from None
        return str(value)
