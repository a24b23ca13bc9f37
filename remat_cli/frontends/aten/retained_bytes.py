"""Results that keep more memory than their type and shape say.

These were found by running the operators on the samples of PyTorch's own tests (``op_db``, float32 and bfloat16, on a
CPU) and comparing real with fake tensors. No other operator there kept more than its fake tensor said.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from remat_cli.frontends.aten.program import Call, Ref, TensorType

REDUCED = {
    "aten.mse_loss": 2,
    "aten.smooth_l1_loss": 2,
    "aten.soft_margin_loss": 2,
    "aten.binary_cross_entropy": 3,
}
"""Losses that write one number per element, then their mean or sum into the same memory; position of ``reduction``."""
RESHAPED = ("aten.im2col", "aten.col2im")
"""Operators whose result keeps the memory of a copy of their input."""
STATISTICS = {
    "aten._native_batch_norm_legit_functional": {1: "weight", 2: "bias", 3: "running_mean"},
    "aten.native_layer_norm": {2: "weight", 3: "bias"},
    "aten.native_group_norm": {1: "weight", 2: "bias"},
}
"""Normalisations that, on a CPU, keep mean and deviation in the type of the first of these arguments that is given."""
GROUPS_BACKWARD = "aten.native_group_norm_backward"
"""On a CPU, the gradient of its input is kept in the type of the input (argument 1)."""
BAGS = "aten._embedding_bag"
"""On a CPU, its second result (offsets) has room for one number more."""


def retained_bytes(call: Call, slot: int, types: Mapping[str, TensorType]) -> int:
    """Bytes of the memory behind the output ``slot`` of a call; one that is not left out."""
    made = types[call.made_at(slot)]
    shown = made.bytes if made.storage_bytes is None else made.storage_bytes
    first, second = (_type(call.argument(k, name), types) for k, name in ((0, "self"), (1, "target")))
    if call.op in REDUCED and call.argument(REDUCED[call.op], "reduction", 1) != 0 and first and second:
        return max(shown, broadcast_elements(first.shape, second.shape) * made.itemsize)
    if call.op in RESHAPED and first:
        return max(shown, math.prod(first.shape) * first.itemsize)  # a copy of it, whatever its strides
    if call.op == BAGS and slot == 1 and 0 not in made.shape and made.device == "cpu":
        return shown + made.itemsize
    like = retained_like(call, slot, types)
    return shown if like is None else shown // made.itemsize * types[like].itemsize


def broadcast_elements(first: Sequence[int], second: Sequence[int]) -> int:
    """Number of elements of what an operator computes element by element from tensors of two shapes."""
    pairs = zip_longest(reversed(first), reversed(second), fillvalue=1)
    return math.prod([a if b == 1 else b for a, b in pairs])


def retained_like(call: Call, slot: int, types: Mapping[str, TensorType]) -> str | None:
    """The argument of ``call`` whose element type a result is kept in; None if it is the result's own type.

    Results in another type were observed only on a CPU, so the rule is not applied if the device is unknown.
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
