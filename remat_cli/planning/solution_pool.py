"""Everything known about a graph at all budgets, schedules, bounds and failures; and the runs that add to it.

A schedule within a budget is within every larger budget. A bound on the cost within a budget holds within every smaller
budget. If no schedule fits a budget, none fits a smaller one.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, field, replace

from remat_cli.control import Control, Ending
from remat_cli.graph.model import Graph
from remat_cli.plan.host import Host
from remat_cli.plan.model import Scope
from remat_cli.planning.job import Job
from remat_cli.strategies.base import Bound, Found, Known, NotFound, Strategy, Task
from remat_cli.strategies.bounds import strongest
from remat_cli.strategies.objective import Objective, objective_of, peak_of

_STARTS = 3
"""Schedules within the budget that a run starts from. More than one, because some models cannot represent the cheapest.
Untuned."""


@dataclass(frozen=True, slots=True)
class PooledSchedule:
    """A schedule, with its peak in bytes (fixed memory included) and its cost."""

    peak_bytes: int
    cost: float
    found: Found


@dataclass(slots=True)
class SolutionPool:
    """Schedules that no other one dominates in peak and cost, bounds, and failures.

    Attributes:
        graph: The graph.
        host: Host memory next to the device; None for plans without copies.
        objective: What makes one schedule better than another, and which bounds count.
        schedules: The schedules by rising peak, and so by falling cost; with collectives all schedules, by peak.
        bounds: Pairs of a budget in bytes and a bound that holds for it and every smaller budget.
        failures: By budget in bytes: the answer of a run that found nothing.
    """

    graph: Graph
    host: Host | None = None
    schedules: list[PooledSchedule] = field(default_factory=list)
    bounds: list[tuple[int, Bound]] = field(default_factory=list)
    failures: dict[int, NotFound] = field(default_factory=dict)
    objective: Objective = field(init=False)

    def __post_init__(self) -> None:
        """Choose the objective."""
        self.objective = objective_of(self.graph, self.host)

    def add(self, found: Found, *, final: bool = False) -> None:
        """Add a schedule, unless one in the pool has neither a higher peak nor a higher cost.

        Args:
            found: The schedule.
            final: Whether it is the final answer of a run. Of two equal schedules, the final one replaces a published
                one, since only the final one names its maker reliably.
        """
        schedule = found.schedule
        new = PooledSchedule(peak_of(self.graph, schedule), self.objective.cost(schedule), found)
        if self.graph.overlaps:  # its time depends on the budget, too
            self.schedules = [entry for entry in self.schedules if entry.found.schedule != schedule]
            bisect.insort(self.schedules, new, key=lambda entry: entry.peak_bytes)
            return
        at = bisect.bisect_right(self.schedules, new.peak_bytes, key=lambda entry: entry.peak_bytes)
        if at and self.schedules[at - 1].cost <= new.cost:
            same = (self.schedules[at - 1].peak_bytes, self.schedules[at - 1].cost) == (new.peak_bytes, new.cost)
            if same and final:
                self.schedules = [*self.schedules[: at - 1], new, *self.schedules[at:]]
            return
        self.schedules = [k for k in self.schedules if k.peak_bytes < new.peak_bytes or k.cost < new.cost]
        bisect.insort(self.schedules, new, key=lambda entry: entry.peak_bytes)

    def add_answer(self, budget_bytes: int, answer: Found | NotFound) -> None:
        """Add the answer of a run for ``budget_bytes``."""
        # A bound of scope RESTRICTED holds only for the schedules that this one run considered.
        new = [(budget_bytes, bound) for bound in answer.bounds if self._holds(bound)]
        self.bounds += [pair for pair in new if pair not in self.bounds]
        if isinstance(answer, Found):
            self.add(answer, final=True)
            return
        self.failures[budget_bytes] = answer
        if answer.best is not None:
            self.add(Found(answer.best, exhausted=False))

    def add_published(self, budget_bytes: int, found: Found) -> None:
        """Add what a search for ``budget_bytes`` has found so far; of its bounds only those that are news."""
        for bound in filter(self._holds, found.bounds):
            if not any(_implies(held, (budget_bytes, bound)) for held in self.bounds):
                self.bounds = [held for held in self.bounds if not _implies((budget_bytes, bound), held)]
                self.bounds.append((budget_bytes, bound))
        self.add(found)

    def _holds(self, bound: Bound) -> bool:
        """Whether a bound holds beyond the schedules that one run considered, and counts for the objective."""
        return bound.scope is not Scope.RESTRICTED and self.objective.counts(bound)

    def merge(self, other: SolutionPool) -> None:
        """Add everything in another pool for the same graph."""
        for entry in other.schedules:
            self.add(entry.found)
        self.bounds += [pair for pair in other.bounds if pair not in self.bounds]
        self.failures |= other.failures

    def within(self, budget_bytes: int) -> PooledSchedule | None:
        """The cheapest schedule within a budget."""
        at = bisect.bisect_right(self.schedules, budget_bytes, key=lambda entry: entry.peak_bytes)
        if at and self.graph.overlaps:
            objective = objective_of(self.graph, self.host, budget_bytes)
            timed = [replace(entry, cost=objective.cost(entry.found.schedule)) for entry in self.schedules[:at]]
            return min(timed, key=lambda entry: entry.cost)
        return self.schedules[at - 1] if at else None

    def bounds_at(self, budget_bytes: int) -> tuple[Bound, ...]:
        """All bounds that hold within a budget."""
        return tuple(dict.fromkeys(bound for budget, bound in self.bounds if budget >= budget_bytes))

    def known_at(self, budget_bytes: int) -> Known | None:
        """The schedules and bounds that a run for a budget may start from; None if there are none."""
        at = bisect.bisect_right(self.schedules, budget_bytes, key=lambda entry: entry.peak_bytes)
        # If no schedule is within the budget, the one with the least peak still helps the strategy.
        chosen = self.schedules[max(0, at - _STARTS) : at][::-1] or self.schedules[:1]
        bounds = self.bounds_at(budget_bytes)
        return Known(tuple(k.found.schedule for k in chosen), bounds) if chosen or bounds else None

    def proven_within(self, budget_bytes: int, gap: float) -> bool:
        """Whether the cheapest schedule within a budget is within ``gap`` of the bound on all in document order."""
        entry = self.within(budget_bytes)
        if entry is None:
            return False
        wide = [b for b in self.bounds_at(budget_bytes) if b.scope.contains(Scope.DOCUMENT_ORDER)]
        return entry.cost - strongest(self.graph, wide, entry.cost).cost <= gap * entry.cost

    def answer(self, budget_bytes: int) -> Found | NotFound | None:
        """The best answer for a budget: a schedule; else the nearest proof that there is none; else a failure."""
        entry = self.within(budget_bytes)
        if entry is not None:
            return replace(entry.found, bounds=self.bounds_at(budget_bytes))
        failures = [(budget, self.failures[budget]) for budget in sorted(self.failures) if budget >= budget_bytes]
        proofs = [failure for _, failure in failures if failure.scope is not None]
        chosen = proofs[0] if proofs else failures[0][1] if failures else None
        if chosen is None or not self.schedules:
            return chosen
        return replace(chosen, best=self.schedules[0].found.schedule)


def _implies(one: tuple[int, Bound], other: tuple[int, Bound]) -> bool:
    """Whether a bound, with the budget for which it holds, says at least as much as another of the same scope."""
    (budget, bound), (smaller, weaker) = one, other
    same = (bound.scope, bound.copies) == (weaker.scope, weaker.copies)
    return same and budget >= smaller and bound.cost >= weaker.cost


SHORTEST_S = 1.0
"""Seconds: no run starts with less time left. Untuned."""


@dataclass(frozen=True, slots=True)
class PooledRuns:
    """What the searches over budgets have in common: a job, and a pool of everything that its runs found.

    Attributes:
        job: What all runs share; its control is the clock of the whole command.
        pool: Everything that they found.
        maker: Text form of the strategy that makes their schedules; empty for the one asked for.
    """

    job: Job
    pool: SolutionPool
    maker: str = ""

    @property
    def control(self) -> Control:
        """The clock of the whole command."""
        return self.job.context.control

    def over(self) -> bool:
        """Whether the command was stopped, or has too little time left for another run."""
        remaining = self.control.remaining_s()
        return self.control.stopping() or (remaining is not None and remaining < SHORTEST_S)

    def first_of(self, left: int, most_s: float = math.inf) -> Control:
        """The clock of the first of ``left`` runs, ``most_s`` at most: twice its equal share of the time left.

        Most runs take less than their limit, so the others still get their share.
        """
        return self.control.part(2 / (left + 1), most_s)

    def run(
        self, budget_bytes: int, control: Control, *, strategy: Strategy | None = None, fresh: bool = False
    ) -> tuple[Found | NotFound, Ending]:
        """Run a strategy for a budget; its answer and all schedules that it published go to the pool.

        Args:
            budget_bytes: Fixed memory included.
            control: Its clock.
            strategy: The strategy; None for the one asked for.
            fresh: Whether the run ignores the schedules found so far. It gets the bounds in any case.

        Raises:
            SolverFailed: If the solver fails before there is any schedule within the budget.
            StrategyMismatch, SolverUnavailable: From the strategy.
        """
        known = self.pool.known_at(budget_bytes)
        if fresh and known is not None:
            known = Known(bounds=known.bounds) if known.bounds else None
        published: list[Found] = []
        try:
            task = Task(self.job.graph, budget_bytes, known, self.pool.host)
            answer, ending = self.job.attempt(task, strategy=strategy, control=control, witness=published.append)
        finally:
            for found in tuple(published):  # a run that was abandoned may still add to it
                self.pool.add(self._named(found))
        self.pool.add_answer(budget_bytes, self._named(answer) if isinstance(answer, Found) else answer)
        return answer, ending

    def _named(self, found: Found) -> Found:
        return replace(found, maker=found.maker or self.maker)
