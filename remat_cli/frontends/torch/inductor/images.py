"""Lays out images as a plan says, in both halves of a step on a CPU.

Inductor lays out images with channels last in a graph that has a convolution. In a backward graph that computes none
again, it copies what the gradients of depthwise convolutions read into other layouts: the step takes three more images,
and oneDNN copies two more. With channels last it needs none of that, but for kernels above 3x3 oneDNN adds up the
gradient in many parts; then the plan has contiguous copies.

Inductor also copies the inputs of a step that the backward graph reads, if convolutions read them at all. A plan has
such copies where they are needed.
"""

from __future__ import annotations

from typing import Any

from remat_cli.frontends.torch.capturing.image_layouts import LAYOUT, PARTS, has_large_kernel, is_depthwise
from remat_cli.frontends.torch.inductor.loops import LIMIT
from remat_cli.frontends.torch.private import channels_last_unless, channels_last_where
from remat_cli.frontends.torch.tensors import dense_bytes

_COPIES = 5
"""Images that are copied for a depthwise gradient in other layouts: three by Inductor, two by oneDNN."""


def keep_layouts() -> None:
    """From now on, graphs that a plan has made keep images with channels last, but for what the plan says otherwise."""
    channels_last_where(_take_less)
    channels_last_unless(_is_told)


def _is_told(module: Any, node: Any) -> bool:
    """Whether a plan has made a graph module and says in which layout a result is: as it is given, or copied."""
    if LIMIT not in module.meta:
        return False
    given = getattr(node.meta.get("val"), "device", None) if node.op == "placeholder" else None
    return LAYOUT in node.meta or (given is not None and given.type == "cpu")


def _take_less(module: Any) -> bool:
    """Whether a plan has made a graph module whose depthwise gradients, all on a CPU, take less with channels last."""
    import torch

    if LIMIT not in module.meta or not torch.backends.mkldnn.is_available():
        return False
    found = module.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution_backward.default)
    read = [node.args[:3] for node in found]
    depthwise = [nodes for nodes in read if is_depthwise(nodes[2])]
    if not depthwise or any(weight.meta["val"].device.type != "cpu" for _, _, weight in read):
        return False
    rest = [nodes[1:] for nodes in depthwise if any(LAYOUT not in node.meta for node in nodes[:2])]
    parts = [dense_bytes(weight.meta["val"]) * (PARTS if has_large_kernel(weight) else 1) for _, weight in rest]
    return max(parts, default=0) <= _COPIES * max((dense_bytes(image.meta["val"]) for image, _ in rest), default=0)
