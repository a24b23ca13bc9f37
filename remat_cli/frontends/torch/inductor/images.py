"""Lays out images with channels last in both halves of a step on a CPU, where that takes less memory.

Inductor does so in a graph that has a convolution. In a backward graph that computes none again, it copies what the
gradients of depthwise convolutions read into other layouts: the step takes three more images, and oneDNN copies two
more. With channels last it needs none of that, but for kernels above 3x3 oneDNN adds up the gradient in many parts.
"""

from __future__ import annotations

from typing import Any

from remat_cli.frontends.torch.inductor.loops import LIMIT
from remat_cli.frontends.torch.private import channels_last_where
from remat_cli.frontends.torch.tensors import dense_bytes

_IMAGE_DIMS = 4
_COPIES = 5
"""Images that are copied for a depthwise gradient in other layouts: three by Inductor, two by oneDNN."""
_SMALL, _PARTS = 9, 257
"""Elements of the largest kernel whose gradient oneDNN adds up as it is, but for images of a few pixels; and what it
takes for others, in gradients of the weight. Both were measured with PyTorch 2.13 on an AMD EPYC."""


def keep_channels_last() -> None:
    """From now on, graphs that a plan has made keep images with channels last where depthwise gradients take less."""
    channels_last_where(_take_less)


def _take_less(module: Any) -> bool:
    """Whether a plan has made a graph module whose depthwise gradients, all on a CPU, take less with channels last."""
    import torch

    if LIMIT not in module.meta or not torch.backends.mkldnn.is_available():
        return False
    found = module.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution_backward.default)
    read = [[argument.meta["val"] for argument in node.args[1:3]] for node in found]
    depthwise = [pair for pair in read if pair[1].dim() == _IMAGE_DIMS and pair[1].shape[1] == 1]
    if not depthwise or any(weight.device.type != "cpu" for _, weight in read):
        return False
    parts = max(dense_bytes(w) * (_PARTS if w[0, 0].numel() > _SMALL else 1) for _, w in depthwise)
    return parts <= _COPIES * max(dense_bytes(image) for image, _ in depthwise)
