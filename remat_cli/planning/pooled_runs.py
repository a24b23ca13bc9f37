"""The runs of one command for several budgets. They share the schedules and bounds that they find."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from remat_cli.control import Control, Ending
from remat_cli.planning.job import Job
from remat_cli.planning.solution_pool import SolutionPool
from remat_cli.strategies.base import Found, Known, NotFound, Strategy, Task

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
        """The clock of the first of several runs: at most twice its equal share of the time left.

        Most runs take less than their limit, so the others still get their share.

        Args:
            left: Number of runs that share the time left, this one included.
            most_s: Most seconds for this run.
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
