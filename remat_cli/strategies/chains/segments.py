"""The segments of a chain and their least costs, for both ``visits_bound`` and ``visits_schedule``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from remat_cli.mip import Floats, Ints
from remat_cli.strategies.chains.tables import Dense, Reserved, SegmentArrays, Table, fill

WORK_PER_S = 5e8
"""Approximate steps of the innermost loop per second."""
MOST_LEVELS = 1_000
"""Most levels of a recursion over visits, whose work grows with their third power."""
LONGEST_S = 2.0
"""Default time for the programme. Untuned."""
_STATES = 3e7
"""Most numbers in the table: 240 MB. Untuned."""
_MOST_UNITS = 2_000
_FEW_SPLITS = 40_000
"""Splits up to which plain Python finishes before numba is loaded: those of about 60 levels."""
_SUMS_PER_S, _MOST_SUMS = 2e8, 4e7
"""Approximate sums of NumPy per second, and the most for which numba is not loaded. Untuned."""


@dataclass(frozen=True, slots=True)
class Units:
    """The unit in which bytes are counted: ``count`` units of ``bytes`` bytes hold all that can be reserved."""

    bytes: int
    count: int

    @classmethod
    def of(
        cls, sizes: Sequence[int], most: int, n: int, others: Sequence[int] = (), *, seconds: float = LONGEST_S
    ) -> Units:
        """The smallest unit with which the table can be filled in time.

        Args:
            sizes: Bytes of the values that can be reserved.
            most: Most bytes that can be reserved at the same time.
            n: Number of levels.
            others: Further byte counts that the unit should divide, if possible.
            seconds: Time for filling the table.
        """
        step = math.gcd(*sizes, *others) or 1
        affordable = max(1, min(_MOST_UNITS, int(WORK_PER_S * seconds / (n**3 / 6 + 1)), int(_STATES / (n + 1) ** 2)))
        needed = min(most, sum(sizes))
        step *= max(1, math.ceil(needed / step / affordable))
        return cls(step, needed // step + 1)


@dataclass(frozen=True, slots=True, eq=False)
class Segments(SegmentArrays):
    """The segments of a chain, their least costs and their best splits."""

    def fill(self) -> Table:
        """The least cost of every segment."""
        if self._splits() <= _FEW_SPLITS:
            reserved = Reserved.of(self, math.inf)
            assert reserved is not None
            return fill(self, reserved)
        from remat_cli.kernels.segments import fill_visits

        n = len(self.prefix)
        value = np.full((n, n, self.width), np.inf)
        fill_visits(
            *(self.prefix, self.tail, self.top, self.hold, self.sweep, self.pending, self.visit),
            nothing=np.zeros(self.width),
            value=value,
        )
        return Dense(value)

    def _splits(self) -> int:
        """Number of ways to split a segment, over all segments."""
        visited = np.flatnonzero(self.top == np.arange(len(self.top)))
        return int((visited * (visited + 1) // 2).sum())

    def order(self, table: Table, reserved: int = 0) -> list[tuple[int, int, int]] | None:
        """The best splits in the order of execution, as (l, k, r); None if no schedule fits.

        A segment (l, r] sweeps from l to k and keeps k, executes (k, r], visits k, and executes (l, k - 1].

        Args:
            table: The least costs.
            reserved: Units reserved from the start.
        """
        done: list[tuple[int, int, int]] = []
        todo = [(0, int(self.top[-1]), reserved)]
        while todo:
            low, r, m = todo.pop()
            if low >= r:
                continue
            costs = self._costs(table, low, r, m)
            k = low + 1 + int(np.argmin(costs))
            if math.isinf(costs[k - low - 1]):
                return None
            done.append((low, k, r))
            todo.append((low, int(self.top[k - 1]), m))
            if k < r:
                todo.append((k, r, m + int(self.hold[low, k])))
        return done

    def _costs(self, table: Table, low: int, r: int, m: int) -> Floats:
        """Cost of the segment (low, r] with m units reserved for every k in low + 1 .. r."""
        k = np.arange(low + 1, r + 1)
        shift = np.where(k < r, self.hold[low, k], 0)
        allowed = (m <= self.sweep[low, k] - self.pending[r]) & (m + shift < self.width)
        allowed &= (self.top[k] != k) | (m <= self.visit[k])
        before = self.top[k - 1]
        costs = np.where(allowed, self.prefix[k] - self.prefix[low], np.inf)
        below, above = np.flatnonzero(allowed & (before > low)), np.flatnonzero(allowed & (k < r))
        costs[below] += table.look(np.full(len(below), low), before[below], np.full(len(below), m))
        costs[above] += table.look(k[above], np.full(len(above), r), m + shift[above])
        return costs


def filled(state: Callable[[Units], Segments], coarse: Units, seconds: float) -> tuple[Segments, Table]:
    """The programme with its table: exact to the byte if that takes about ``seconds`` at most, else in larger units.

    Args:
        state: States the programme in given units.
        coarse: Units that are large enough for the time.
        seconds: Time for filling the table.
    """
    exact = state(Units(1, coarse.bytes * coarse.count))
    reserved = Reserved.of(exact, min(_MOST_SUMS, _SUMS_PER_S * seconds))
    if reserved is not None:
        return exact, fill(exact, reserved)
    segments = state(coarse)
    return segments, segments.fill()


def prefix_sums(costs: Sequence[float]) -> Floats:
    """float64[N + 1]."""
    return np.concatenate([[0.0], np.cumsum(np.array(costs, dtype=np.float64))])


def highest_visited(visited: Sequence[int], n: int) -> Ints:
    """int64[n + 1]: for every level the highest visited one up to it, 0 if there is none."""
    top = np.zeros(n + 1, dtype=np.int64)
    top[list(visited)] = visited
    return np.maximum.accumulate(top)
