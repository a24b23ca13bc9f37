"""The binomial schedule of a chain, and its cost in closed form (Griewank and Walther, Algorithm 799, ACM TOMS 2000).

A chain has L steps; x_e is the state after e of them, and x_0 is stored. Reversing step e needs the state x_(e-1). With
s stored states, x_0 among them, it takes t(L, s) plain advances at least, see :func:`advances`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

MOST_RUNS = 1_000_000
"""Longest schedule to try, in runs. Untuned."""

Splits = Iterable[tuple[int, int, int]]
"""(l, k, r): with x_l stored, advance to x_k; the states l .. r are needed, r first. See ``Segments.order``."""


def advances(length: int, slots: int) -> int:
    """t(L, s): the fewest plain advances that reverse L steps with s stored states, x_0 among them.

    With r the least number for which beta(s, r) = C(s + r, s) >= L it is r L - beta(s + 1, r - 1); for example
    t(10, 1..9) = 45, 20, 15, 14, 13, 12, 11, 10, 9.

    Raises:
        ValueError: If there is no slot for x_0.
    """
    if length == 0:
        return 0
    if slots < 1:
        raise ValueError("reversing a step takes a slot for its input")
    r = _repetitions(length, slots)
    return r * length - _beta(slots + 1, r - 1)


def binomial(length: int, slots: int) -> Iterator[tuple[int, int, int]]:
    """The splits of the binomial schedule of L >= 1 steps with s >= 1 slots."""
    todo = [(0, length, slots)]
    while todo:
        start, steps, s = todo.pop()
        if steps == 1:
            continue  # x_start is there
        k = steps - 1 if s == 1 else _split(steps, s)
        yield start, start + k, start + steps - 1
        # First the steps after the checkpoint, then those before it.
        todo.append((start, k, s))
        if s > 1:
            todo.append((start + k, steps - k, s - 1))


def _split(length: int, slots: int) -> int:
    """The next checkpoint k: beta(s, r-2) <= k <= beta(s, r-1), beta(s-1, r-1) <= L - k <= beta(s-1, r)."""
    r = _repetitions(length, slots)
    lowest = max(1, _beta(slots, r - 2), length - _beta(slots - 1, r))
    highest = min(length - 1, _beta(slots, r - 1), length - _beta(slots - 1, r - 1))
    assert lowest <= highest
    return highest


def _repetitions(length: int, slots: int) -> int:
    """The least r with beta(s, r) >= L."""
    r = 0
    while _beta(slots, r) < length:
        r += 1
    return r


def _beta(slots: int, repetitions: int) -> int:
    """C(s + r, s): the longest chain that can be reversed with s slots if no step is advanced more than r times."""
    return math.comb(slots + repetitions, slots) if repetitions >= 0 else 0
