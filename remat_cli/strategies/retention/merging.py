"""Merging of schedules: the retention MILP over all that good schedules recompute, and nothing else.

Annealing ends in one of many valleys. The best schedules of two of them often differ in a few recomputations here and a
few there, of which each has found some of the best; no walk gets from one to the other, for everything in between is
dearer. A model in which each recomputation of any of them is allowed holds all combinations, and is small enough to be
solved. (Construct, merge, solve and adapt; Blum et al., Computers & Operations Research 68, 2016.)
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from remat_cli.control import Control
from remat_cli.graph.closing import closed
from remat_cli.milp.retention import widened
from remat_cli.plan.matrices import matrices_of, straightened
from remat_cli.solvers.base import Termination
from remat_cli.strategies.annealing.workers import Annealing
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.openers.crowded import Cutting
from remat_cli.strategies.retention.solving import Retention

_MERGE_S = 10.0
_CUT_S, _CUT_SHARE = 5.0, 0.2
_FIRST_STEPS, _FEWEST_STEPS, _MOST_STEPS = 400, 50, 20_000
_REMEMBERED = 50_000
_PATIENCE = 4
_MOST_NODES = 3_000


@dataclass(slots=True)
class Pool:
    """The recomputations of the schedules that came up lately.

    Attributes:
        best: Whose graph it is.
        seen: (stage, node), the latest last.
    """

    best: Incumbent
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

    best: Incumbent
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
        """Cut and merge once; whether that helped."""
        before = self.best.cost
        self.cut()
        self.merge()
        return self.best.cost < before

    def _beside(self, steps: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """For every node of ``steps`` the stages of its readers, where it might be computed again instead."""
        graph = self.best.graph
        nodes = sorted({node for _, node in steps})
        return [(t, i) for i in nodes for v in graph.values_of(i) for t in graph.readers[v]]

    def merge(self) -> bool:
        """Merge once; whether it helped."""
        steps = self.pool.latest(self.most)
        if self.best.over() or self.done.issuperset(steps):
            return False
        before, graph = self.best.cost, closed(self.best.graph)
        control = self.best.step(_MERGE_S, 0.3)
        support = widened(graph, ((),) * len(graph.nodes), (*steps, *self._beside(steps)))
        model = Retention.over(self.best, None, support=support)
        outcome = model.solve(control)
        if outcome is not None and outcome.termination in {Termination.OPTIMAL, Termination.INFEASIBLE}:
            self.done = frozenset(steps)
            # Well within its time? Then for twice as many.
            remaining = control.remaining_s() or 0.0
            self.most = min(_MOST_STEPS, self.most * 2 if remaining > _MERGE_S / 2 else self.most * 5 // 4)
        elif control.out_of_time():
            self.most = max(_FEWEST_STEPS, self.most * 4 // 5)
        return self.best.cost < before


def anneal_and_merge(best: Incumbent, rng: random.Random, control: Control) -> None:
    """Let annealing and merging take turns until ``control`` stops, or neither helps any more, or nothing is left.

    On graphs of more than a few thousand nodes annealing has all the turns: a model takes seconds to state there.
    """
    merging = Merging(best, Pool(best)) if len(best.graph.nodes) <= _MOST_NODES else None
    annealing = Annealing(best, rng, pool=None if merging is None else merging.pool)
    idle = 0
    while idle < _PATIENCE and not best.settled() and not best.over() and not control.stopping():
        helped = annealing.run(2)
        idle = 0 if (merging is not None and merging.run()) or helped else idle + 1
