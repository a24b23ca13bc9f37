"""A graph of ATen operators as plain data, independent of its source."""

import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from remat_cli.graph.model import Phase

TANGENTS = "remat.tangents"
"""Name of the operator that makes the tangents; PyTorch has no such operator."""
LARGEST_TENSOR = (1 << 63) - 1
"""Most bytes of a tensor: PyTorch counts them in 64 bits with a sign."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Type and layout of a tensor.

    Attributes:
        itemsize: Bytes of an element.
        floating: Whether it can have a gradient.
        shape: Its shape.
        stride: Its strides in elements; None if unknown.
        device: Kind of device that it is on; None if unknown.
        storage: Identity of the memory that it lies in; None if unknown.
        storage_bytes: Bytes of that memory; None if unknown.
    """

    itemsize: int
    floating: bool
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None = None
    device: str | None = None
    storage: Hashable = None
    storage_bytes: int | None = None

    def __post_init__(self) -> None:
        """Check that every axis has a stride, and that 64 bits can count the bytes.

        Raises:
            ValueError: If it is not so.
        """
        if self.stride is not None and len(self.stride) != len(self.shape):
            raise ValueError(f"{len(self.shape)} sizes and {len(self.stride)} strides")
        if max(math.prod(self.shape) * self.itemsize, self.bytes) > LARGEST_TENSOR:
            raise ValueError("more bytes than a tensor can have")

    @property
    def elements(self) -> int:
        """Number of elements in memory: an axis of stride 0 repeats the same ones, and counts once."""
        if self.stride is None:
            return math.prod(self.shape)
        return math.prod(n for n, step in zip(self.shape, self.stride, strict=True) if step)

    @property
    def bytes(self) -> int:
        """Bytes of the memory that it spans, gaps between its elements included."""
        if self.stride is None or 0 in self.shape:
            return math.prod(self.shape) * self.itemsize
        spans = (n * step for n, step in zip(self.shape, self.stride, strict=True) if n > 1)
        return max([1, *spans]) * self.itemsize

    @property
    def contiguous(self) -> bool | None:
        """Whether its elements lie in memory in order, without gaps; None if strides are unknown."""
        if self.stride is None:
            return None
        expected = 1
        for n, step in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if n != 1 and step != expected:
                return False
            expected *= max(n, 1)
        return True


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor among the arguments of a call."""

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """An operator applied to tensors and numbers.

    Attributes:
        name: Name of the call.
        target: ``aten.conv2d.default``.
        positional: Arguments by position; tensors are :class:`Ref`.
        named: Arguments by name; if the file names positional ones, those too.
        outputs: Name and type of every tensor it returns; None for one that is left out.
        module: Path of the module that it belongs to; empty if unknown.
        phase: Part of the training step.
        random: Whether it draws random numbers; None if only the operator's name can tell.
        inlined: Whether each of its readers computes it anew, as a compiler does that fuses it into them.
    """

    name: str
    target: str
    positional: tuple[Any, ...]
    named: Mapping[str, Any]
    outputs: tuple[tuple[str, TensorType] | None, ...]
    module: str = ""
    phase: Phase = Phase.FORWARD
    random: bool | None = None
    inlined: bool = False

    @property
    def op(self) -> str:
        """The operator without its overload: ``aten.conv2d``."""
        return ".".join(self.target.split(".")[:2])

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        if position < len(self.positional):
            return self.positional[position]
        return self.named.get(name, default)

    def made(self) -> list[str]:
        """Names of the tensors it returns."""
        return [output[0] for output in self.outputs if output is not None]

    def made_at(self, slot: int) -> str:
        """Name of an output.

        Raises:
            ValueError: If that one is left out.
        """
        output = self.outputs[slot]
        if output is None:
            raise ValueError(f"output {slot} of {self.name} is left out")
        return output[0]

    def refs(self) -> Iterator[str]:
        """Names of the tensors it reads."""
        arguments = [*self.positional, *self.named.values()]
        while arguments:
            argument = arguments.pop(0)
            if isinstance(argument, Ref):
                yield argument.name
            elif isinstance(argument, list | tuple):
                arguments[:0] = argument


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor from outside.

    Attributes:
        name: Its name in the graph.
        kind: ``parameter``, ``buffer``, ``constant``, ``input`` or ``tangent``.
        type: Its type.
    """

    name: str
    kind: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class Program:
    """A graph of ATen operators.

    Attributes:
        inputs: Tensors from outside.
        calls: In execution order.
        outputs: Name and kind of the results: ``output``, ``loss``, ``gradient`` or ``mutation``.
        metadata: Its origin.
    """

    inputs: tuple[Input, ...]
    calls: tuple[Call, ...]
    outputs: tuple[tuple[str, str], ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
