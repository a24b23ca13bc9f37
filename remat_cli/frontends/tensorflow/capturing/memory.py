"""How many bytes operations that run one after another need besides what they read. Knows nothing of TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def highest(steps: Sequence[tuple[Sequence[int], Sequence[tuple[int, int]]]], held: frozenset[int]) -> int:
    """Most bytes at once of what a sequence of operations makes, while each of them runs.

    Args:
        steps: For each operation the memory that it reads, by name, and the name and bytes of each that it makes.
        held: Names that live to the end.
    """
    last: dict[int, int] = {}
    for k, (reads, makes) in enumerate(steps):
        for name in reads:
            last[name] = k
        for name, _ in makes:
            last[name] = k
    live: dict[int, int] = {}
    most = 0
    for k, (_, makes) in enumerate(steps):
        live |= dict(makes)
        most = max(most, sum(live.values()))
        live = {name: size for name, size in live.items() if name in held or last[name] > k}
    return most


def no_remat_peak(sizes: Mapping[int, int], steps: Sequence[tuple[Sequence[int], Sequence[int]]]) -> int:
    """Most bytes at once if operations run in this order and everything is freed after its last use.

    Args:
        sizes: Bytes by name.
        steps: For each operation the names that it reads and makes.
    """
    return highest([(reads, [(name, sizes[name]) for name in makes]) for reads, makes in steps], frozenset())
