"""Results that keep more memory than their type and shape say.

Found by running operators on the samples of PyTorch's own tests (``op_db``, float32 and bfloat16, on a CPU) beside
their fake selves; no other operator there said less than was true.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import zip_longest

from remat_cli.frontends.aten.program import Call, Ref, TensorType

REDUCED = {
    "aten.mse_loss": 2,
    "aten.smooth_l1_loss": 2,
    "aten.soft_margin_loss": 2,
    "aten.binary_cross_entropy": 3,
}
"""Losses that write one number per element, and put their mean or sum into the same memory; where ``reduction`` is."""
RESHAPED = ("aten.im2col", "aten.col2im")
"""Operators whose result begins as a tensor of the form of their input."""
STATISTICS = {
    "aten._native_batch_norm_legit_functional": {1: "weight", 2: "bias", 3: "running_mean"},
    "aten.native_layer_norm": {2: "weight", 3: "bias"},
    "aten.native_group_norm": {1: "weight", 2: "bias"},
}
"""Normalisations that keep mean and deviation in the type of the first of these arguments that is given, on a CPU."""
GROUPS_BACKWARD = "aten.native_group_norm_backward"
"""The gradient of its input is kept in the type of the input (argument 1) on a CPU."""
BAGS = "aten._embedding_bag"
"""Its second result (offsets) has room for one number more on a CPU."""


def retained_bytes(call: Call, slot: int, types: Mapping[str, TensorType]) -> int:
    """Bytes of the memory behind a result of ``call``.

    Args:
        call: The call.
        slot: Which of its outputs; not one that is left out.
        types: Types of tensors by name.
    """
    made = types[call.made_at(slot)]
    shown = made.bytes if made.storage_bytes is None else made.storage_bytes
    first, second = (_type(call.argument(k, name), types) for k, name in ((0, "self"), (1, "target")))
    if call.op in REDUCED and call.argument(REDUCED[call.op], "reduction", 1) != 0 and first and second:
        pairs = zip_longest(reversed(first.shape), reversed(second.shape), fillvalue=1)
        return max(shown, math.prod([a if b == 1 else b for a, b in pairs]) * made.itemsize)
    if call.op in RESHAPED and first:
        return max(shown, math.prod(first.shape) * first.itemsize)  # a copy of it, whatever its strides
    if call.op == BAGS and slot == 1 and 0 not in made.shape and made.device == "cpu":
        return shown + made.itemsize
    like = retained_like(call, slot, types)
    return shown if like is None else shown // made.itemsize * types[like].itemsize


def retained_like(call: Call, slot: int, types: Mapping[str, TensorType]) -> str | None:
    """The argument of ``call`` that has the type in which a result is kept; None if that is the result's own.

    What is kept in another type was seen on a CPU alone, so a file that does not say its device gets no such rule.
    """
    if types[call.made_at(slot)].device != "cpu":
        return None
    candidates: list[object] = []
    if call.op in STATISTICS and slot in {1, 2}:
        candidates = [call.argument(k, name) for k, name in STATISTICS[call.op].items()]
    elif call.op == GROUPS_BACKWARD and slot == 0:
        candidates = [call.argument(1, "input")]
    return next((argument.name for argument in candidates if isinstance(argument, Ref)), None)


def _type(argument: object, types: Mapping[str, TensorType]) -> TensorType | None:
    return types.get(argument.name) if isinstance(argument, Ref) else None
