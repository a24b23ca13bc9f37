"""Schedules from relaxations: annealing from a schedule that costs little more than a bound but exceeds the budget.

Where budgets are tight, annealing from no-remat or from a published method ends far from the optimum: what must be
recomputed together with what, over half of the graph, is a choice that no short move changes. Relaxations make that
choice well: the model of crowded stages (see ``openers/crowded``), and the retention MILP before its in-stage rows are
stated, or rounded. Their schedules exceed the budget in some steps, and annealing at a price of excess repairs those.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from remat_cli.plan.liveness import cost_of
from remat_cli.plan.matrices import straightened
from remat_cli.strategies.engine import Engine

_TRIALS = 6
"""Runs that begin with the proposal. Which of its choices a run gives up is decided early and by chance: on `segnet` at
1.1 times its least peak, runs from one proposal ended between 40% and 68% over no-remat (single runs, not kept)."""
_PATIENCE = 3
"""Runs in a row after those that find nothing cheaper after which it ends. Untuned."""
_SLICES = 8
"""Slices of a run. Untuned."""
_TRIAL_SHARE = 0.4
"""Moves of a trial, relative to those of a later run. Untuned."""
_HEATS = (1.0, 0.5)
"""First temperatures of consecutive runs, in mean costs of a recomputation. Untuned."""
_COLD = 0.04
"""The last temperature of a run, relative to the first. Untuned."""
_PRICES = (3.0, 0.3, 1.0)
"""The first prices of a room of excess during one step in consecutive trials, relative to the overhead. Untuned."""
_CHEAPEST, _DEAREST = 1.0, 300.0
"""The lowest and the highest price when a later run begins. Untuned."""
_LEAST_OVERHEAD = 1e-4
_GUESS = 20
"""Least number of recomputations to divide the overhead by. Untuned."""


@dataclass(slots=True)
class Mending(Engine):
    """Makes the best proposed schedule fit (see ``Incumbent.propose``).

    Attributes:
        rng: Seeds the runs.
        wish: The proposal that the runs of the last turn began with.
        trials: Runs that began with it.
        state: Where the next run begins: the cheapest schedule within the budget that the runs found.
        state_cost: Its cost, as a share of C0; infinite if none fits yet.
        price: The price with which that run begins, relative to the overhead.
        runs: Runs so far.
        idle: The last runs after the trials that found nothing cheaper.
    """

    rng: random.Random = field(default_factory=random.Random)
    wish: tuple[int, ...] = ()
    trials: int = _TRIALS
    state: tuple[int, ...] = ()
    state_cost: float = math.inf
    price: float = 1.0
    runs: int = 0
    idle: int = 0

    def __post_init__(self) -> None:
        """Seed the runs."""
        self.rng.seed(self.incumbent.context.seed)

    @property
    def fresh(self) -> bool:
        """Whether a schedule cheaper than the incumbent was proposed that it has not begun with."""
        incumbent = self.incumbent
        return incumbent.near is not None and incumbent.near != self.wish and incumbent.near_cost < incumbent.cost

    def work(self, trials: int = _TRIALS, patience: int = _PATIENCE) -> bool:
        """Mend until ``patience`` runs in a row found nothing cheaper; whether the incumbent got cheaper.

        It goes on where the clock stopped it, unless there is a new proposal. After that there is nothing to do:
        annealing goes on from the incumbent.

        Args:
            trials: Runs that begin with the proposal; the others go on from the best of these.
            patience: Those of the others that may find nothing cheaper.
        """
        incumbent, before = self.incumbent, self.incumbent.cost
        if self.fresh and incumbent.near is not None:
            self.wish = self.state = incumbent.near
            self.state_cost, self.trials, self.idle = math.inf, 0, 0
        while self.wish and not incumbent.over():
            if self.trials < trials:
                self._run(self.wish, _PRICES[self.trials % len(_PRICES)], _TRIAL_SHARE)
                self.trials += 1
            elif self.idle < patience:
                cost = self.state_cost
                self._run(self.state, self.price, 1.0)
                self.idle = 0 if self.state_cost < cost else self.idle + 1
            else:
                break
        return incumbent.cost < before

    def _run(self, start: tuple[int, ...], price: float, share: float) -> None:
        """One run from ``start``, from hot to cold, with ``share`` of the usual moves; it may become the new state."""
        from remat_cli.strategies.annealing.walk import Problem, Walk, slice_moves  # numba takes 0.3 s to import

        incumbent, graph = self.incumbent, self.incumbent.graph
        overhead = max(cost_of(graph, start) / (graph.total_cost or 1.0) - 1, _LEAST_OVERHEAD)
        problem = Problem.of(graph, incumbent.budget_bytes - graph.fixed_memory)
        walk = Walk.of(problem, start, self.rng.getrandbits(31), price * overhead)
        heat = _HEATS[self.runs % len(_HEATS)] * overhead / max(_GUESS, len(start) - len(graph.nodes))
        moves = max(1, round(share * slice_moves(len(graph.nodes))))
        for part in range(_SLICES):
            if incumbent.context.control.stopping():
                break
            incumbent.report("mending")
            walk.advance(moves, heat * _COLD ** (part / _SLICES), heat * _COLD ** ((part + 1) / _SLICES))
        self.runs += 1
        if walk.best is None and math.isinf(self.state_cost):  # until one fits, the last one goes on
            self.state, self.price = walk.last, min(_DEAREST, max(_CHEAPEST, walk.price / overhead))
        if walk.best is not None and walk.best_cost < self.state_cost:
            self.state, self.state_cost = walk.best, walk.best_cost
            self.price = min(_DEAREST, max(_CHEAPEST, walk.price / overhead))
        for computes in (walk.best, walk.last):
            if computes is not None:
                incumbent.offer(computes)
                incumbent.offer(straightened(graph, computes))
