"""The least peak that any plan reaches, and the cheapest plan there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from remat_cli.control import Control, Progress
from remat_cli.errors import SolverFailed
from remat_cli.graph.analysis import peak_bound
from remat_cli.graph.model import Graph
from remat_cli.plan.model import PeakClaim, Scope
from remat_cli.planning.job import Job, Solved
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.pool import Pool
from remat_cli.running import Abandoned, interruptible, run
from remat_cli.strategies.annealing.squeeze import squeeze
from remat_cli.strategies.base import Found, NotFound, Schedule, Task
from remat_cli.strategies.bounds import shortened
from remat_cli.strategies.registry import strategy_from_spec

_SQUEEZE_SHARE, _PROVE_SHARE = 0.4, 0.4
"""Shares of the time that is left for the two searches for the least peak; the rest is for the cost."""
_PROVE_MOST_S = 60.0
_SMALL = 60
"""Up to this many nodes the MILP of the paper is asked, which looks for the least peak itself."""
_ROUNDS = 40
_GRACE_S = 2.5
_ANNEALED = "anneal"


def solve_smallest(
    graph: Graph, options: SolveOptions | None = None, *, listener: Callable[[Progress], None] | None = None
) -> Solved:
    """The plan of ``graph`` with the least peak that is found, and of those the cheapest that the strategy finds.

    The plan's budget is that peak, and its claim says below which peak no plan stays, and no plan of which kind.

    Args:
        graph: The graph.
        options: How to solve; the strategy is for the cheapest plan at the least peak.
        listener: Gets the progress, from any thread.

    Raises:
        UsageError, SolverUnavailable, StrategyMismatch, InvalidStrategyPlan: As their names say.
        Infeasible: If the strategy pays no heed to the budget, and its plan has a larger peak.
    """
    job = Job.of(graph, options or SolveOptions(), listener)
    descent = _Descent(job, Pool(graph), _plain_bounds(graph))
    with interruptible(job.context.control):
        descent.squeeze()
        descent.prove()
        outcome = descent.cheapen()
    least = descent.pool.kept[0]
    answer = least.found
    if job.strategy.minds_budget:
        answer = replace(answer, bounds=descent.pool.bounds_at(least.peak_bytes))
    return job.solved(Task(graph, least.peak_bytes), answer, outcome, None, peak=descent.claim())


def _plain_bounds(graph: Graph) -> list[PeakClaim]:
    """Bounds on every peak that need no search."""
    from remat_cli.milp.cover_running import least_peak  # half a second of Pyomo

    any_order = PeakClaim(peak_bound(graph).bytes, Scope.ANY_ORDER)
    return [any_order, PeakClaim(least_peak(graph), Scope.DOCUMENT_ORDER)]


@dataclass(slots=True)
class _Descent:
    """A search for the least peak on its way.

    Attributes:
        job: What all runs share.
        pool: The schedules found; the first is the one with the least peak.
        proven: Bounds on the peak, each for some set of schedules.
    """

    job: Job
    pool: Pool
    proven: list[PeakClaim]

    @property
    def lowest_bytes(self) -> int:
        """The least peak found."""
        return self.pool.kept[0].peak_bytes

    def claim(self) -> PeakClaim:
        """The bound that says most: the highest that is not above the least peak found, for the widest set."""
        telling = self.proven[0]
        for bound in self.proven[1:]:
            same = bound.lower_bound_bytes == telling.lower_bound_bytes
            if bound.lower_bound_bytes > self.lowest_bytes:
                continue
            if bound.lower_bound_bytes > telling.lower_bound_bytes or (same and bound.scope.contains(telling.scope)):
                telling = bound
        return telling

    def squeeze(self) -> None:
        """Anneal towards less and less room, from computing everything once."""
        graph = self.job.graph
        found: list[tuple[int, ...]] = []
        self.pool.add(Found(Schedule(tuple(range(len(graph.nodes)))), maker="keep-all"))
        floor = max(bound.lower_bound_bytes for bound in self.proven)
        clock = self._clock(_SQUEEZE_SHARE)
        with suppress(Abandoned):  # what it found until then is there
            run(
                lambda: squeeze(graph, floor, clock, self.job.context.seed, found.append),
                self.job.context.control,
                grace_s=_GRACE_S,
            )
        for computes in tuple(found):
            self.pool.add(Found(Schedule(computes), exhausted=False, maker=_ANNEALED))

    def prove(self) -> None:
        """Ask an exact strategy for a plan just below the least peak, until it has none and says why."""
        name = "checkmate-ilp" if len(self.job.graph.nodes) <= _SMALL else "optimal"
        strategy = strategy_from_spec(name)
        clock = self._clock(_PROVE_SHARE, _PROVE_MOST_S)
        for _ in range(_ROUNDS):
            below = self.lowest_bytes - 1
            if clock.stopping() or self.claim().lower_bound_bytes > below:
                return
            task = Task(self.job.graph, below, self.pool.known_at(below))
            seen: list[Found] = []
            try:
                answer, _ = self.job.attempt(task, strategy=strategy, control=clock, witness=seen.append)
            except SolverFailed:
                return  # the plan at hand stands; that nothing is proven of it is said
            for found in tuple(seen):
                self.pool.add(replace(found, maker=found.maker or name))
            self.pool.learn(below, _by(name, answer))
            if isinstance(answer, Found):
                continue
            if answer.scope is not None:
                self.proven.append(PeakClaim(below + 1, answer.scope))
            if self.lowest_bytes > below:  # nor did it come upon something on the way
                return

    def cheapen(self) -> str:
        """Look for the cheapest plan at the least peak; how that ended."""
        budget = self.lowest_bytes
        task = Task(self.job.graph, budget, self.pool.known_at(budget))
        if not self.job.strategy.minds_budget:
            answer, outcome = self.job.attempt(task)
            assert isinstance(answer, Found)
            self.job.solved(task, answer, outcome, None)  # says by how much it is over, if it is
            return outcome
        control = self.job.context.control
        if control.stopping():
            return "interrupted" if control.cancelled.is_set() else "time limit"
        answer, outcome = self.job.attempt(task)
        self.pool.learn(budget, answer)
        if isinstance(answer, NotFound) and not control.stopping():  # it looked among schedules that do not get there
            return "finished"
        return self.cheapen() if self.lowest_bytes < budget else outcome  # it came upon an even smaller peak

    def _clock(self, share: float, most_s: float | None = None) -> Control:
        control = self.job.context.control
        remaining = control.remaining_s()
        if remaining is None:
            return control if most_s is None else shortened(control, most_s)
        return shortened(control, share * remaining if most_s is None else min(most_s, share * remaining))


def _by(name: str, answer: Found | NotFound) -> Found | NotFound:
    return replace(answer, maker=answer.maker or name) if isinstance(answer, Found) else answer
