"""Copies of tensors to host memory and back, storage by storage.

On a CPU the copies are real and nothing overlaps. Storages are copied whole, so that the tensors that come back have
the same sizes, strides and offsets, and share storages as before: operators cannot tell them from the old ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class OnHost:
    """The tensors of a value in host memory.

    Attributes:
        storages: A copy of each storage.
        parts: For each tensor its storage, and its type, offset, size and stride.
    """

    storages: tuple[Any, ...]
    parts: tuple[tuple[int, Any, int, tuple[int, ...], tuple[int, ...]], ...]


def to_host(tensors: Sequence[Any]) -> OnHost:
    """Copy the storages of ``tensors``."""
    numbers: dict[int, int] = {}
    storages: list[Any] = []
    parts: list[tuple[int, Any, int, tuple[int, ...], tuple[int, ...]]] = []
    for tensor in tensors:
        storage = tensor.untyped_storage()
        place = storage._cdata
        if place not in numbers:
            numbers[place] = len(storages)
            storages.append(storage.clone() if storage.device.type == "cpu" else storage.cpu())
        parts.append(
            (numbers[place], tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))
        )
    return OnHost(tuple(storages), tuple(parts))


def from_host(kept: OnHost, device: str) -> list[Any]:
    """New tensors on ``device`` with what ``kept`` holds, which stays as it is."""
    import torch

    storages = [storage.clone() if device == "cpu" else storage.to(device=device) for storage in kept.storages]
    return [
        torch.empty(0, dtype=dtype, device=device).set_(storages[number], offset, size, stride)
        for number, dtype, offset, size, stride in kept.parts
    ]
