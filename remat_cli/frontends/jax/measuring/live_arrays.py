"""Counts the bytes of all live arrays of JAX, by buffer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class LiveArrays:
    """Counts the bytes of arrays that were made after this object was, whoever holds them.

    Attributes:
        known: The buffers that were there before.
        peak_bytes: The most bytes seen.
    """

    known: frozenset[int] = field(default_factory=lambda: frozenset(buffers(_live())))
    peak_bytes: int = 0

    def __call__(self, made: Sequence[Any]) -> None:
        """Look at all arrays of the process; ``made`` are the newest."""
        sizes = {at: size for at, size in buffers(_live()).items() if at not in self.known}
        self.peak_bytes = max(self.peak_bytes, sum(sizes.values()))


def buffers(arrays: Iterable[Any]) -> dict[int, int]:
    """Bytes of the buffers of arrays, by their addresses; arrays may share one."""
    return {array.unsafe_buffer_pointer(): int(array.nbytes) for array in arrays if array.nbytes}


def _live() -> list[Any]:
    import jax

    return [array for array in jax.live_arrays() if not array.is_deleted()]
