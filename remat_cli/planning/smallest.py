"""The least peak that any plan reaches, and the cheapest plan there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from remat_cli.control import Ending, Outcome, Progress
from remat_cli.errors import SolverFailed, StrategyMismatch
from remat_cli.graph.analysis import peak_bound
from remat_cli.graph.model import Graph
from remat_cli.plan.model import PeakClaim, Scope
from remat_cli.planning.job import Job, Solved
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.pool import Pool
from remat_cli.planning.runs import Runs
from remat_cli.running import Abandoned, interruptible, run
from remat_cli.strategies.annealing.squeeze import squeeze
from remat_cli.strategies.base import Found, NotFound, Schedule, Task
from remat_cli.strategies.pipeline import OPENING_METHODS
from remat_cli.strategies.registry import strategy_from_spec

_OPENING_S, _OPENING_SHARE = 10.0, 0.3
"""Most seconds, and most of the time left, for the methods that take milliseconds. Untuned."""
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
    descent = _Descent(Runs(job, Pool(graph)), _plain_bounds(graph))
    with interruptible(job.context.control):
        descent.open()
        if len(graph.nodes) <= _SMALL:
            descent.prove()
        if not descent.closed():
            descent.squeeze()
            descent.prove()
        ending = descent.cheapen()
    pool = descent.runs.pool
    least = pool.kept[0]
    answer = least.found
    if job.strategy.minds_budget:
        answer = replace(answer, bounds=pool.bounds_at(least.peak_bytes))
    return job.solved(Task(graph, least.peak_bytes), answer, ending, None, peak=descent.claim())


def _plain_bounds(graph: Graph) -> list[PeakClaim]:
    """Bounds on every peak that need no search."""
    from remat_cli.milp.cover_running import least_peak  # half a second of Pyomo

    any_order = PeakClaim(peak_bound(graph).bytes, Scope.ANY_ORDER)
    return [any_order, PeakClaim(least_peak(graph), Scope.DOCUMENT_ORDER)]


@dataclass(slots=True)
class _Descent:
    """A search for the least peak on its way.

    Attributes:
        runs: What all runs share; the first schedule of its pool is the one with the least peak.
        proven: Bounds on the peak, each for some set of schedules.
    """

    runs: Runs
    proven: list[PeakClaim]

    @property
    def lowest_bytes(self) -> int:
        """The least peak found."""
        return self.runs.pool.kept[0].peak_bytes

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

    def closed(self) -> bool:
        """Whether no plan of any order has a lower peak than the one found, or there is no time to look for one."""
        return self.claim().lower_bound_bytes >= self.lowest_bytes or self.runs.over()

    def open(self) -> None:
        """Ask the methods that take milliseconds for a plan within the lowest bound: they come as near as they can."""
        graph, pool = self.runs.job.graph, self.runs.pool
        pool.add(Found(Schedule(tuple(range(len(graph.nodes)))), maker="keep-all"))
        floor = max(bound.lower_bound_bytes for bound in self.proven)
        clock = self.runs.control.part(_OPENING_SHARE, _OPENING_S)
        for spec in OPENING_METHODS:
            if not clock.stopping() and self.lowest_bytes > floor:
                with suppress(StrategyMismatch):  # not for this graph
                    replace(self.runs, maker=spec).run(floor, clock, strategy=strategy_from_spec(spec))

    def squeeze(self) -> None:
        """Anneal towards less and less room, from computing everything once."""
        job, control, pool = self.runs.job, self.runs.control, self.runs.pool
        found: list[tuple[int, ...]] = []
        floor = max(bound.lower_bound_bytes for bound in self.proven)
        clock = control.part(_SQUEEZE_SHARE)
        with suppress(Abandoned):  # what it found until then is there
            run(lambda: squeeze(job.graph, floor, clock, job.context.seed, found.append), control, grace_s=_GRACE_S)
        for computes in tuple(found):
            pool.add(Found(Schedule(computes), exhausted=False, maker=_ANNEALED))

    def prove(self) -> None:
        """Ask an exact strategy for a plan just below the least peak, until it has none and says why."""
        name = "checkmate-ilp" if len(self.runs.job.graph.nodes) <= _SMALL else "optimal"
        runs, strategy = replace(self.runs, maker=name), strategy_from_spec(name)
        clock = runs.control.part(_PROVE_SHARE, _PROVE_MOST_S)
        for _ in range(_ROUNDS):
            below = self.lowest_bytes - 1
            if clock.stopping() or self.claim().lower_bound_bytes > below:
                return
            try:
                answer, _ = runs.run(below, clock, strategy=strategy)
            except SolverFailed:
                return  # the plan at hand stands; that nothing is proven of it is said
            if isinstance(answer, Found):
                continue
            if answer.scope is not None:
                self.proven.append(PeakClaim(below + 1, answer.scope))
            if self.lowest_bytes > below:  # nor did it come upon something on the way
                return

    def cheapen(self) -> Ending:
        """Look for the cheapest plan at the least peak; how that ended."""
        budget, job, control = self.lowest_bytes, self.runs.job, self.runs.control
        if not job.strategy.minds_budget:
            task = Task(job.graph, budget, self.runs.pool.known_at(budget))
            answer, ending = job.attempt(task)
            assert isinstance(answer, Found)
            job.solved(task, answer, ending, None)  # says by how much it is over, if it is
            return ending
        if control.stopping():
            return Ending(control.stopped_by())
        answer, ending = self.runs.run(budget, control)
        if isinstance(answer, NotFound) and not control.stopping():  # it looked among schedules that do not get there
            return Ending(Outcome.FINISHED)
        return self.cheapen() if self.lowest_bytes < budget else ending  # it came upon an even smaller peak
