"""The least costs of the segments of a chain: for every number of reserved units, or for every reachable amount.

A programme over segments has a state for every amount of memory that is taken when a segment begins. Few amounts are
reachable: sums of the values kept at lower levels. If many sizes are equal, as in most networks, the amounts are so few
that the programme can be exact to the byte, at a hundredth of the work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from remat_cli.mip import Floats, Ints

_TURN = 1_000
"""Fixed work per segment, in sums."""


class Table(Protocol):
    """The least cost of every segment (l, r] for every amount m that is reserved when it begins."""

    def look(self, low: Ints, r: Ints, m: Ints) -> Floats:
        """The costs of segments, each with its own amount; infinite for those that do not fit."""


@dataclass(frozen=True, slots=True, eq=False)
class SegmentArrays:
    """The arguments of ``kernels.segments.fill_visits``, which describes them."""

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
    def of(cls, segments: SegmentArrays, most_work: float) -> Reserved | None:
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


def _admitted(segments: SegmentArrays) -> Ints:
    """int64[N + 1, N + 1]: the most that may be reserved at (l, k) if k is kept and a level above is visited."""
    n = len(segments.prefix) - 1
    level = np.arange(n + 1)
    visited = segments.top == level
    visit = np.where(visited, segments.visit, np.int64(-1))
    above = np.append(np.maximum.accumulate(visit[::-1])[::-1][1:], -1)  # of the levels above each
    most = np.minimum(segments.sweep, np.minimum(above, segments.width - 1)[None, :] - segments.hold)
    admitted: Ints = np.where(visited[None, :], np.minimum(most, segments.visit[None, :]), most)
    return admitted


def fill(segments: SegmentArrays, reserved: Reserved) -> Sparse:
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
