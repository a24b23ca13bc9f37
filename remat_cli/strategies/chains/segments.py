"""The segments of a chain and their least costs, for every number of reserved units or every reachable amount.

A programme over segments has a state for every amount of memory that is taken when a segment begins. Few amounts are
reachable: sums of the values kept at lower levels. If many sizes are equal, as in most networks, the amounts are so few
that the programme can be exact to the byte, at a hundredth of the work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from remat_cli.mip import Floats, Ints

# Doubling all constants of ``chains`` and ``repeated`` makes the gap larger, halving does not (benchmark ``ablation``).
WORK_PER_S = 5e8
"""Approximate steps of the innermost loop per second."""
MOST_LEVELS = 1_000
"""Most levels of a recursion over visits, whose work grows with their third power."""
LONGEST_S = 2.0
"""Default time for the programme."""
_STATES = 3e7
"""Most numbers in the table: 240 MB."""
_MOST_UNITS = 2_000
_FEW_SPLITS = 40_000
"""Splits up to which plain Python finishes before numba is loaded: those of about 60 levels."""
_SUMS_PER_S, _MOST_SUMS = 2e8, 4e7
"""Approximate sums of NumPy per second, and the most for which numba is not loaded."""
_TURN = 1_000
"""Fixed work per segment, in sums."""


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


class Table(Protocol):
    """The least cost of every segment (l, r] for every amount m that is reserved when it begins."""

    def look(self, low: Ints, r: Ints, m: Ints) -> Floats:
        """The costs of segments, each with its own amount; infinite for those that do not fit."""


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """The segments of a chain, their least costs and their best splits.

    Attributes: The arguments of ``kernels.segments.fill_visits``, which describes them.
    """

    prefix: Floats
    tail: Floats
    top: Ints
    hold: Ints
    sweep: Ints
    pending: Ints
    visit: Ints
    width: int
    starts: Ints = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    """Units that may be reserved from the start, ascending."""

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


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A table with a column for every number of units.

    Attributes:
        value: float64[N + 1, N + 1, width].
    """

    value: Floats

    def look(self, low: Ints, r: Ints, m: Ints) -> Floats:
        """See :class:`Table`."""
        costs: Floats = self.value[low, r, m]
        return costs


@dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """A table with a column for every level and every amount that may be reserved above it.

    Attributes:
        states: For every level l the amounts, ascending.
        start: The first column of every level.
        value: float64[N + 1, columns + 1], by r; the last column is infinite.
    """

    states: list[Ints]
    start: list[int]
    value: Floats

    def look(self, low: Ints, r: Ints, m: Ints) -> Floats:
        """See :class:`Table`."""
        columns = [self._column(*pair) for pair in zip(low.tolist(), m.tolist(), strict=True)]
        costs: Floats = self.value[r, columns]
        return costs

    def _column(self, low: int, m: int) -> int:
        states = self.states[low]
        at = int(np.searchsorted(states, m))
        return self.start[low] + at if at < len(states) and states[at] == m else -1


@dataclass(frozen=True, slots=True, eq=False)
class Reserved:
    """The amounts that may be reserved when a segment begins.

    Attributes:
        states: For every level l the amounts, ascending.
        start: The first column of every level.
        columns: Number of columns.
        after: For every level l int64[N - l, amounts]: the column of the amount when level l + 1 + i is kept too; the
            number of columns if that does not fit.
    """

    states: list[Ints]
    start: list[int]
    columns: int
    after: list[Ints]

    @classmethod
    def of(cls, segments: Segments, most_work: float) -> Reserved | None:
        """Find the amounts from the lowest level up; None if filling the table takes more than ``most_work`` sums."""
        n = len(segments.prefix) - 1
        states = [segments.starts]
        kept: list[list[tuple[int, Ints]]] = [[] for _ in range(n + 1)]
        work, admitted = 0.0, _admitted(segments)
        for k in range(1, n + 1):
            work += (n + 1 - k) * (n + 2 - k) / 2 * len(states[k - 1]) + _TURN * (n + 1 - k)
            if work > most_work:
                return None
            parts = []
            for low in range(k if k < n else 0):
                shift = segments.hold[low, k]
                count = int(states[low].searchsorted(admitted[low, k], side="right"))
                parts.append(states[low][:count] + shift)
            joined, inverse = np.unique(np.concatenate([np.zeros(0, np.int64), *parts]), return_inverse=True)
            ends = np.cumsum([len(part) for part in parts]).tolist()
            for low, (part, end) in enumerate(zip(parts, ends, strict=True)):
                kept[low].append((k, inverse[end - len(part) : end]))
            states.append(joined)
        start = np.cumsum([0, *(len(amounts) for amounts in states)]).tolist()
        after = []
        for low, amounts in enumerate(states):
            columns = np.full((n - low, len(amounts)), start[-1], dtype=np.int64)
            for k, inverse in kept[low]:
                columns[k - low - 1, : len(inverse)] = start[k] + inverse
            after.append(columns)
        return cls(states, start, start[-1], after)


def _admitted(segments: Segments) -> Ints:
    """int64[N + 1, N + 1]: the most that may be reserved at (l, k) if k is kept and a level above is visited."""
    n = len(segments.prefix) - 1
    level = np.arange(n + 1)
    visited = segments.top == level
    visit = np.where(visited, segments.visit, np.int64(-1))
    above = np.append(np.maximum.accumulate(visit[::-1])[::-1][1:], -1)  # of the levels above each
    most = np.minimum(segments.sweep, np.minimum(above, segments.width - 1)[None, :] - segments.hold)
    admitted: Ints = np.where(visited[None, :], np.minimum(most, segments.visit[None, :]), most)
    return admitted


def fill(segments: Segments, reserved: Reserved) -> Sparse:
    """The same numbers as those of ``kernels.segments.fill_visits``, for the reachable amounts."""
    n = len(segments.prefix) - 1
    value = np.full((n + 1, reserved.columns + 1), np.inf)
    top, pending = segments.top.tolist(), segments.pending.tolist()
    tail, prefix = segments.tail.tolist(), segments.prefix
    for low in range(n - 1, -1, -1):
        m, after = reserved.states[low], reserved.after[low]
        if not len(m):
            continue
        here = value[:, reserved.start[low] : reserved.start[low] + len(m)]
        once, sweep = (prefix[low + 1 :] - prefix[low]).tolist(), segments.sweep[low, low + 1 :]
        narrowest = np.minimum.accumulate(sweep).tolist()
        left = np.zeros((n - low, len(m)))
        for i, r in enumerate(range(low + 1, n + 1)):
            before = here[top[r - 1]] if top[r - 1] > low else 0.0
            left[i] = once[i] + before
            if top[r] != r:
                continue
            own = (once[i] - tail[r]) + (before + np.zeros(len(m)))
            own[m > min(int(sweep[i]) - pending[r], int(segments.visit[r]))] = np.inf
            if i:
                costs = value[r].take(after[:i])
                costs += left[:i]
                if m[-1] > narrowest[i] - pending[r]:
                    costs[m > (sweep[:i] - pending[r])[:, None]] = np.inf
                np.minimum(own, costs.min(axis=0), out=own)
            here[r] = own
    return Sparse(reserved.states, reserved.start, value)
