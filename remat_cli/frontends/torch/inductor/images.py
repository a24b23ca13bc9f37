"""Lays out images with channels last in both halves of a step on a CPU.

Inductor does so in a graph that has a convolution. In a backward graph that computes none again, it copies what the
gradients of depthwise convolutions read into other layouts: the step takes three more images, and more time.
"""

from __future__ import annotations

from typing import Any

from remat_cli.frontends.torch.inductor.loops import LIMIT
from remat_cli.frontends.torch.private import channels_last_where

_IMAGE_DIMS = 4


def keep_channels_last() -> None:
    """From now on, graphs that a plan has made keep images with channels last if they have depthwise gradients."""
    channels_last_where(_has_depthwise_gradients)


def _has_depthwise_gradients(module: Any) -> bool:
    """Whether a plan has made a graph module that computes gradients of depthwise convolutions on a CPU, by oneDNN."""
    import torch

    if LIMIT not in module.meta or not torch.backends.mkldnn.is_available():
        return False
    found = module.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution_backward.default)
    weights = [node.args[2].meta["val"] for node in found]
    return all(weight.device.type == "cpu" for weight in weights) and any(
        weight.dim() == _IMAGE_DIMS and weight.shape[1] == 1 for weight in weights
    )
