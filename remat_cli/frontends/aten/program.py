"""A graph of ATen operators as plain data, whatever it was read from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from remat_cli.graph.model import Phase

TANGENTS = "remat.tangents"
"""What the call of the tangents calls: nothing that PyTorch has."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Type and layout of a tensor.

    Attributes:
        itemsize: Bytes of an element.
        floating: Whether it can have a gradient.
        shape: Its shape.
        stride: Its strides in elements; None where they are not known.
    """

    itemsize: int
    floating: bool
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Make sure that there is a stride for every axis.

        Raises:
            ValueError: If there is not.
        """
        if self.stride is not None and len(self.stride) != len(self.shape):
            raise ValueError(f"{len(self.shape)} sizes and {len(self.stride)} strides")

    @property
    def elements(self) -> int:
        """Elements that lie in memory: what an expanded tensor repeats lies there once."""
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
        """Whether its elements lie in memory one after the other; None if strides are not known."""
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
        named: Arguments by name; positional ones too where the file names them.
        outputs: Name and type of every tensor it returns; None for one that is left out.
        module: Path of the module that it belongs to; empty where that is not known.
        phase: Part of the training step.
    """

    name: str
    target: str
    positional: tuple[Any, ...]
    named: Mapping[str, Any]
    outputs: tuple[tuple[str, TensorType] | None, ...]
    module: str = ""
    phase: Phase = Phase.FORWARD

    @property
    def op(self) -> str:
        """The operator without its overload: ``aten.conv2d``."""
        return ".".join(self.target.split(".")[:2])

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        if position < len(self.positional):
            return self.positional[position]
        return self.named.get(name, default)

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
    """A tensor from outside; ``kind`` is ``parameter``, ``buffer``, ``constant``, ``input`` or ``tangent``.

    Attributes:
        name: Its name in the graph.
        kind: What it is.
        type: Its type.
        storage: What tensors that lie in the same memory have in common; None for one on its own.
    """

    name: str
    kind: str
    type: TensorType
    storage: str | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """A graph of ATen operators.

    Attributes:
        inputs: Tensors from outside.
        calls: In execution order.
        outputs: Name and kind of the results: ``output``, ``loss``, ``gradient`` or ``mutation``.
        metadata: Where it comes from.
    """

    inputs: tuple[Input, ...]
    calls: tuple[Call, ...]
    outputs: tuple[tuple[str, str], ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)


def with_phases(program: Program) -> Program:
    """``program`` with the phase of every call, and with a call that makes the tangents where there are any.

    In a joint graph, gradients come from outside as inputs of their own, the tangents. They are made by a call that
    reads all results of the forward pass, so that every plan runs the whole forward pass before the backward pass
    begins. A graph with a loss among its results has its backward pass after that; where there is a single tangent of
    one number, the last result is the loss.
    """
    tangents = [given for given in program.inputs if given.kind == "tangent"]
    if tangents:
        return _joint(program, tangents)
    losses = {name for name, kind in program.outputs if kind == "loss"}
    if not losses:
        return program
    calls: list[Call] = []
    phase = Phase.FORWARD
    for call in program.calls:
        makes_loss = any(made is not None and made[0] in losses for made in call.outputs)
        calls.append(replace(call, phase=Phase.LOSS if makes_loss else phase))
        phase = Phase.BACKWARD if makes_loss else phase
    return replace(program, calls=tuple(calls))


def _joint(program: Program, tangents: list[Input]) -> Program:
    after = {given.name for given in tangents}
    for call in program.calls:
        if any(name in after for name in call.refs()):
            after.update(made[0] for made in call.outputs if made is not None)
    results = [name for name, _ in program.outputs if name not in after]
    if not results:  # a backward pass by itself: all it reads comes from outside
        return replace(program, calls=tuple(replace(call, phase=Phase.BACKWARD) for call in program.calls))
    early = _ancestors(program, results)
    dependent = [any(name in after for name in call.refs()) for call in program.calls]
    first = dependent.index(True) if True in dependent else len(dependent)
    loss = results[-1] if [t.type.shape for t in tangents] == [()] else None
    forward: list[Call] = []
    backward: list[Call] = []
    for k, call in enumerate(program.calls):
        is_early = k < first or any(made is not None and made[0] in early for made in call.outputs)
        makes_loss = any(made is not None and made[0] == loss for made in call.outputs)
        phase = Phase.LOSS if makes_loss else Phase.FORWARD if is_early else Phase.BACKWARD
        (forward if is_early else backward).append(replace(call, phase=phase))
    middle = Call(
        name="tangents",
        target=TANGENTS,
        positional=tuple(Ref(name) for name in results),
        named={},
        outputs=tuple((given.name, given.type) for given in tangents),
        phase=Phase.LOSS,
    )
    return replace(
        program,
        inputs=tuple(given for given in program.inputs if given.kind != "tangent"),
        calls=(*forward, middle, *backward),
    )


def _ancestors(program: Program, names: list[str]) -> set[str]:
    makers = {made[0]: call for call in program.calls for made in call.outputs if made is not None}
    seen: set[str] = set()
    stack = list(names)
    while stack:
        name = stack.pop()
        if name not in seen:
            seen.add(name)
            if name in makers:
                stack.extend(makers[name].refs())
    return seen
