"""Documents that describe the operations and tensors of a captured step: payloads of nodes, and the graph's metadata.

A node's payload rebuilds its operation without the user's code::

    {"call": "aten.addmm.default", "args": [...], "kwargs": {...}, "values": [[{"item": null, "shape": ...}]]}

``values`` lists the returned tensors in each value of the node. ``item`` is the position in the returned tuple, or null
for a single tensor. ``"random": true`` marks an operation that draws random numbers. Among the arguments, None,
booleans, integers, text and lists are plain JSON. Every other argument is an object:

=======================================  ======================================================
``{"float": "0x1.8p+1"}``                a number; ``complex`` has two of these
``{"dtype": "float32"}``                 likewise ``layout``, ``memory_format`` and ``device``
``{"input": k, "part": j}``              the j-th tensor of the k-th value that the node reads
``{"place": p}``, ``{"constant": c}``    the p-th placeholder, the c-th constant
``{"call": ..., "args": ...}``           a view of such; ``item`` if it is one of several
=======================================  ======================================================

The metadata holds ``places`` (the placeholders), ``constants`` and ``results``: losses, gradients, and updates of
inputs, each with an expression as above, in which ``{"value": "id:0", "part": j}`` stands for values.

This module alone writes these documents, and :mod:`remat_cli.frontends.torch.reading` alone reads them. Neither needs
torch.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from remat_cli.frontends.captured.origin import Frontend
from remat_cli.graph.model import Graph

FRONTEND = Frontend("torch", "PyTorch", "torch", version=1, forced="operators may be missing or do something else")


@dataclass(frozen=True, slots=True)
class Float:
    """A floating-point number, as ``float.hex`` writes it: exact, including infinities and NaN."""

    text: str


@dataclass(frozen=True, slots=True)
class Complex:
    """A complex number, both parts as ``float.hex`` writes them."""

    real: str
    imag: str


@dataclass(frozen=True, slots=True)
class Named:
    """A named object of PyTorch; ``kind`` is ``dtype``, ``layout``, ``memory_format`` or ``device``."""

    kind: str
    name: str


NAMED = ("dtype", "layout", "memory_format", "device")

ITEM_BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32", "complex32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}
"""Bytes of an element, by the name of its type. Documents hold tensors of no other type; quantised ones have hidden
parameters."""
FORMS = {
    "layout": ("strided",),
    "memory_format": ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d"),
}
"""The other names of these kinds that documents hold."""


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
    """A tensor whose data is in the document."""

    number: int


@dataclass(frozen=True, slots=True)
class View:
    """A view, rebuilt by each of its readers: item ``item`` of the result of ``call``."""

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

    @property
    def bytes(self) -> int:
        """Bytes of the memory from its first element to its last."""
        if 0 in self.shape:
            return 0
        return (1 + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))) * self.item_bytes

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return ITEM_BYTES[self.dtype]

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"dtype": self.dtype, "shape": list(self.shape), "stride": list(self.stride)}


@dataclass(frozen=True, slots=True)
class Returned:
    """A tensor that an operation returns; ``item`` is its position, None for a single one."""

    item: int | None
    spec: TensorSpec


@dataclass(frozen=True, slots=True)
class Operation:
    """The operation of a node.

    Attributes:
        call: The operator, ``aten.addmm.default``; ``remat.tangents`` for the node that makes the tangents.
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
        below: Its numbers must be below this and not negative. None if no limit is known.
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
    """A small tensor with its data, in row-major order."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def document(self) -> dict[str, Any]:
        """As JSON."""
        data = base64.b64encode(self.data).decode("ascii")
        return {"dtype": self.dtype, "shape": list(self.shape), "data": data}


@dataclass(frozen=True, slots=True)
class Result:
    """A result of a step.

    Attributes:
        kind: ``result``, ``update`` (of a placeholder) or ``gradient``; ``dropped`` for a result that the caller lets
            go before the backward pass, so that it need not be there at the end.
        of: For a result its number, or ``1.base`` for memory that results are views of; else the placeholder's number.
        tensor: The expression for it.
    """

    kind: str
    of: int | str
    tensor: Argument

    def document(self, name_of: Callable[[int], str]) -> dict[str, Any]:
        """As JSON; ``name_of`` gives the names of values."""
        return {"kind": self.kind, "of": self.of, "tensor": _written(self.tensor, name_of)}


@dataclass(frozen=True, slots=True)
class Step:
    """A graph of this frontend, with the contents of its documents.

    Attributes:
        graph: The graph.
        operations: The operation of each node.
        places: The placeholders, in the order of the compiler; tangents are the last.
        constants: The constants, by number.
        results: In the order of the compiler: those of the forward pass, then gradients.
        tangents: The node that makes the tangents.
        device: Kind of device that it was captured for; None if unknown.
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
    """All expressions for tensors in ``arguments`` except views, in order; also those inside lists and views."""
    for argument in arguments:
        if isinstance(argument, View):
            yield from tensors_read((*argument.args, *argument.kwargs.values()))
        elif isinstance(argument, tuple):
            yield from tensors_read(argument)
        elif isinstance(argument, Input | Value | Place | Constant):
            yield argument


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
