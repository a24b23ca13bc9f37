"""Windows of the retention MILP: free a part of the incumbent, fix the rest, and solve.

A large neighbourhood search (Shaw, "Using constraint programming and local search methods to solve vehicle routing
problems", CP 1998). Columns in which relaxation and incumbent differ are those of relaxation induced neighbourhoods
(Danna, Rothberg, Le Pape, Mathematical Programming 102, 2005).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from remat_cli.mip import Bools
from remat_cli.strategies.engine import Engine
from remat_cli.strategies.retention.solving import Retention

_WINDOW_S = 5.0
"""Most seconds for one window. Untuned."""
_ROUNDING_SHARES, _ROUNDING_S = (1.0, 0.97, 0.9), 20.0
"""Shares of the budget for rounding the relaxation to a first schedule, and most seconds for that. Untuned."""
_SHARE = 1 / 6
"""First width of a window, as a share of all nodes. Untuned."""
_NARROWEST = 8
"""Least width of a window, in nodes. Untuned."""
_GUIDED = 0.15
"""Share of windows that the linear relaxation chooses. Untuned."""


@dataclass(slots=True)
class Windows(Engine):
    """Frees one part of the incumbent after the other and solves for it.

    Attributes:
        rng: Chooses windows.
        model: The model of which windows are taken.
        share: Width of a window, as a share of all nodes; adapts to what the solver finishes in its time.
    """

    uses_solver: ClassVar[bool] = True

    rng: random.Random = field(default_factory=random.Random)
    model: Retention | None = None
    share: float = _SHARE

    def __post_init__(self) -> None:
        """Seed the choice of windows."""
        self.rng.seed(self.incumbent.context.seed)

    def work(self, rounds: int = 3, depth: float = 2.0) -> bool:
        """Try ``rounds`` windows; whether the best frontier-advancing schedule got cheaper.

        Args:
            rounds: Number of windows.
            depth: Depth of the model's support; the model is stated at the first turn.
        """
        incumbent = self.incumbent
        if self.model is None:
            self.model = self._stated(depth)
        before = incumbent.advancing_cost
        for _ in range(rounds):
            if incumbent.over() or incumbent.advancing is None:
                break
            incumbent.report("searching windows")
            self.model = self.model.holding_best()
            width = max(_NARROWEST, round(self.share * len(incumbent.graph.nodes)))
            control = incumbent.step(_WINDOW_S, 0.5)
            better = self.model.improve(self._window(self.model, width), control)
            # A window that times out is too wide. One that the solver finishes without a gain is too narrow.
            if control.out_of_time():
                self.share = max(_SHARE / 8, self.share * 0.7)
            elif not better:
                self.share = min(0.5, self.share * 1.2)
        return incumbent.advancing_cost < before

    def _stated(self, depth: float) -> Retention:
        """The model; without a schedule to search around, its relaxation is rounded first."""
        model = Retention.over(self.incumbent, depth)
        if self.incumbent.advancing is None:
            self.incumbent.report("rounding the linear relaxation")
            model.round_relaxation(_ROUNDING_SHARES, self.incumbent.step(_ROUNDING_S, 0.2))
        return model.holding_best()

    def _window(self, model: Retention, width: int) -> Bools:
        """Columns to free: where the relaxation differs, or all columns of a run of stages or of a run of nodes."""
        if self.rng.random() < _GUIDED and (undecided := model.undecided()) is not None:
            return undecided
        stated = model.stated
        first = self.rng.randrange(max(1, len(stated.graph.nodes) - width))
        inside = range(first, first + width)
        by_stage = self.rng.random() < 0.5
        free = np.zeros(model.model.columns, dtype=np.bool_)
        for (t, i), var in stated.R.items():
            if (t if by_stage else i) in inside:
                free[var] = True
        for v, gaps in enumerate(stated.gaps):
            maker = stated.graph.producer[v] in inside
            for k, var in enumerate(gaps.kept):
                touched = gaps.events[k] < inside.stop and gaps.events[k + 1] >= inside.start
                if touched if by_stage else maker:
                    free[var] = True
        return free
