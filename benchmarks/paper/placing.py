"""Offsets in memory for the values of a schedule: the size of one block of memory in which all have a fixed place.

The best such block is hard to find (dynamic storage allocation). Here the largest value is placed first, each at the
lowest offset that is free while it lives (Pisarchyk and Lee, Efficient memory management for deep neural net inference,
2020, greedy by size). The peak of live bytes is a lower bound.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np


def placed_bytes(graph: Any, computes: Sequence[int]) -> int:
    """The size of the block, without fixed memory."""
    lives = lifetimes(graph, computes)
    return max((place + life[2] for place, life in zip(offsets(lives), lives, strict=True)), default=0)


def lifetimes(graph: Any, computes: Sequence[int]) -> list[tuple[int, int, int]]:
    """First and last compute during which each instance of a value is resident, and its bytes; none without bytes."""
    from remat_cli.plan.derive import derive
    from remat_cli.plan.model import Allocate, Compute, Deallocate

    begun: dict[str, tuple[int, int]] = {}
    found: list[tuple[int, int, int]] = []
    step = 0  # the compute that comes next
    for statement in derive(graph, computes):
        if isinstance(statement, Allocate):
            begun[statement.register] = (step, graph.size[statement.value])
        elif isinstance(statement, Compute):
            step += 1
        elif isinstance(statement, Deallocate):
            first, size = begun.pop(statement.register)
            found.append((first, step - 1, size))
    found += [(first, len(computes), size) for first, size in begun.values()]
    return [life for life in found if life[2]]


def offsets(lives: Sequence[tuple[int, int, int]]) -> list[int]:
    """The lowest free offset of each life, the largest placed first."""
    order = sorted(range(len(lives)), key=lambda k: (-lives[k][2], lives[k][0]))
    first, last, size = (np.array([lives[k][part] for k in order], dtype=np.int64) for part in range(3))
    offset = np.zeros(len(order), dtype=np.int64)
    for k in range(len(order)):
        beside = np.flatnonzero((first[:k] <= last[k]) & (last[:k] >= first[k]))
        place = 0
        for other in beside[np.argsort(offset[beside], kind="stable")]:
            if offset[other] - place >= size[k]:
                break
            place = max(place, int(offset[other] + size[other]))
        offset[k] = place
    found = [0] * len(order)
    for k, place in zip(order, offset, strict=True):
        found[k] = int(place)
    return found
