"""Merging of schedules: the retention MILP over all that good schedules recompute, and nothing else.

Annealing ends in one of many valleys. The best schedules of two of them often differ in a few recomputations here and a
few there, of which each has found some of the best; no walk gets from one to the other, for everything in between is
dearer. A model in which each recomputation of any of them is allowed holds all combinations, and is small enough to be
solved. (Construct, merge, solve and adapt; Blum et al., Computers & Operations Research 68, 2016.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from remat_cli.milp.checkmate import closed
from remat_cli.milp.retention import widened
from remat_cli.plan.matrices import matrices_of, straightened
from remat_cli.solvers.base import Termination
from remat_cli.strategies._best import Best
from remat_cli.strategies._cuts import Cutting
from remat_cli.strategies._retention import Retention

_MERGE_S = 10.0
_CUT_S, _CUT_SHARE = 5.0, 0.2
_FIRST_STEPS, _FEWEST_STEPS, _MOST_STEPS = 400, 50, 20_000
_REMEMBERED = 50_000


@dataclass(slots=True)
class Pool:
    """The recomputations of the schedules that came up lately.

    Attributes:
        best: Whose graph it is.
        seen: (stage, node), the latest last.
    """

    best: Best
    seen: dict[tuple[int, int], None] = field(default_factory=dict)

    def add(self, computes: Sequence[int]) -> None:
        """Take a schedule in document order, within the budget or not."""
        graph = self.best.graph
        for stage, node in sorted(matrices_of(graph, straightened(graph, computes)).computed):
            if stage != node:
                self.seen.pop((stage, node), None)
                self.seen[stage, node] = None
        while len(self.seen) > _REMEMBERED:
            del self.seen[next(iter(self.seen))]

    def latest(self, most: int) -> tuple[tuple[int, int], ...]:
        """At most so many steps, the latest first."""
        return tuple(islice(reversed(self.seen), most))


@dataclass(slots=True)
class Merging:
    """Solves over the steps in a pool.

    Attributes:
        best: The schedule to improve.
        pool: Where others put their schedules.
        most: Most steps to merge; adapts to what the solver can do in its time.
        done: The steps that were merged to the end last; without new ones there is nothing to do.
        cutting: Puts schedules into the pool that cost no more than the bound, if they do not quite fit.
        cutting_s: Time for its next turn; grows while it is not enough.
    """

    best: Best
    pool: Pool
    most: int = _FIRST_STEPS
    done: frozenset[tuple[int, int]] = frozenset()
    cutting: Cutting | None = None
    cutting_s: float = _CUT_S

    def cut(self) -> None:
        """Cut once more, for a better bound and for something to merge."""
        if self.best.over():
            return
        if self.cutting is None:
            self.cutting = Cutting.of(self.best)
        control = self.best.step(self.cutting_s, _CUT_SHARE)
        computes = self.cutting.run(control)
        if computes is not None:
            self.pool.add(computes)
        elif control.out_of_time():
            self.cutting_s *= 2

    def run(self) -> bool:
        """Merge once; whether it helped."""
        steps = self.pool.latest(self.most)
        if self.best.over() or self.done.issuperset(steps):
            return False
        before, graph = self.best.cost, closed(self.best.graph)
        control = self.best.step(_MERGE_S, 0.3)
        model = Retention.over(self.best, None, support=widened(graph, ((),) * len(graph.nodes), steps))
        outcome = model.solve(control)
        if outcome is not None and outcome.termination in {Termination.OPTIMAL, Termination.INFEASIBLE}:
            self.done = frozenset(steps)
            self.most = min(_MOST_STEPS, self.most * 5 // 4)
        elif control.out_of_time():
            self.most = max(_FEWEST_STEPS, self.most * 4 // 5)
        return self.best.cost < before
