"""Lets torchvision load where its compiled operators do not: its wheels are built for CUDA, PyTorch here for a CPU.

Import this before torchvision or timm. If the operators cannot be loaded, ``nms`` is defined in Python; torchvision
itself has Python code for ``roi_align``. Detection needs no others.
"""

import ctypes
import importlib.util
from pathlib import Path
from typing import Any

import torch


def _loads() -> bool:
    """Whether torchvision's compiled operators load in this process."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return False
    try:
        for library in Path(found.origin).parent.glob("_C*.so"):
            ctypes.CDLL(str(library))
    except OSError:
        return False
    return True


def _nms(boxes: Any, scores: Any, iou_threshold: float) -> Any:
    """Indices of the boxes to keep: the best first, without those that overlap a better one."""
    order = scores.argsort(descending=True, stable=True)
    corners, area = boxes[order], (boxes[order, 2] - boxes[order, 0]) * (boxes[order, 3] - boxes[order, 1])
    low = torch.maximum(corners[:, None, :2], corners[None, :, :2])
    high = torch.minimum(corners[:, None, 2:], corners[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(2)
    overlaps = shared / (area[:, None] + area[None, :] - shared) > iou_threshold
    kept = torch.ones(len(order), dtype=torch.bool)
    for k in range(len(order)):
        if kept[k]:
            kept[k + 1 :] &= ~overlaps[k, k + 1 :]
    return order[kept]


if not _loads():
    _LIBRARY = torch.library.Library("torchvision", "DEF")
    _LIBRARY.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _LIBRARY.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # only looked up
    _LIBRARY.impl("nms", _nms, "CPU")

    import torchvision.ops.boxes

    torchvision.ops.boxes._assert_has_ops = lambda: None
