"""Searches schedules with the retention MILP: over supports, in windows, and by merging good schedules.

*Windows* are a large neighbourhood search (Shaw, "Using constraint programming and local search methods to solve
vehicle routing problems", CP 1998): free a part of the incumbent, fix the rest, and solve. Columns in which relaxation
and incumbent differ are those of relaxation induced neighbourhoods (Danna, Rothberg, Le Pape, Mathematical Programming
102, 2005).

*Merging* solves over the recomputations of good schedules alone. Annealing ends in one of many local optima. Two of
them often differ in a few places, and each is better at some. No walk gets from one to the other, because everything
between costs more. A model that allows the recomputations of both holds all their combinations and is small enough to
solve. (Construct, merge, solve and adapt; Blum, Pinacho, López-Ibáñez, Lozano, Computers & Operations Research 68,
2016.)
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from remat_cli.graph.model import closed
from remat_cli.milp.support import widened
from remat_cli.mip import Bools
from remat_cli.plan.model import Scope
from remat_cli.solvers.base import Termination
from remat_cli.strategies.annealing.pool import Pool
from remat_cli.strategies.base import Bound
from remat_cli.strategies.bounds import safe_bound
from remat_cli.strategies.conditions import near_pairs
from remat_cli.strategies.engine import Engine
from remat_cli.strategies.incumbent import Verdict
from remat_cli.strategies.openers.stage_cuts import StageCuts, stage_cuts_of
from remat_cli.strategies.retention.proof import confirmed
from remat_cli.strategies.retention.solving import Retention

# Halving and doubling all of these together changes the gap by less than its noise (benchmark ``ablation``).
_STEP_S, _SLICE_S, _POLISH_S = 5.0, 30.0, 3.0
"""Most seconds for one window or bottleneck stage; for one solve; and for one solve within the gap, which often still
lowers the cost."""
_TIME_SHARE = 0.3
"""Share of the time left for any of them."""
_WIDTH, _NARROWEST = 1 / 6, 8
"""First width of a window, as a share of all nodes, and the least, in nodes."""
_GUIDED = 0.15
"""Share of windows that the linear relaxation chooses."""
_SHARES = (1.0, 0.97, 0.9, 0.8)
"""Shares of the budget for rounding the relaxation until there is a schedule: rounding adds memory."""
_BUILD_LIMIT, _PER_PAIR_S = 300_000, 1e-4
"""Most (stage, node) pairs of the smallest support for which a model is built, and seconds for each."""
_MOST_STAGES = 12_000
"""Nodes beyond which even a sparse model takes several gigabytes, and minutes until its first result."""
_WHOLE_LIMIT = 200_000
"""Nonzeros beyond which a model is searched by windows if there is an incumbent."""
_MANY_WINDOWS, _FEW_WINDOWS = 24, 2
"""Windows instead of a solve, and after one that did not finish."""
_FIRST_STEPS, _FEWEST_STEPS, _MOST_STEPS = 400, 50, 20_000
"""Steps to merge: at first, at least and at most."""


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
    share: float = _WIDTH

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
            control = incumbent.step(_STEP_S, _TIME_SHARE)
            better = self.model.improve(self._window(self.model, width), control)
            # A window that times out is too wide. One that the solver finishes without a gain is too narrow.
            if control.out_of_time():
                self.share = max(_WIDTH / 8, self.share * 0.7)
            elif not better:
                self.share = min(0.5, self.share * 1.2)
        return incumbent.advancing_cost < before

    def _stated(self, depth: float) -> Retention:
        """The model; without a schedule to search around, its relaxation is rounded first."""
        model = Retention.over(self.incumbent, depth)
        if self.incumbent.advancing is None:
            self.incumbent.report("rounding the linear relaxation")
            model.round_relaxation(_SHARES, self.incumbent.step(_SLICE_S, _TIME_SHARE))
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


class NearSupport(Engine):
    """Searches the support in which nodes are recomputed near their uses."""

    uses_solver: ClassVar[bool] = True

    def work(self, depth: float) -> bool:
        """Round the relaxation over the support, then solve the model or search it by windows.

        Args:
            depth: How far from its uses a node may be recomputed.
        """
        incumbent = self.incumbent
        writes, remaining = incumbent.context.write_model, incumbent.context.control.remaining_s()
        near = near_pairs(incumbent.graph)
        proven = incumbent.verdict >= Verdict.GAP
        large = len(incumbent.graph.nodes) > _MOST_STAGES or near > _BUILD_LIMIT
        late = remaining is not None and near * _PER_PAIR_S > _TIME_SHARE * remaining
        # Within the gap, a cheaper plan is worth seconds, and not a large model.
        if (large or late or (proven and near * _PER_PAIR_S > _POLISH_S)) and writes is None:
            return False
        model = Retention.over(incumbent, depth)
        incumbent.report("rounding the linear relaxation")
        model.round_relaxation(_SHARES[:1] if proven else _SHARES, incumbent.step(_SLICE_S, _TIME_SHARE))
        if (incumbent.verdict >= Verdict.SETTLED and writes is None) or incumbent.context.control.stopping():
            return False
        # Rounding may have found an incumbent with recomputations outside the support.
        model = model.holding_best()
        windows = Windows(incumbent)
        windows.model = model
        # A large model seldom finishes within a slice. Its windows do, but they need an incumbent.
        if len(model.model.values) > _WHOLE_LIMIT and incumbent.advancing is not None and writes is None:
            windows.work(_MANY_WINDOWS)
        else:
            outcome = model.solve(incumbent.step(_POLISH_S if proven else _SLICE_S, _TIME_SHARE))
            if outcome is None or outcome.termination is not Termination.OPTIMAL:
                windows.work(_FEW_WINDOWS)
        if writes is not None:
            model.write(writes)
        return False


@dataclass(slots=True)
class FullSupport(Engine):
    """Solves over the full support: its bound holds for all frontier-advancing schedules."""

    uses_solver: ClassVar[bool] = True

    def work(self) -> bool:
        """Solve it once; a proof that no schedule fits is an infinite bound."""
        incumbent = self.incumbent
        model = Retention.over(incumbent, None)
        outcome = model.solve(incumbent.context.control)
        if outcome is None:
            return False
        if outcome.termination is Termination.INFEASIBLE and incumbent.computes is None:
            outcome = confirmed(outcome, model.model, incumbent)
            if outcome.values is not None:
                incumbent.offer(model.decoder.computes(model.decoder.chosen(outcome.values)))
        if outcome.termination is Termination.INFEASIBLE and incumbent.computes is None:
            incumbent.raise_bound(Bound(math.inf, Scope.FRONTIER))
        elif outcome.bound is not None:
            bound = safe_bound(incumbent.graph, outcome.bound * model.stated.cost_scale)
            incumbent.raise_bound(Bound(bound, Scope.FRONTIER))
        return False


@dataclass(slots=True)
class Merging(Engine):
    """Solves over the steps in a pool.

    Attributes:
        most: Most steps to merge; adapts to what the solver finishes in its time.
        done: The steps of the last merge that the solver finished; without new steps there is nothing to do.
        stage_cuts: Adds schedules to the pool that cost no more than the bound but may exceed the budget.
        cut_s: Seconds for its next turn; doubles while it is too short.
        pool: Where other engines put their schedules.
    """

    uses_solver: ClassVar[bool] = True

    most: int = _FIRST_STEPS
    done: frozenset[tuple[int, int]] = frozenset()
    stage_cuts: StageCuts | None = None
    cut_s: float = _STEP_S

    pool: Pool = field(init=False)

    def __post_init__(self) -> None:
        """Create the pool that other engines fill."""
        self.pool = self.incumbent.pool = self.incumbent.pool or Pool(self.incumbent.graph)

    def work(self, *, merging: bool = True) -> bool:
        """Solve for one more bottleneck stage and merge, once.

        Args:
            merging: Whether to merge too: where nothing of the class is cheaper, only the bound can gain.
        """
        before = self.incumbent.cost
        self.cut()
        if merging:
            self.merge()
        return self.incumbent.cost < before

    def cut(self) -> None:
        """Solve for one more bottleneck stage: for a better bound, and for recomputations to merge."""
        if self.incumbent.over():
            return
        if self.stage_cuts is None:
            self.stage_cuts = stage_cuts_of(self.incumbent)
        control = self.incumbent.step(self.cut_s, _TIME_SHARE)
        computes = self.stage_cuts.run(control)
        if computes is not None:
            self.pool.add(computes)
        elif control.out_of_time():
            self.cut_s *= 2

    def _at_readers(self, steps: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """For every node of ``steps`` the stages of its readers, where it may be recomputed instead."""
        graph = self.incumbent.graph
        nodes = sorted({node for _, node in steps})
        return [(t, i) for i in nodes for v in graph.values_of(i) for t in graph.readers[v]]

    def merge(self) -> bool:
        """Merge once; whether the incumbent got cheaper."""
        steps = self.pool.latest(self.most)
        if self.incumbent.over() or self.done.issuperset(steps):
            return False
        before, graph = self.incumbent.cost, closed(self.incumbent.graph)
        control = self.incumbent.step(_STEP_S, _TIME_SHARE)
        support = widened(graph, ((),) * len(graph.nodes), (*steps, *self._at_readers(steps)))
        model = Retention.over(self.incumbent, None, support=support)
        outcome = model.solve(control)
        if outcome is not None and outcome.termination in {Termination.OPTIMAL, Termination.INFEASIBLE}:
            self.done = frozenset(steps)
            # Finished in less than half its time: twice as many steps should fit.
            remaining = control.remaining_s() or 0.0
            self.most = min(_MOST_STEPS, self.most * 2 if remaining > _STEP_S / 2 else self.most * 5 // 4)
        elif control.out_of_time():
            self.most = max(_FEWEST_STEPS, self.most * 4 // 5)
        return self.incumbent.cost < before
