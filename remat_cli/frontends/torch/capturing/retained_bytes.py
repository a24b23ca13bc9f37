"""What operators return where the fake tensor says less than is true.

Found by running operators on the samples of PyTorch's own tests (``op_db``, float32 and bfloat16, on a CPU) beside
their fake selves; no other operator there said less than was true.
"""

from __future__ import annotations

import math
from typing import Any

from remat_cli.frontends.torch.private import schema
from remat_cli.frontends.torch.tensors import dense_bytes, storage_bytes

_REDUCED = (
    "aten.mse_loss.default",
    "aten.smooth_l1_loss.default",
    "aten.soft_margin_loss.default",
    "aten.binary_cross_entropy.default",
)
"""Losses that write one number per element, and put their mean or sum into the same memory."""
_RESHAPED = ("aten.im2col.default", "aten.col2im.default")
"""Operators whose result begins as a tensor of the form of their input."""
_STATISTICS = (
    "aten._native_batch_norm_legit_functional.default",
    "aten.native_layer_norm.default",
    "aten.native_group_norm.default",
)
"""Normalisations on a CPU keep mean and deviation in the type of their weights, or else of what they update."""
_GROUPS_BACKWARD = "aten.native_group_norm_backward.default"
_BAGS = "aten._embedding_bag.default"


def kept_bytes(node: Any, item: int | None, tensor: Any) -> int:
    """Bytes of the memory behind a result of the operation of an FX node; more than ``tensor`` needs for some.

    Args:
        node: The FX node.
        item: Position of the result in what is returned; None for one on its own.
        tensor: The fake result.
    """
    name, shown = str(node.target), storage_bytes(tensor)
    if name in _REDUCED and _argument(node, "reduction") != 0:
        elements = math.prod(_broadcast(*(a.meta["val"].shape for a in node.args[:2])))
        return max(shown, elements * int(tensor.dtype.itemsize))
    if name in _RESHAPED:
        return max(shown, dense_bytes(node.args[0].meta["val"]))
    if name == _BAGS and item == 1 and tensor.numel() and tensor.device.type == "cpu":
        return shown + int(tensor.dtype.itemsize)
    return shown // int(tensor.dtype.itemsize) * int(kept_dtype(node, item, tensor).itemsize)


def kept_dtype(node: Any, item: int | None, tensor: Any) -> Any:
    """Type of a result of the operation of an FX node; arguments as for :func:`kept_bytes`."""
    if tensor.device.type != "cpu":
        return tensor.dtype
    found = None
    if str(node.target) in _STATISTICS and item in {1, 2}:
        found = next(filter(None, (_argument(node, name) for name in ("weight", "bias", "running_mean"))), None)
    elif str(node.target) == _GROUPS_BACKWARD and item == 0:
        found = _argument(node, "input")
    return tensor.dtype if found is None else found.meta["val"].dtype


def _argument(node: Any, name: str) -> Any:
    """An argument of the call of an FX node, its default if it is not given."""
    for k, argument in enumerate(schema(node.target).arguments):
        if argument.name == name:
            return node.kwargs.get(name, node.args[k] if k < len(node.args) else argument.default_value)
    return None


def _broadcast(*shapes: Any) -> tuple[int, ...]:
    import torch

    return tuple(torch.broadcast_shapes(*shapes))
