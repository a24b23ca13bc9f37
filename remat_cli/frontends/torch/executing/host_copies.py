"""Copies of tensors to host memory and back, storage by storage.

On a CPU the copies are real and nothing overlaps. Storages are copied whole, so that the tensors that come back have
the same sizes, strides and offsets, and share storages as before: operators cannot tell them from the old ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from remat_cli.frontends.torch.private import storage_identity

_Part = tuple[int, Any, int, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class OnHost:
    """The tensors of a value in host memory.

    Attributes:
        storages: A copy of each storage.
        parts: For each tensor its storage, and its type, offset, size and stride; None for a result that the operator
            was not asked for.
    """

    storages: tuple[Any, ...]
    parts: tuple[_Part | None, ...]


def to_host(tensors: Sequence[Any]) -> OnHost:
    """Copy the storages of ``tensors``."""
    numbers: dict[int, int] = {}
    storages: list[Any] = []
    parts: list[_Part | None] = []
    for tensor in tensors:
        if tensor is None:
            parts.append(None)
            continue
        storage, place = tensor.untyped_storage(), storage_identity(tensor)
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
        None if part is None else torch.empty(0, dtype=part[1], device=device).set_(storages[part[0]], *part[2:])
        for part in kept.parts
    ]
