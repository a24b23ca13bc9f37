"""Divides a training step into the part before and the part after the tangents.

Tangents are inputs of a joint graph: gradients that come from outside. Here a call makes them that reads all results of
the forward pass. So every plan runs the whole forward pass before the backward pass begins.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from remat_cli.frontends.aten.program import TANGENTS, Call, Input, Program, Ref, TensorType
from remat_cli.graph.model import Phase

Item = TypeVar("Item")
Tensor = TypeVar("Tensor", bound=Hashable)


def split(
    calls: Sequence[Item],
    reads: Callable[[Item], Iterable[Tensor]],
    makes: Callable[[Item], Iterable[Tensor]],
    after: set[Tensor],
    results: Iterable[Tensor],
) -> tuple[list[Item], list[Item]]:
    """The calls before and after the tangents, each in the order given.

    Forward calls are all calls before the first one that depends on a tangent, and all others that the results need.
    The remaining calls are for the backward pass only; making them late saves memory.

    Args:
        calls: In execution order.
        reads: The tensors that a call reads.
        makes: The tensors that it makes.
        after: The tensors that depend on a tangent, see :func:`dependent`.
        results: The results of the forward pass.
    """
    early = ancestors(calls, reads, makes, results)
    first = next((k for k, call in enumerate(calls) if not after.isdisjoint(reads(call))), len(calls))
    is_forward = [k < first or not early.isdisjoint(makes(call)) for k, call in enumerate(calls)]
    forward = [call for call, here in zip(calls, is_forward, strict=True) if here]
    return forward, [call for call, here in zip(calls, is_forward, strict=True) if not here]


def dependent(
    calls: Iterable[Item],
    reads: Callable[[Item], Iterable[Tensor]],
    makes: Callable[[Item], Iterable[Tensor]],
    tangents: Iterable[Tensor],
) -> set[Tensor]:
    """``tangents``, and all tensors that depend on them."""
    after = set(tangents)
    for call in calls:
        if not after.isdisjoint(reads(call)):
            after.update(makes(call))
    return after


def ancestors(
    calls: Iterable[Item],
    reads: Callable[[Item], Iterable[Tensor]],
    makes: Callable[[Item], Iterable[Tensor]],
    tensors: Iterable[Tensor],
) -> set[Tensor]:
    """``tensors``, and all tensors that they depend on."""
    makers = {tensor: call for call in calls for tensor in makes(call)}
    seen: set[Tensor] = set()
    stack = list(tensors)
    while stack:
        tensor = stack.pop()
        if tensor not in seen:
            seen.add(tensor)
            if tensor in makers:
                stack.extend(reads(makers[tensor]))
    return seen


def tangents_call(results: Sequence[str], tangents: Iterable[tuple[str, TensorType]]) -> Call:
    """The call that makes ``tangents``, after all ``results`` of the forward pass."""
    return Call("tangents", TANGENTS, tuple(map(Ref, results)), {}, tuple(tangents), phase=Phase.LOSS)


def with_phases(program: Program) -> Program:
    """``program`` with the phase of every call, and with a call that makes the tangents if it has any.

    If a loss is among the results, the calls after it are the backward pass. If there is a single tangent, of one
    number, the last result is the loss.
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
        makes_loss = not losses.isdisjoint(call.made())
        calls.append(replace(call, phase=Phase.LOSS if makes_loss else phase))
        phase = Phase.BACKWARD if makes_loss else phase
    return replace(program, calls=tuple(calls))


def _joint(program: Program, tangents: list[Input]) -> Program:
    after = dependent(program.calls, Call.refs, Call.made, [given.name for given in tangents])
    results = [name for name, _ in program.outputs if name not in after]
    if not results:  # a backward pass alone: all that it reads comes from outside
        return replace(program, calls=tuple(replace(call, phase=Phase.BACKWARD) for call in program.calls))
    forward, backward = split(program.calls, Call.refs, Call.made, after, results)
    loss = results[-1] if [given.type.shape for given in tangents] == [()] else None
    return replace(
        program,
        inputs=tuple(given for given in program.inputs if given.kind != "tangent"),
        calls=(
            *(replace(call, phase=Phase.LOSS if loss in call.made() else Phase.FORWARD) for call in forward),
            tangents_call(results, [(given.name, given.type) for given in tangents]),
            *(replace(call, phase=Phase.LOSS if loss in call.made() else Phase.BACKWARD) for call in backward),
        ),
    )
