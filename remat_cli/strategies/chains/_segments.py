"""The segments of a chain and their least costs, which the bound of ``levels`` and ``sweeps`` have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from remat_cli.mip import Floats, Ints

WORK_PER_S = 5e8
"""Steps of the innermost loop in a second, about."""
LONGEST_S = 2.0
"""Time that the programme is worth."""
_STATES = 3e7
"""Numbers that the table may have: 240 MB."""
_MOST_UNITS = 2_000
_FEW_SPLITS = 40_000
"""Up to so many splits plain Python is done before numba is loaded; 60 levels have about as many."""


@dataclass(frozen=True, slots=True)
class Units:
    """How bytes are counted: ``count`` units of ``bytes`` bytes hold the most that can be reserved."""

    bytes: int
    count: int

    @classmethod
    def of(
        cls, sizes: Sequence[int], most: int, n: int, others: Sequence[int] = (), *, seconds: float = LONGEST_S
    ) -> Units:
        """As fine as can be afforded.

        Args:
            sizes: Bytes of what can be reserved.
            most: Bytes that can be reserved at the same time.
            n: Number of levels.
            others: Bytes of what else has to be counted exactly, if possible.
            seconds: Time to afford for filling the table.
        """
        step = math.gcd(*sizes, *others) or 1
        affordable = max(1, min(_MOST_UNITS, int(WORK_PER_S * seconds / (n**3 / 6 + 1)), int(_STATES / (n + 1) ** 2)))
        needed = min(most, sum(sizes))
        step *= max(1, math.ceil(needed / step / affordable))
        return cls(step, needed // step + 1)


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """The arguments of ``_kernel.fill_visits``, where they are described."""

    prefix: Floats
    tail: Floats
    top: Ints
    hold: Ints
    sweep: Ints
    pending: Ints
    visit: Ints
    width: int

    def fill(self) -> Floats:
        """float64[N + 1, N + 1, width], the least cost of every segment."""
        if self._splits() <= _FEW_SPLITS:
            return self._fill_plainly()
        from remat_cli.strategies.chains._kernel import fill_visits

        filled: Floats = fill_visits(
            self.prefix, self.tail, self.top, self.hold, self.sweep, self.pending, self.visit, self.width
        )
        return filled

    def _splits(self) -> int:
        """Ways to split a segment, all segments together."""
        visited = np.flatnonzero(self.top == np.arange(len(self.top)))
        return int((visited * (visited + 1) // 2).sum())

    def _fill_plainly(self) -> Floats:
        """The same numbers as ``fill_visits`` without numba, which takes half a second to load."""
        n = len(self.prefix) - 1
        value = np.full((n + 1, n + 1, self.width), np.inf)
        nothing = np.zeros(self.width)
        top, visit, prefix = self.top.tolist(), self.visit.tolist(), self.prefix.tolist()
        for low in range(n, -1, -1):
            sweep, hold = self.sweep[low].tolist(), self.hold[low].tolist()
            for r in range(low + 1, n + 1):
                if top[r] != r:
                    continue
                row, pending = value[low, r], int(self.pending[r])
                for k in range(low + 1, r + 1):
                    shift = hold[k] if k < r else 0
                    end = 1 + min(sweep[k] - pending, self.width - 1 - shift, visit[k] if top[k] == k else self.width)
                    if end <= 0:
                        continue
                    once = prefix[k] - prefix[low] - (float(self.tail[r]) if k == r else 0.0)
                    left = value[low, top[k - 1]] if top[k - 1] > low else nothing
                    right = value[k, r] if k < r else nothing
                    cost = once + left[:end] + right[shift : shift + end]
                    np.minimum(row[:end], cost, out=row[:end])
        return value

    def order(self, value: Floats, reserved: int = 0) -> list[tuple[int, int, int]] | None:
        """The best splits in the order in which they are carried out, as (l, k, r); None if there is no way.

        A segment (l, r] sweeps from l to k and keeps it, carries out (k, r], visits k, and carries out (l, k - 1].

        Args:
            value: The table.
            reserved: Units that are taken from the start.
        """
        done: list[tuple[int, int, int]] = []
        todo = [(0, int(self.top[-1]), reserved)]
        while todo:
            low, r, m = todo.pop()
            if low >= r:
                continue
            if math.isinf(value[low, r, m]):
                return None
            k = low + 1 + int(np.argmin(self._costs(value, low, r, m)))
            done.append((low, k, r))
            todo.append((low, int(self.top[k - 1]), m))
            if k < r:
                todo.append((k, r, m + int(self.hold[low, k])))
        return done

    def _costs(self, value: Floats, low: int, r: int, m: int) -> Floats:
        """Cost of the segment (low, r] with m units reserved for every k in low + 1 .. r."""
        k = np.arange(low + 1, r + 1)
        shift = np.where(k < r, self.hold[low, k], 0)
        allowed = (m <= self.sweep[low, k] - self.pending[r]) & (m + shift < self.width)
        allowed &= (self.top[k] != k) | (m <= self.visit[k])
        before = self.top[k - 1]
        left = np.where(before > low, value[low, before, m], 0.0)
        right = np.where(k < r, value[k, r, np.where(allowed, m + shift, 0)], 0.0)
        costs: Floats = np.where(allowed, self.prefix[k] - self.prefix[low] + left + right, np.inf)
        return costs


def prefix_sums(costs: Sequence[float]) -> Floats:
    """float64[N + 1]."""
    return np.concatenate([[0.0], np.cumsum(np.array(costs, dtype=np.float64))])


def highest_visited(visited: Sequence[int], n: int) -> Ints:
    """int64[n + 1]: for every level the highest visited one up to it, 0 if there is none."""
    top = np.zeros(n + 1, dtype=np.int64)
    top[list(visited)] = visited
    return np.maximum.accumulate(top)
