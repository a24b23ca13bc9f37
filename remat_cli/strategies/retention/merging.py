"""Merging of schedules: the retention MILP over the recomputations of good schedules alone.

Annealing ends in one of many local optima. Two of them often differ in a few places, and each is better at some. No
walk gets from one to the other, because everything between costs more. A model that allows the recomputations of both
holds all their combinations and is small enough to solve. (Construct, merge, solve and adapt; Blum, Pinacho,
López-Ibáñez, Lozano, Computers & Operations Research 68, 2016.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from remat_cli.graph.closing import closed
from remat_cli.milp.support import widened
from remat_cli.solvers.base import Termination
from remat_cli.strategies.annealing.pool import Pool
from remat_cli.strategies.engine import Engine
from remat_cli.strategies.openers.crowded import CrowdedStages, crowded_stages
from remat_cli.strategies.retention.solving import Retention

_MERGE_S = 10.0
"""Most seconds for one merge. Untuned."""
_CUT_S, _CUT_SHARE = 5.0, 0.2
"""First most seconds, and share of the time left, for one crowded stage more. Untuned."""
_FIRST_STEPS, _FEWEST_STEPS, _MOST_STEPS = 400, 50, 20_000
"""Steps to merge: at first, at least and at most. Untuned."""


@dataclass(slots=True)
class Merging(Engine):
    """Solves over the steps in a pool.

    Attributes:
        most: Most steps to merge; adapts to what the solver finishes in its time.
        done: The steps of the last merge that the solver finished; without new steps there is nothing to do.
        crowded: Adds schedules to the pool that cost no more than the bound but may exceed the budget.
        crowded_s: Seconds for its next turn; doubles while it is too short.
        pool: Where other engines put their schedules.
    """

    uses_solver: ClassVar[bool] = True

    most: int = _FIRST_STEPS
    done: frozenset[tuple[int, int]] = frozenset()
    crowded: CrowdedStages | None = None
    crowded_s: float = _CUT_S

    pool: Pool = field(init=False)

    def __post_init__(self) -> None:
        """Create the pool that other engines fill."""
        self.pool = self.incumbent.pool = self.incumbent.pool or Pool(self.incumbent.graph)

    def work(self, *, merging: bool = True) -> bool:
        """Solve for one more crowded stage and merge, once.

        Args:
            merging: Whether to merge too: where nothing of the class is cheaper, only the bound can gain.
        """
        before = self.incumbent.cost
        self.cut()
        if merging:
            self.merge()
        return self.incumbent.cost < before

    def cut(self) -> None:
        """Solve for one more crowded stage: for a better bound, and for recomputations to merge."""
        if self.incumbent.over():
            return
        if self.crowded is None:
            self.crowded = crowded_stages(self.incumbent)
        control = self.incumbent.step(self.crowded_s, _CUT_SHARE)
        computes = self.crowded.run(control)
        if computes is not None:
            self.pool.add(computes)
        elif control.out_of_time():
            self.crowded_s *= 2

    def _beside(self, steps: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
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
        control = self.incumbent.step(_MERGE_S, 0.3)
        support = widened(graph, ((),) * len(graph.nodes), (*steps, *self._beside(steps)))
        model = Retention.over(self.incumbent, None, support=support)
        outcome = model.solve(control)
        if outcome is not None and outcome.termination in {Termination.OPTIMAL, Termination.INFEASIBLE}:
            self.done = frozenset(steps)
            # Finished in less than half its time: twice as many steps should fit.
            remaining = control.remaining_s() or 0.0
            self.most = min(_MOST_STEPS, self.most * 2 if remaining > _MERGE_S / 2 else self.most * 5 // 4)
        elif control.out_of_time():
            self.most = max(_FEWEST_STEPS, self.most * 4 // 5)
        return self.incumbent.cost < before
