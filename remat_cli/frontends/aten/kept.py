"""Results that keep more memory than their shapes say; the frontend for PyTorch found them (its ``hidden.py``)."""

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


def kept_bytes(call: Call, made: TensorType, types: Mapping[str, TensorType]) -> int:
    """Bytes of the memory behind a result of ``call``.

    Args:
        call: The call.
        made: Type of the result.
        types: Types of tensors by name.
    """
    first, second = (_type(call.argument(k, name), types) for k, name in ((0, "self"), (1, "target")))
    if call.op in REDUCED and call.argument(REDUCED[call.op], "reduction", 1) != 0 and first and second:
        pairs = zip_longest(reversed(first.shape), reversed(second.shape), fillvalue=1)
        return max(made.bytes, math.prod(a if b == 1 else b for a, b in pairs) * made.itemsize)
    if call.op in RESHAPED and first:
        return max(made.bytes, first.elements * first.itemsize)
    return made.bytes


def _type(argument: object, types: Mapping[str, TensorType]) -> TensorType | None:
    return types.get(argument.name) if isinstance(argument, Ref) else None
