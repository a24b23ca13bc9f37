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

This module alone writes these documents, and :mod:`remat_cli.frontends.torch.reading` alone reads them. Neither needs
torch.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from remat_cli.graph.model import Graph

FRONTEND = "torch"
VERSION = 1
"""Version of what payloads and metadata look like."""


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
