"""The plan with the least peak, and the cheapest plan at that peak."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from remat_cli.control import Ending, Outcome, Progress
from remat_cli.errors import SolverFailed, StrategyMismatch, Worded
from remat_cli.graph.analysis import peak_bound
from remat_cli.graph.model import Graph
from remat_cli.kernels.compiling import wait, warm
from remat_cli.plan.model import PeakClaim, Scope
from remat_cli.planning.cache import PlanCache
from remat_cli.planning.job import Job
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.solution_pool import PooledRuns, SolutionPool
from remat_cli.planning.solved import Solved, replayed
from remat_cli.planning.splitting import smallest_split
from remat_cli.running import Abandoned, interruptible, run
from remat_cli.strategies.annealing.squeeze import squeeze
from remat_cli.strategies.base import Found, NotFound, Schedule, Task
from remat_cli.strategies.published.opener import OPENING_METHODS
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.strategies.repeated.reachability import Reachability

_OPENING_S, _OPENING_SHARE = 10.0, 0.3
"""Limits for the opening methods together: most seconds, and a share of the time left. Untuned."""
_SQUEEZE_SHARE, _PROVE_SHARE = 0.4, 0.4
"""Shares of the time left for the two searches for the least peak; the rest is for the cost. Untuned."""
_PROVE_MOST_S = 60.0
"""Most seconds for a proof of the least peak. Untuned."""
_SMALL = 60
"""Up to this many nodes the MILP of the paper proves the least peak; larger graphs go to ``optimal``. Untuned."""
_EXCLUDE_SHARE, _EXCLUDE_MOST_S, _EXCLUDE_EACH = 0.4, 60.0, 0.3
"""Limits for listing states of memory: share of the time left, most seconds, and the share of these for one budget."""
_EXCLUDE_CLOSE = 1e-3
"""Budgets this close, as a share, are not told apart."""
_ROUNDS = 40
"""Most runs of the exact strategy, each for a budget one byte below the least peak so far. Untuned."""
_HALVINGS, _HALVING_SHARE = 6, 0.5
"""With copies: most budgets that are tried, and their share of the time left. Untuned."""
_GRACE_S = 2.5
"""Seconds after the time limit in which annealing may still stop by itself. Untuned."""
_ANNEALED = "anneal"


def solve_smallest(
    graph: Graph,
    options: SolveOptions | None = None,
    *,
    cache: PlanCache | None = None,
    listener: Callable[[Progress], None] | None = None,
) -> Solved:
    """The cheapest plan at the least peak that any search finds; see :func:`remat_cli.solve_smallest`.

    The budget of the plan is that peak. Its claim holds a lower bound on every peak, and the plans it holds for.
    """
    options = options or SolveOptions()

    def search() -> Solved:
        if not (graph.splits and options.split):
            return _search(graph, options, listener)
        return smallest_split(graph, options, lambda one, how: _search(one, how, listener))

    return (
        search() if cache is None else cache.recall_or_search(graph, None, options, lambda _: search(), least_peak=True)
    )


def _search(graph: Graph, options: SolveOptions, listener: Callable[[Progress], None] | None) -> Solved:
    """The plan by a search, replayed."""
    job = Job.of(graph, options, listener)
    host = job.options.host
    if not job.strategy.minds_budget:
        raise StrategyMismatch(
            f"{job.strategy.name} makes one plan, whatever the budget, so it has no cheapest plan at the least peak",
            hint=Worded(
                "leave strategy out, or take one that minds the budget, such as auto",
                "leave --strategy out, or take one that minds the budget, such as auto",
            ),
        )
    pool = SolutionPool(graph, host)
    # Bounds that need no search; with copies or collectives the largest working set alone.
    bounds, least = [PeakClaim(peak_bound(graph).bytes, Scope.ANY_ORDER)], pool.objective.least_peak_bytes
    if least is not None:
        bounds.append(PeakClaim(least, Scope.DOCUMENT_ORDER))
    descent = _Descent(PooledRuns(job, pool), bounds)
    with interruptible(job.context.control):
        if host is not None or graph.overlaps:
            descent.halve()
        else:
            descent.search()
        ending = descent.cheapen()
        lowest = pool.schedules[0]
        answer = replace(lowest.found, bounds=pool.bounds_at(lowest.peak_bytes))
        return replayed(job, Task(graph, lowest.peak_bytes, host=host), answer, ending, None, least=descent.claim())


@dataclass(slots=True)
class _Descent:
    """A search for the least peak, under way.

    Attributes:
        runs: What all runs share; the first schedule of its pool is the one with the least peak.
        proven: Bounds on the peak, each for some set of schedules.
    """

    runs: PooledRuns
    proven: list[PeakClaim]

    @property
    def lowest_bytes(self) -> int:
        """The least peak found."""
        return self.runs.pool.schedules[0].peak_bytes

    def claim(self) -> PeakClaim:
        """The strongest bound that is not above the least peak found; of equal ones, that of the widest scope.

        A bound above it holds for a class of plans that does not contain the plan found.
        """
        telling = self.proven[0]
        for bound in self.proven[1:]:
            same = bound.lower_bound_bytes == telling.lower_bound_bytes
            if bound.lower_bound_bytes > self.lowest_bytes:
                continue
            if bound.lower_bound_bytes > telling.lower_bound_bytes or (same and bound.scope.contains(telling.scope)):
                telling = bound
        return telling

    def closed(self) -> bool:
        """Whether the least peak found is proven least, or time is over."""
        return self.claim().lower_bound_bytes >= self.lowest_bytes or self.runs.over()

    def search(self) -> None:
        """Search for the least peak without copies, and prove it."""
        self.open()
        # Small graphs: the proof may take less time than annealing, and makes it needless.
        if len(self.runs.job.graph.nodes) <= _SMALL:
            self.prove()
        if not self.closed():
            warm(("reaching",))  # beside the squeeze
            self.squeeze()
            self.exclude()
            self.prove()

    def halve(self) -> None:
        """Search for the least peak with copies or collectives: at the lower bound, then up to the least one found."""
        graph, runs = self.runs.job.graph, self.runs
        runs.pool.add(Found(Schedule(tuple(range(len(graph.nodes)))), maker="keep-all"))
        low = budget = self.claim().lower_bound_bytes
        for left in range(_HALVINGS, 0, -1):
            if self.closed() or budget >= self.lowest_bytes:
                return
            # Half of the time is for the search for the cheapest plan at that peak.
            answer, _ = runs.run(budget, runs.control.part(_HALVING_SHARE / left, _PROVE_MOST_S))
            if isinstance(answer, NotFound):
                if answer.scope is not None:
                    self.proven.append(PeakClaim(budget + 1, answer.scope))
                low = budget + 1
            budget = (low + self.lowest_bytes) // 2

    def open(self) -> None:
        """Run the opening methods with the highest lower bound as budget: each then goes as low as it can."""
        graph, pool = self.runs.job.graph, self.runs.pool
        pool.add(Found(Schedule(tuple(range(len(graph.nodes)))), maker="keep-all"))
        if self.runs.job.start is not None:
            pool.add(self.runs.job.start.found)
        floor = max(bound.lower_bound_bytes for bound in self.proven)
        clock = self.runs.control.part(_OPENING_SHARE, _OPENING_S)
        for spec in OPENING_METHODS:
            if not clock.stopping() and self.lowest_bytes > floor:
                with suppress(StrategyMismatch):  # not for this graph
                    replace(self.runs, maker=spec).run(floor, clock, strategy=strategy_from_spec(spec))

    def squeeze(self) -> None:
        """Anneal towards ever smaller peaks, from the schedule that computes everything once."""
        job, control, pool = self.runs.job, self.runs.control, self.runs.pool
        sequences: list[tuple[int, ...]] = []
        floor = max(bound.lower_bound_bytes for bound in self.proven)
        clock = control.part(_SQUEEZE_SHARE)
        with suppress(Abandoned):  # ``sequences`` holds what it published before
            run(lambda: squeeze(job.graph, floor, clock, job.context.seed, sequences.append), control, grace_s=_GRACE_S)
        for computes in tuple(sequences):
            pool.add(Found(Schedule(computes), exhausted=False, maker=_ANNEALED))

    def exclude(self) -> None:
        """Find budgets that nothing fits by listing states of memory: just below the least peak, then by halving."""
        clock = self.runs.control.part(_EXCLUDE_SHARE, _EXCLUDE_MOST_S)
        if self.closed() or not wait("reaching", clock):
            return
        reachability = Reachability.of(self.runs.job.graph)
        low, high = self.claim().lower_bound_bytes, self.lowest_bytes
        budget = high - 1
        while high - low > _EXCLUDE_CLOSE * high and not clock.stopping():
            least = reachability.least_beyond(budget, clock.part(_EXCLUDE_EACH))
            if least is None:
                high = budget
            else:
                low = least
                self.proven.append(PeakClaim(least, Scope.DOCUMENT_ORDER))
            budget = (low + high) // 2

    def prove(self) -> None:
        """Run an exact strategy for one byte less than the least peak, until it finds no plan."""
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
                return  # the plan found so far stays; its claim has no new bound
            if isinstance(answer, Found):
                continue
            if answer.scope is not None:
                self.proven.append(PeakClaim(below + 1, answer.scope))
            if self.lowest_bytes > below:  # it published no lower plan during the run either
                return

    def cheapen(self) -> Ending:
        """Search for the cheapest plan at the least peak; returns how that ended."""
        budget, control = self.lowest_bytes, self.runs.control
        if control.stopping():
            return Ending(control.stopped_by())
        answer, ending = self.runs.run(budget, control)
        if isinstance(answer, NotFound) and not control.stopping():  # no schedule of its class has so low a peak
            return Ending(Outcome.FINISHED)
        return self.cheapen() if self.lowest_bytes < budget else ending  # the run published an even lower peak
