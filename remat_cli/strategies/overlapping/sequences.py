"""Sequences that the engines for collectives share: those to start from, and the best."""

from __future__ import annotations

from collections.abc import Sequence

from remat_cli.kernels import compiling
from remat_cli.strategies.base import Found, Schedule
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.overlapping.walker import Timed, Walker

_STARTS = 3


class Sequences:
    """Timed sequences of one incumbent.

    Attributes:
        incumbent: Takes every sequence that fits and may be better.
        walker: Times and anneals sequences.
        best: The quickest sequence within the budget.
        starts: The sequences that exceed the budget least, and of those the quickest.
        waiting: Sequences that were suggested before the loops were compiled.
    """

    def __init__(self, incumbent: Incumbent) -> None:
        self.incumbent = incumbent
        self.walker = Walker(incumbent.graph, incumbent.budget_bytes, incumbent.context.seed)
        self.best: Timed | None = None
        self.starts: list[Timed] = []
        self.waiting: list[tuple[int, ...]] = []
        self._seen: set[tuple[int, ...]] = set()

    def follow(self) -> None:
        """Take the incumbent, the schedule with the lowest peak, and what waited for compiled loops."""
        waiting, self.waiting = self.waiting, []
        for steps in waiting:
            self.suggest(steps)
        best = self.incumbent.best
        for schedule in (None if best is None else best.schedule, self.incumbent.lowest):
            if schedule is not None:
                self.suggest(schedule.computes)

    def suggest(self, steps: Sequence[int]) -> None:
        """Consider a sequence, and the same with collectives issued as early as is worth it.

        Before the loops are compiled, the sequence is only offered as it is.
        """
        if tuple(steps) in self._seen:
            return
        if not compiling.ready("overlapping"):
            if tuple(steps) not in self.waiting:
                self.waiting.append(tuple(steps))
                self.incumbent.take(Found(Schedule(tuple(steps))))
            return
        self._seen.add(tuple(steps))
        timed = self.walker.timed(steps)
        if timed is not None:
            self.take(self.walker.issued_early(timed))

    def take(self, timed: Timed) -> None:
        """Consider a sequence: as a start, and as the incumbent if it fits."""
        if timed not in self.starts:
            self.starts = sorted([*self.starts, timed], key=lambda t: (t.excess_bytes, t.time))[:_STARTS]
        if timed.excess_bytes == 0 and (self.best is None or timed.time < self.best.time):
            self.best = timed
            self.incumbent.take(Found(Schedule(timed.steps)))
