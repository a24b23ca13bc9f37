"""Windows of the retention MILP: free a part of the best schedule, hold the rest, and solve."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from remat_cli.mip import Bools
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.retention.solving import Retention

_WINDOW_S = 5.0
_SHARE = 1 / 6
_NARROWEST = 8
_GUIDED = 0.15
"""Share of windows that the linear relaxation chooses."""


@dataclass(slots=True)
class Windows:
    """Frees a part of the best schedule and solves for it, again and again.

    Attributes:
        best: The schedule to improve.
        model: The model to take windows of.
        rng: Chooses them.
        share: Width of a window, as a share of all nodes; adapts to what the solver can do in the time for one.
    """

    best: Incumbent
    model: Retention
    rng: random.Random
    share: float = _SHARE

    def run(self, rounds: int) -> bool:
        """Try ``rounds`` windows; whether one of them helped."""
        before = self.best.advancing_cost
        for _ in range(rounds):
            if self.best.over() or self.best.advancing is None:
                break
            self.best.report("searching windows")
            self.model = self.model.holding_best()
            width = max(_NARROWEST, round(self.share * len(self.best.graph.nodes)))
            control = self.best.step(_WINDOW_S, 0.5)
            better = self.model.improve(self._window(width), control)
            if control.out_of_time():
                self.share = max(_SHARE / 8, self.share * 0.7)
            elif not better:
                self.share = min(0.5, self.share * 1.2)
        return self.best.advancing_cost < before

    def _window(self, width: int) -> Bools:
        """Columns to free: where the relaxation differs, or a run of stages or of nodes with all that happens to it."""
        if self.rng.random() < _GUIDED and (undecided := self.model.undecided()) is not None:
            return undecided
        stated, columns = self.model.stated, self.model.compiled.column_of
        first = self.rng.randrange(max(1, len(stated.graph.nodes) - width))
        inside = range(first, first + width)
        by_stage = self.rng.random() < 0.5
        free = np.zeros(self.model.model.columns, dtype=np.bool_)
        for (t, i), var in stated.R.items():
            if (t if by_stage else i) in inside:
                free[columns[var]] = True
        for v, gaps in enumerate(stated.gaps):
            maker = stated.graph.producer[v] in inside
            for k, var in enumerate(gaps.kept):
                touched = gaps.events[k] < inside.stop and gaps.events[k + 1] >= inside.start
                if touched if by_stage else maker:
                    free[columns[var]] = True
        return free
