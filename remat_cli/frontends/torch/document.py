"""What the graph of a captured step says of every operation and tensor: the payloads of its nodes, and its metadata.

A node's payload rebuilds its operation without the user's code::

    {"call": "aten.addmm.default", "args": [...], "kwargs": {...}, "values": [[{"item": null, "shape": ...}]]}

``values`` says for each value of the node which returned tensors lie in it (``item``: the position in the returned
tuple, null for a tensor on its own); ``"random": true`` that the operation draws random numbers. Plain JSON stands for
None, booleans, integers, text and lists among the arguments. Everything else is an object whose keys say what it is:

=======================================  ======================================================
``{"float": "0x1.8p+1"}``                a number; ``complex`` has two of these
``{"dtype": "float32"}``                 likewise ``layout``, ``memory_format`` and ``device``
``{"input": k, "part": j}``              the j-th tensor of the k-th value that the node reads
``{"place": p}``, ``{"constant": c}``    the p-th placeholder, the c-th constant
``{"call": ..., "args": ...}``           a view of such; ``item`` if it is one of several
=======================================  ======================================================

The metadata holds ``places`` (the placeholders), ``constants`` and ``results``: losses, gradients, and updates of
inputs, each with an expression as above, in which ``{"value": "id:0", "part": j}`` stands for values.

This module alone reads and writes these documents, and it needs no torch. A document may come from a stranger, so
reading is strict: what was not written here is refused, with its place.
"""

from __future__ import annotations

import base64
import binascii
import keyword
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from remat_cli.errors import UsageError
from remat_cli.frontends.aten.program import TANGENTS
from remat_cli.graph.model import Graph

FRONTEND = "torch"
VERSION = 1
"""Version of what payloads and metadata look like."""
_KINDS = ("parameter", "buffer", "input", "captured", "tangent")
_RESULTS = ("result", "update", "gradient")
_DEEPEST = 190
"""Brackets in brackets that an argument may have: Python compiles no more than 200, and a call adds some."""


@dataclass(frozen=True, slots=True)
class Float:
    """A floating-point number, as ``float.hex`` writes it: to the bit, infinities and NaN included."""

    text: str


@dataclass(frozen=True, slots=True)
class Complex:
    """A complex number, both parts as ``float.hex`` writes them."""

    real: str
    imag: str


@dataclass(frozen=True, slots=True)
class Named:
    """What PyTorch has a name for; ``kind`` is ``dtype``, ``layout``, ``memory_format`` or ``device``."""

    kind: str
    name: str


NAMED = ("dtype", "layout", "memory_format", "device")


@dataclass(frozen=True, slots=True)
class Input:
    """The ``part``-th tensor of the ``position``-th value that a node reads."""

    position: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class Value:
    """The ``part``-th tensor of a value of the graph, by the value's number."""

    number: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """The tensor of a placeholder."""

    number: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor that stands in the document."""

    number: int


@dataclass(frozen=True, slots=True)
class View:
    """A tensor that lies in memory of others, made again where it is read: item ``item`` of what ``call`` returns."""

    call: str
    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument]
    item: int | None = None


Tensor = Input | Value | Place | Constant | View
"""An expression for a tensor."""
Argument = None | bool | int | str | Float | Complex | Named | Tensor | tuple["Argument", ...]
"""An argument of an operator."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Type and layout of a tensor.

    Attributes:
        dtype: ``float32``.
        shape: Its shape.
        stride: Its strides, in elements.
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"dtype": self.dtype, "shape": list(self.shape), "stride": list(self.stride)}


@dataclass(frozen=True, slots=True)
class Returned:
    """A tensor that an operation returns; ``item`` is its position, None for one on its own."""

    item: int | None
    spec: TensorSpec


@dataclass(frozen=True, slots=True)
class Operation:
    """What a node does.

    Attributes:
        call: The operator, ``aten.addmm.default``; ``TANGENTS`` for the node that makes the tangents.
        args: Its arguments by position.
        kwargs: Its arguments by name.
        values: The tensors in each of the node's values.
        random: Whether it draws random numbers.
    """

    call: str
    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument]
    values: tuple[tuple[Returned, ...], ...]
    random: bool = False

    def document(self) -> dict[str, Any]:
        """The payload."""
        values = [[{"item": tensor.item, **tensor.spec.document()} for tensor in tensors] for tensors in self.values]
        written = {"call": self.call, **_arguments(self, _no_name), "values": values}
        return written | {"random": True} if self.random else written


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A tensor that a step is given.

    Attributes:
        kind: ``parameter``, ``buffer``, ``input``, ``captured`` (a tensor that the code refers to) or ``tangent``.
        name: ``conv1.weight``; ``0`` or ``mask`` for an input by position or keyword.
        spec: Its type and layout.
        storage_bytes: Bytes of the memory it lies in.
        below: What is in it has to be below this and not negative. None where nothing is known.
    """

    kind: str
    name: str
    spec: TensorSpec
    storage_bytes: int
    below: int | None = None

    def document(self) -> dict[str, Any]:
        """As JSON."""
        written = {"kind": self.kind, "name": self.name, **self.spec.document(), "bytes": self.storage_bytes}
        return written if self.below is None else written | {"below": self.below}


@dataclass(frozen=True, slots=True)
class Data:
    """A small tensor with its data, row by row."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def document(self) -> dict[str, Any]:
        """As JSON."""
        data = base64.b64encode(self.data).decode("ascii")
        return {"dtype": self.dtype, "shape": list(self.shape), "data": data}


@dataclass(frozen=True, slots=True)
class Result:
    """What a step gives back.

    Attributes:
        kind: ``result``, ``update`` (of a placeholder) or ``gradient``.
        of: The number of the result, or what results share memory with, ``1.base``; else the number of a placeholder.
        tensor: Where it is.
    """

    kind: str
    of: int | str
    tensor: Argument

    def document(self, name_of: Callable[[int], str]) -> dict[str, Any]:
        """As JSON; ``name_of`` gives the names of values."""
        return {"kind": self.kind, "of": self.of, "tensor": _written(self.tensor, name_of)}


@dataclass(frozen=True, slots=True)
class Step:
    """A graph of this frontend with all that its documents say.

    Attributes:
        graph: The graph.
        operations: Of each node.
        places: The placeholders, in the order of the compiler; tangents are the last.
        constants: By number.
        results: In the order of the compiler: those of the forward pass, then gradients.
        tangents: The node that makes the tangents.
        device: Kind of device that it was captured for; None if that is not said.
    """

    graph: Graph
    operations: tuple[Operation, ...]
    places: tuple[Placeholder, ...]
    constants: tuple[Data, ...]
    results: tuple[Result, ...]
    tangents: int = 0
    device: str | None = None

    def tensors(self, value: int) -> tuple[Returned, ...]:
        """The tensors in a value."""
        node = self.graph.producer[value]
        return self.operations[node].values[value - self.graph.first_value[node]]

    @property
    def given(self) -> tuple[Placeholder, ...]:
        """The placeholders that are not tangents."""
        return tuple(place for place in self.places if place.kind != "tangent")


def tensors_read(arguments: Iterable[Argument]) -> Iterator[Tensor]:
    """Everything but views that stands for a tensor in ``arguments``, in order, inside of lists and views too."""
    for argument in arguments:
        if isinstance(argument, View):
            yield from tensors_read((*argument.args, *argument.kwargs.values()))
        elif isinstance(argument, tuple):
            yield from tensors_read(argument)
        elif isinstance(argument, Input | Value | Place | Constant):
            yield argument


def require_torch_graph(graph: Graph) -> None:
    """Make sure that this frontend made a graph.

    Raises:
        UsageError: If it comes from elsewhere, or from a newer remat.
    """
    metadata = graph.metadata
    if not isinstance(metadata, dict) or metadata.get("frontend") != FRONTEND:
        raise UsageError(
            f"the graph {graph.name} was not made by the PyTorch frontend, so there is nothing to run",
            hint="make it with remat export torch:FILE.py:NAME",
        )
    if metadata.get("version") != VERSION:
        raise UsageError(f"the graph {graph.name} was made for another version of remat", hint="export it again")


def _no_name(number: int) -> str:
    raise AssertionError(f"an operation names value {number} of the graph, and not what its node reads")


def _arguments(call: Operation | View, name_of: Callable[[int], str]) -> dict[str, Any]:
    return {
        "args": [_written(argument, name_of) for argument in call.args],
        "kwargs": {key: _written(argument, name_of) for key, argument in call.kwargs.items()},
    }


def _written(argument: Argument, name_of: Callable[[int], str]) -> Any:
    """``argument`` as JSON."""
    match argument:
        case Float(text):
            return {"float": text}
        case Complex(real, imag):
            return {"complex": [real, imag]}
        case Named(kind, name):
            return {kind: name}
        case Input(position, part):
            return {"input": position} | ({"part": part} if part else {})
        case Value(number, part):
            return {"value": name_of(number)} | ({"part": part} if part else {})
        case Place(number):
            return {"place": number}
        case Constant(number):
            return {"constant": number}
        case View():
            written = {"call": argument.call, **_arguments(argument, name_of)}
            return written if argument.item is None else written | {"item": argument.item}
        case tuple():
            return [_written(item, name_of) for item in argument]
        case _:
            return argument


# Reading


def read_step(graph: Graph) -> Step:
    """What the payloads and the metadata of ``graph`` say.

    Raises:
        UsageError: If something in them was not written by this frontend, with its place.
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
    """Reads the documents of one graph. ``at`` says everywhere where something stands, for messages."""

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
        """An object that has the fields ``needed``, and no others but ``others``."""
        if not isinstance(value, dict):
            raise self.wrong(at, "it is not an object")
        for name in needed:
            if name not in value:
                raise self.wrong(at, f'it has no "{name}"')
        for name in value:
            if name not in needed and name not in others:
                raise self.wrong(at, f"nothing is called {name!r} there")
        return value

    def number(self, value: Any, at: str, below: int | None = None) -> int:
        """A whole number that is not negative."""
        if type(value) is not int or value < 0:
            raise self.wrong(at, f"{value!r} is not a whole number from 0 on")
        if below is not None and value >= below:
            raise self.wrong(at, f"there is no number {value} of {below}")
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
        """Make sure that values have the parts that are read of them."""
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
            if not key.isidentifier() or keyword.iskeyword(key):  # or a document could smuggle in code
                raise self.wrong(f"{at}kwargs", f"{key!r} is not the name of an argument")
        return args, {k: self.argument(item, f"{at}{k}", node, depth) for k, item in call["kwargs"].items()}

    def argument(self, value: Any, at: str, node: int | None, depth: int = 0) -> Argument:
        """An argument of ``node``; None where values are read by their names, and not as what a node reads."""
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
        """An argument that is no list and no view, and has no JSON of its own."""
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
