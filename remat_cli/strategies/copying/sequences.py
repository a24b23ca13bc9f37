"""The sequences that the engines of a search with copies share: the best one, and starts for annealing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from remat_cli.strategies.base import Found, Schedule
from remat_cli.strategies.copying.walker import Timed, Walker, steps_of
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.objective import Time


class Moves(NamedTuple):
    """What a search may do: copy values to the host, and compute nodes again."""

    copying: bool = True
    computing: bool = True


class Sequences:
    """Timed sequences of one incumbent.

    Attributes:
        incumbent: Takes every sequence that fits and may be better.
        walker: Times and anneals sequences.
        best: The quickest sequence within the budget.
        starts: The two sequences that exceed the budget least, and of those the quickest.
        drafts: Rounded solutions of models since the last annealing.
        lowest: The sequence that exceeds the budget least.
    """

    def __init__(self, incumbent: Incumbent) -> None:
        graph, objective = incumbent.graph, incumbent.objective
        assert isinstance(objective, Time)
        room_bytes = incumbent.budget_bytes - graph.fixed_memory
        self.incumbent = incumbent
        self.walker = Walker(graph, room_bytes, objective.host, incumbent.context.seed)
        self.best: Timed | None = None
        self.starts: list[Timed] = []
        self.drafts: list[Timed] = []
        self.lowest: Timed | None = None
        self._seen: set[Schedule] = set()

    def follow(self) -> None:
        """Take the incumbent, with its copies timed anew, and the schedule with the lowest peak."""
        best = self.incumbent.best
        for schedule in (None if best is None else best.schedule, self.incumbent.lowest):
            if schedule is not None and schedule not in self._seen:
                self._seen.add(schedule)
                timed = self.walker.timed(steps_of(self.incumbent.graph, schedule))
                if timed is not None:
                    self.take(timed)

    def suggest(self, steps: Sequence[int], allowed: Moves) -> None:
        """Consider a rounded solution, within the budget or not, as a start."""
        timed = self.walker.timed(steps)
        if timed is None:
            return
        once = len(timed.schedule.computes) == len(self.incumbent.graph.nodes)
        if (allowed.copying or timed.schedule.copying is None) and (allowed.computing or once):
            self.take(timed)
            self.drafts.append(timed)

    def take(self, timed: Timed) -> None:
        """Consider a sequence: as a start, and as the incumbent if it fits."""
        if not math.isfinite(timed.time):  # the link is too slow for numbers
            return
        if self.lowest is None or timed.excess_bytes < self.lowest.excess_bytes:
            self.lowest = timed
        if timed not in self.starts:
            self.starts = sorted([*self.starts, timed], key=lambda t: (t.excess_bytes, t.time))[:2]
        if timed.excess_bytes == 0 and (self.best is None or timed.time < self.best.time):
            self.keep(timed)

    def keep(self, timed: Timed) -> None:
        """Make a sequence within the budget the best one here, and offer it to the incumbent."""
        self.best = timed
        self._seen.add(timed.schedule)
        self.incumbent.take(Found(timed.schedule))
