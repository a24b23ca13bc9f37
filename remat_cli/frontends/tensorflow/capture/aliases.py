"""Finds the operations that give out the memory of an input instead of memory of their own.

Some always do (Reshape). Others do for some shapes: a slice of leading rows if they are aligned, a sum over no axis, a
cast to the same type. For these a trial decides: they run once on zeros of the same shapes.
"""

from __future__ import annotations

from typing import Any

from remat_cli.frontends.tensorflow.capture.program import Kind, Op, Program
from remat_cli.frontends.tensorflow.codec import kernel_attributes, tensor_of
from remat_cli.frontends.tensorflow.document import OPAQUE, Constant, Place, Ref
from remat_cli.frontends.tensorflow.operators import ALIASES, MAYBE_ALIASES, SLICES
from remat_cli.frontends.tensorflow.private import address, executor

Aliases = tuple[int | None, ...]


def find_aliases(program: Program) -> None:
    """Set ``alias_of`` of every operation of ``program``."""
    known: dict[str, Aliases] = {}
    for op in program.ops:
        op.alias_of = _aliases(program, op, known)
        if any(source is not None for source in op.alias_of) and None in op.alias_of:
            op.alias_of = (None,) * len(op.alias_of)  # partly an alias: charge all of it


def _aliases(program: Program, op: Op, known: dict[str, Aliases]) -> Aliases:
    outputs = len(op.call.outputs)
    if op.call.op == "ReadVariableOp":
        place = op.call.inputs[0]
        copied = isinstance(place, Place) and place.number in program.by_rows
        return (0,) if op.kind is Kind.UPDATE and not copied else (None,)
    if op.kind is Kind.ONCE:
        return (None,) * outputs
    if op.call.op in ALIASES:
        return tuple(range(outputs)) if op.call.op == "IdentityN" else (0,) * outputs
    if op.call.op not in MAYBE_ALIASES or not _may_alias(program, op):
        return (None,) * outputs
    key = repr((op.call.op, op.call.attributes, [_form(program, ref) for ref in op.call.inputs]))
    if key not in known:
        known[key] = _trial(program, op)
    return known[key]


def _may_alias(program: Program, op: Op) -> bool:
    """Whether the shapes allow it; this spares most trials."""
    made = op.call.outputs[0]
    if any(spec.dtype in OPAQUE for spec in op.call.outputs):
        return False
    if op.call.op in SLICES:
        return True
    tensors = [spec for spec in map(program.spec, op.call.inputs) if spec.bytes == made.bytes]
    return any(spec.dtype == made.dtype for spec in tensors) and not (op.call.op == "AddN" and len(tensors) > 1)


def _form(program: Program, ref: Ref) -> Any:
    return ref if isinstance(ref, Constant) else program.spec(ref)


def _trial(program: Program, op: Op) -> Aliases:
    """For each output, the input whose memory it is in, by running the operation on zeros."""
    import tensorflow as tf

    def given(ref: Ref) -> Any:
        if isinstance(ref, Constant):
            return tensor_of(program.constants[ref.number], "cpu")
        spec = program.spec(ref)
        with tf.device("/device:CPU:0"):
            return tf.zeros(spec.shape, tf.dtypes.as_dtype(spec.dtype))

    try:
        inputs = [given(ref) for ref in op.call.inputs]
        results = executor("cpu")(
            op.call.op, inputs, kernel_attributes(op.call.op, op.call.attributes, ()), len(op.call.outputs)
        )
    except (tf.errors.OpError, TypeError, ValueError):  # zeros are not valid for it, so it does more than alias
        return (None,) * len(op.call.outputs)
    memory = [address(tensor) for tensor in inputs]
    return tuple(_inside(address(result), memory) for result in results)


def _inside(place: tuple[int, int] | None, memory: list[tuple[int, int] | None]) -> int | None:
    if place is None or not place[1]:
        return None
    for position, memory_of in enumerate(memory):
        if memory_of is not None and memory_of[0] <= place[0] and place[0] + place[1] <= memory_of[0] + memory_of[1]:
            return position
    return None
