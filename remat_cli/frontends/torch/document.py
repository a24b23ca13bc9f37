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

The fields of the classes here are what stands in documents, see :mod:`remat_cli.frontends.captured.serialiser`;
:mod:`remat_cli.frontends.torch.reading` reads them. Neither needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from remat_cli.frontends.captured.origin import Frontend, differing_spec
from remat_cli.frontends.captured.serialiser import ITEM_BYTES as COMMON_BYTES
from remat_cli.frontends.captured.serialiser import Dtype, Hexadecimal, Stored, stored
from remat_cli.graph.model import Graph
from remat_cli.printable import printable

FRONTEND = Frontend("torch", "PyTorch", "torch", version=1, forced="operators may be missing or do something else")


@dataclass(frozen=True, slots=True)
class Float(Stored):
    """A floating-point number, as ``float.hex`` writes it: exact, including infinities and NaN."""

    text: Hexadecimal = field(metadata=stored("float"))


@dataclass(frozen=True, slots=True)
class Complex(Stored):
    """A complex number, both parts as ``float.hex`` writes them."""

    real: str
    imag: str

    def document(self, name_of: Callable[[int], str] | None = None) -> dict[str, list[str]]:
        """As JSON."""
        return {"complex": [self.real, self.imag]}


@dataclass(frozen=True, slots=True)
class Named(Stored):
    """A named object of PyTorch; ``kind`` is ``dtype``, ``layout``, ``memory_format`` or ``device``."""

    kind: str
    name: str

    def document(self, name_of: Callable[[int], str] | None = None) -> dict[str, str]:
        """As JSON."""
        return {self.kind: self.name}


NAMED = ("dtype", "layout", "memory_format", "device")

ITEM_BYTES = {
    **COMMON_BYTES,
    **dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    "complex32": 4,
}
"""Bytes of an element, by the name of its type. Documents hold tensors of no other type; quantised ones have hidden
parameters."""
FORMS = {
    "layout": ("strided",),
    "memory_format": ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d"),
}
"""The other names of these kinds that documents hold."""


@dataclass(frozen=True, slots=True)
class Input(Stored):
    """The ``part``-th tensor of the ``position``-th value that a node reads."""

    position: int = field(metadata=stored("input", below="inputs"))
    part: int = 0


@dataclass(frozen=True, slots=True)
class Value(Stored):
    """The ``part``-th tensor of a value of the graph, by the value's number."""

    number: int = field(metadata=stored("value", names=True))
    part: int = 0


@dataclass(frozen=True, slots=True)
class Place(Stored):
    """The tensor of a placeholder."""

    number: int = field(metadata=stored("place", below="places"))


@dataclass(frozen=True, slots=True)
class Constant(Stored):
    """A tensor whose data is in the document."""

    number: int = field(metadata=stored("constant", below="constants"))


@dataclass(frozen=True, slots=True)
class View(Stored):
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
class TensorSpec(Stored):
    """Type and layout of a tensor.

    Attributes:
        dtype: ``float32``.
        shape: Its shape.
        stride: Its strides, in elements.
    """

    dtype: Dtype
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


@dataclass(frozen=True, slots=True)
class Returned(Stored):
    """A tensor that an operation returns; ``item`` is its position, None for a single one."""

    item: int | None
    spec: TensorSpec = field(metadata=stored(inline=True))


@dataclass(frozen=True, slots=True)
class Operation(Stored):
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


@dataclass(frozen=True, slots=True)
class Placeholder(Stored):
    """A tensor that a step is given.

    Attributes:
        kind: ``parameter``, ``buffer``, ``input``, ``captured`` (a tensor that the code refers to) or ``tangent``.
        name: ``conv1.weight``; ``0`` or ``mask`` for an input by position or keyword.
        spec: Its type and layout.
        storage_bytes: Bytes of the memory it lies in.
        below: Its numbers must be below this and not negative. None if no limit is known.
    """

    kind: str = field(metadata=stored(words=("parameter", "buffer", "input", "captured", "tangent")))
    name: str
    spec: TensorSpec = field(metadata=stored(inline=True))
    storage_bytes: int = field(metadata=stored("bytes"))
    below: int | None = None


@dataclass(frozen=True, slots=True)
class Data(Stored):
    """A small tensor with its data, in row-major order."""

    dtype: Dtype
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class Result(Stored):
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


def difference(compiled: Step, planned: Step) -> str | None:
    """Why a plan of ``planned`` is not a plan of ``compiled``, in a few words; None if it is."""
    reason = _places(compiled, planned) or _operations(compiled, planned)
    if reason is None and compiled.constants != planned.constants:
        return "constants in the code have other values"
    return reason if reason or compiled.results == planned.results else "it returns something else"


def _places(compiled: Step, planned: Step) -> str | None:
    ours, theirs = compiled.places, planned.places
    here, there = (len(step.places) - len(step.given) for step in (compiled, planned))
    if here != there and len(compiled.given) == len(planned.given):
        return (
            f"{there} of its results {'takes' if there == 1 else 'take'} a gradient, and {here} of this: compile what "
            "returns the same, the loss alone if there is one"
        )
    if len(ours) != len(theirs):
        return f"it has {len(theirs)} parameters, buffers and inputs, and this has {len(ours)}"
    for mine, other in zip(ours, theirs, strict=True):
        if (mine.kind == "tangent") != (other.kind == "tangent"):
            return f"{printable(other.name)} is {other.kind} there and {mine.kind} here"
        facts = (
            ("type", other.spec.dtype, mine.spec.dtype),
            ("shape", list(other.spec.shape), list(mine.spec.shape)),
            ("stride", list(other.spec.stride), list(mine.spec.stride)),
        )
        if (words := differing_spec(other.name, facts)) is not None:
            return words
    return None


def _operations(compiled: Step, planned: Step) -> str | None:
    ours, theirs = compiled.graph.nodes, planned.graph.nodes
    for k, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        here, there = compiled.operations[k], planned.operations[k]
        if (here, mine.inputs, len(mine.outputs)) != (there, other.inputs, len(other.outputs)):
            name, called = printable(other.id), printable(there.call)
            if there.call == here.call:
                return f"its operation {name} ({called}) has other arguments"
            return f"its operation {name} is {called} there and {here.call} here"
    if len(ours) != len(theirs):
        return f"it has {len(theirs)} operations, and this has {len(ours)}"
    return None
