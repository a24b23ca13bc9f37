"""The cheapest plan for each of several budgets. The runs share schedules and bounds."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from remat_cli.control import Control, Ending, Outcome, Progress
from remat_cli.errors import Infeasible, RematError, SolverFailed, UsageError, Worded
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.plan.model import ClaimStatus
from remat_cli.planning.job import Job
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.processes import shared_calls
from remat_cli.planning.refusals import no_plan, refuse_impossible
from remat_cli.planning.solution_pool import PooledRuns, SolutionPool
from remat_cli.planning.solved import Solved, replayed
from remat_cli.running import interruptible
from remat_cli.short_repr import ShortRepr
from remat_cli.strategies.base import NotFound, Task
from remat_cli.tolerances import NOTHING_LEFT
from remat_cli.units import Budget, as_budgets, format_bytes, format_cost, format_duration

_QUICK_S, _QUICK_PER_NODE_S = 2.0, 1 / 12
"""Time limit of the short first run for a budget, which most runs need less than: a base, plus so much for each node.
Untuned."""
_LATE_S = 20.0
"""Seconds over its time limit after which the process of a first run is ended. Untuned."""
_WORTH_PROCESSES = 500
"""Nodes times budgets from which the first runs are independent, so that other processes can share them. Untuned."""
_PROCESSES_AFTER_S = 1.0
"""Seconds after which other processes start; starting one takes about as long."""


class PointStatus(StrEnum):
    """The result for one budget."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    """It is proven that no plan fits, or no plan of the class that the reason names."""
    UNKNOWN = "unknown"
    """No plan was found, and nothing was proven."""


@dataclass(frozen=True, slots=True)
class Point:
    """One budget of a curve.

    Attributes:
        asked: The budget as asked.
        budget_bytes: The budget in bytes, fixed memory included.
        status: The result.
        solved: The plan and its replay; None if there is no plan.
        refusal: Why there is no plan, with a hint; None if there is one.
    """

    asked: Budget
    budget_bytes: int
    status: PointStatus
    solved: Solved | None = None
    refusal: RematError | None = None

    def cells(self) -> tuple[str, ...]:
        """The point as a row of a table: budget, peak, cost, result."""
        figures = ("", "")
        if self.solved is not None:
            report = self.solved.report
            figures = (format_bytes(report.replay.peak_bytes), format_cost(report.replay.time, report.graph.cost_unit))
        return (self.asked.text, *figures, self.status.value)


@dataclass(frozen=True, slots=True, repr=False)
class Curve(ShortRepr):
    """The cheapest plans found for several budgets. Neither costs nor bounds rise with the budget.

    Attributes:
        graph: The graph.
        points: By rising budget. Budgets of equally many bytes appear once.
        outcome: How the search ended; ``TIME_LIMIT`` if the run for any budget ended that way.
        wall_s: Seconds that the search took.
    """

    graph: Graph
    points: tuple[Point, ...]
    outcome: Outcome
    wall_s: float

    def unproven(self) -> tuple[Point, ...]:
        """The points of which it is not known whether there is a plan, or a cheaper one."""
        return tuple(p for p in self.points if p.status in (PointStatus.FEASIBLE, PointStatus.UNKNOWN))

    def _facts(self) -> dict[str, str]:
        return {
            "graph": self.graph.name,
            "nodes": f"{len(self.graph.nodes):,}",
            "budgets": f"{len(self.points):,}",
            "with a plan": f"{sum(point.solved is not None for point in self.points):,}",
            "search": f"{self.outcome.value} after {format_duration(self.wall_s)}",
        }

    def _table_rows(self) -> list[tuple[str, ...]]:
        return [("budget", "peak", "cost", "result"), *(point.cells() for point in self.points)]


def solve_curve(
    graph: Graph,
    budgets: Iterable[Budget | str | float] | Budget | str | float,
    options: SolveOptions | None = None,
    *,
    jobs: int = 1,
    dask: str | None = None,
    listener: Callable[[Progress], None] | None = None,
) -> Curve:
    """The cheapest plan of ``graph`` within each of ``budgets``; see :func:`remat_cli.solve_curve`."""
    if graph.splits and (options is None or options.split):
        raise UsageError(
            "the graph offers regions in parts, and several budgets are solved for whole operations",
            hint=Worded("set split=False, or give one budget", "add --no-split, or give one --budget"),
        )
    top = no_remat_peak(graph)
    asked = {budget.bytes_for(top): budget for budget in reversed(as_budgets(budgets))}
    job = Job.of(graph, options or SolveOptions(), None)
    pool = SolutionPool(graph, job.options.host)
    if job.start is not None:
        pool.add(job.start.found)
    search = _CurveSearch(PooledRuns(job, pool), dict(sorted(asked.items())), listener, jobs)
    control = search.runs.control
    with interruptible(control):
        if dask is None:
            search.run()
        else:
            search.run_on_cluster(dask)
    points = tuple(search.point(budget_bytes) for budget_bytes in search.asked)
    if search.failed is not None and not any(point.solved for point in points):
        raise search.failed
    stopped = control.stopping() or Outcome.TIME_LIMIT in search.outcomes.values()
    return Curve(graph, points, control.stopped_by() if stopped else Outcome.FINISHED, time.monotonic() - job.started_s)


@dataclass(slots=True)
class _CurveSearch:
    """A curve under construction.

    Every budget gets a short first run. The first of these are for the smallest budget that has a plan, because that
    plan fits every larger budget too; the others follow by rising budget. Then every budget that is still open gets a
    long run. Long runs wait because a hard budget may take minutes where the others take seconds, and because a long
    run starts from all plans found so far. Every run receives all bounds known when it starts.

    Attributes:
        runs: What all runs share.
        asked: The budgets by their bytes, rising.
        listener: Receives the progress.
        jobs: Number of first runs at the same time.
        outcomes: How the latest run for each budget ended, by bytes; without the budgets that had no run.
        failed: The first failure of the solver.
    """

    runs: PooledRuns
    asked: dict[int, Budget]
    listener: Callable[[Progress], None] | None
    jobs: int = 1
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    failed: SolverFailed | None = None

    def run(self) -> None:
        """Run the strategy for all budgets: shortly for each, then longer for those that are still open."""
        possible = [budget for budget in self.asked if self._refused(budget) is None]
        if not self.runs.job.strategy.minds_budget:  # its schedule is the same for every budget
            for budget in possible[-1:]:
                self.run_budget(budget, self.runs.control)
            self.outcomes = dict.fromkeys(possible, Outcome.FINISHED)
            return
        if len(possible) > 1 and self.jobs > 1 and len(possible) * len(self.runs.job.graph.nodes) >= _WORTH_PROCESSES:
            self._first_runs_in_parallel(possible)
        elif len(possible) > 1:
            rest = [b for b in possible[self._smallest_with_plan(possible) :] if b not in self.outcomes]
            for k, budget in enumerate(rest):
                self.run_budget(budget, self.runs.first_of(len(rest) - k + 1, self._quick_s))
        # A longer run may find more for a budget that had no run yet, or whose latest ended at the time limit.
        limited = Outcome.TIME_LIMIT
        self._long_runs([budget for budget in possible if self.outcomes.get(budget, limited) is limited])

    def run_on_cluster(self, address: str) -> None:
        """Search on the workers of a Dask cluster."""
        from remat_cli.planning.dask_cluster import search_on_cluster

        possible = [budget for budget in self.asked if self._refused(budget) is None]
        if not self.runs.job.strategy.minds_budget:  # nothing to share
            self.run()
        elif possible:
            self.outcomes = search_on_cluster(address, self.runs, possible, self.listener)

    def _first_runs_in_parallel(self, possible: list[int]) -> None:
        """Make the first runs in parallel: of the smallest budgets here, of the largest in other processes.

        This process then takes further budgets, from the small end. Runs in ``rest`` do not learn from one another, so
        the result depends neither on which process makes a run nor on when. If a process dies, its run is repeated
        here.
        """
        rest = possible[1:]
        job, control = self.runs.job, self.runs.control
        clock = self.runs.first_of(math.ceil(len(rest) / self.jobs) + 1, self._quick_s)
        most_s = clock.remaining_s() or self._quick_s
        # Strategies plan their stages by the time limit that they see, so a run gets one only if the command has one.
        timed = control.deadline_s is not None
        options = replace(job.options, time_limit_s=most_s if timed else None, started_s=None, threads=1, start=None)
        calls = [(job.graph, options, budget, self.asked[budget], most_s) for budget in rest]
        with shared_calls(_first_run, calls, self.jobs - 1, "remat_cli.planning.preload", most_s + _LATE_S) as shared:
            shared.begin(_PROCESSES_AFTER_S)
            first = self._smallest_with_plan(possible)
            least = possible[first] if first < len(possible) else math.inf
            first_runs: dict[int, tuple[SolutionPool, Outcome]] = {}
            while not self.runs.over() and (index := shared.take()) is not None:
                if rest[index] >= least and rest[index] not in self.outcomes:
                    first_runs[rest[index]] = self._first_run_here(options, rest[index], most_s)
            first_runs |= {rest[index]: result for index, result in shared.results(control).items()}
            lost = {rest[index]: error for index, error in shared.lost().items()}
        for budget, error in lost.items():
            if not self.runs.over() and self._is_repeated(budget, error):
                first_runs[budget] = self._first_run_here(options, budget, most_s)
        # In the order of budgets, not of arrival: among equal schedules the pool keeps the first.
        for budget, (pool, outcome) in sorted(first_runs.items()):
            if budget >= least and budget not in self.outcomes:
                self.runs.pool.merge(pool)
                self.outcomes[budget] = outcome
        if self.listener is not None:
            place = f"{len(self.outcomes)} of {len(self.asked)} budgets have had a first run"
            self.listener(Progress(place, None, job.graph.least_cost))

    def _is_repeated(self, budget: int, error: BaseException) -> bool:
        """Report that a first run was lost; returns whether to repeat it, which is useless if it ran out of time."""
        again = not isinstance(error, TimeoutError)
        if self.listener is not None:
            ending = "was lost with its process and is repeated" if again else "did not end in its time"
            self.listener(Progress(f"{self.asked[budget].text}: the first run {ending}"))
        return again

    def _first_run_here(self, options: SolveOptions, budget: int, most_s: float) -> tuple[SolutionPool, Outcome]:
        """Make a first run in this process, exactly as another process would; an interrupted run counts."""
        job = Job.of(self.runs.job.graph, options, None)
        job.context.control.cancelled = self.runs.control.cancelled
        return _run_alone(job, budget, self.asked, most_s, self.listener)

    def _smallest_with_plan(self, possible: list[int]) -> int:
        """Index of the smallest budget for which a plan is found; ``len(possible)`` if there is none.

        The smallest budget of all is tried first, since it usually has a plan; bisection follows if it has not.
        """
        fails, fits, at = -1, len(possible), 0
        while fails + 1 < fits and not self.runs.over():
            self.run_budget(possible[at], self.runs.first_of(len(possible), self._quick_s))
            # A run may publish plans for other budgets than its own, so ask the pool.
            fits = next((k for k in range(fits) if self.runs.pool.within(possible[k]) is not None), fits)
            fails = max(fails, at if at < fits else -1)
            at = (fails + fits) // 2
        return fits

    def _long_runs(self, budgets: list[int]) -> None:
        """Make long runs for the open budgets: with a plan by rising budget, then without one by falling budget.

        A rising order improves the bounds and plans of the budgets that follow. Without a plan, the largest budget is
        the most likely to get one.
        """
        missing = [budget for budget in reversed(budgets) if self.runs.pool.within(budget) is None]
        planned = [budget for budget in budgets if budget not in missing]
        for k, budget in enumerate(planned):
            self.run_budget(budget, self.runs.first_of(len(planned) - k + (1 if missing else 0)))
        for k, budget in enumerate(missing):
            self.run_budget(budget, self.runs.first_of(len(missing) - k))
            if self.runs.pool.within(budget) is None:
                return  # the smaller budgets are harder still

    def run_budget(self, budget: int, clock: Control) -> None:
        """Run the strategy for a budget, unless time is over or its plan is proven optimal."""
        job, control, pool = self.runs.job, self.runs.control, self.runs.pool
        if self.runs.over():
            return
        if pool.proven_within(budget, min(NOTHING_LEFT, job.context.gap)):
            self.outcomes[budget] = Outcome.FINISHED
            return
        limited = control.deadline_s is not None
        run_clock = clock if limited or clock.deadline_s is None else clock.stoppable(timed=False)
        # The first run for a budget does not start from the plan for a smaller one. That plan is far from optimal
        # here and makes models larger: measured, a run takes a third longer with it, and if it is within the gap the
        # search stops early. The second run gets it.
        fresh = budget not in self.outcomes
        try:
            answer, ending = self.runs.run(budget, self._with_place(run_clock, budget), fresh=fresh)
            outcome = ending.outcome
        except SolverFailed as error:
            self.failed = self.failed or error
            answer, outcome = NotFound(f"the solver failed: {error.message}"), Outcome.SOLVER_FAILED
            pool.add_answer(budget, answer)
        if outcome is Outcome.TIME_LIMIT and isinstance(answer, NotFound) and not clock.stopping():
            # The run ended by itself, without a plan. If it has a proof (a scope), a longer run is useless. If it has
            # none, it may have skipped a stage for lack of time, so the budget stays open.
            outcome = Outcome.TIME_LIMIT if limited and answer.scope is None else Outcome.FINISHED
        self.outcomes[budget] = outcome

    @property
    def _quick_s(self) -> float:
        return _QUICK_S + _QUICK_PER_NODE_S * len(self.runs.job.graph.nodes)

    def _with_place(self, control: Control, budget: int) -> Control:
        """``control`` with a listener that adds the budget to every report."""
        if self.listener is None:
            return control
        entry = self.runs.pool.within(budget)
        place = f"{self.asked[budget].text} ({1 + list(self.asked).index(budget)} of {len(self.asked)})"
        latest = Progress("", None if entry is None else entry.cost, self.runs.job.graph.least_cost)
        return replace(control, listener=_PlacedProgress(place, self.listener, latest).report)

    def _refused(self, budget: int) -> Infeasible | None:
        """Why no plan can fit a budget, if its working sets alone prove that; else None."""
        try:
            refuse_impossible(self.runs.job.graph, budget, self.asked[budget])
        except Infeasible as refusal:
            return refusal
        return None

    def point(self, budget: int) -> Point:
        """The result for a budget."""
        asked, job, pool, control = self.asked[budget], self.runs.job, self.runs.pool, self.runs.control
        if (refused := self._refused(budget)) is not None:
            return Point(asked, budget, PointStatus.INFEASIBLE, refusal=refused)
        answer = pool.answer(budget) or NotFound("there was no time for this budget")
        if isinstance(answer, NotFound) and not job.strategy.minds_budget and pool.schedules:
            answer = pool.schedules[0].found
        if isinstance(answer, NotFound):
            refusal = no_plan(job.graph, asked, budget, answer, control)
            status = PointStatus.INFEASIBLE if isinstance(refusal, Infeasible) else PointStatus.UNKNOWN
            return Point(asked, budget, status, refusal=refusal)
        ending = Ending(self.outcomes.get(budget, control.stopped_by()))
        try:
            solved = replayed(job, Task(job.graph, budget, host=pool.host), answer, ending, asked)
        except Infeasible as over:
            return Point(asked, budget, PointStatus.INFEASIBLE, refusal=over)
        optimal = solved.plan.claim.status is ClaimStatus.OPTIMAL
        return Point(asked, budget, PointStatus.OPTIMAL if optimal else PointStatus.FEASIBLE, solved)


def _first_run(
    graph: Graph, options: SolveOptions, budget: int, asked: Budget, most_s: float
) -> tuple[SolutionPool, Outcome]:
    """Make the first run for a budget in a process of its own; returns what it found and how it ended."""
    return _run_alone(Job.of(graph, options, None), budget, {budget: asked}, most_s, None)


def _run_alone(
    job: Job, budget: int, asked: dict[int, Budget], most_s: float, listener: Callable[[Progress], None] | None
) -> tuple[SolutionPool, Outcome]:
    """Make a first run that shares nothing with the runs for other budgets; what it found and how it ended."""
    search = _CurveSearch(PooledRuns(job, SolutionPool(job.graph, job.options.host)), asked, listener)
    control = search.runs.control
    search.run_budget(budget, control if control.deadline_s is not None else control.part(most_s=most_s))
    return search.runs.pool, search.outcomes.get(budget, Outcome.TIME_LIMIT)


@dataclass(slots=True)
class _PlacedProgress:
    """Passes progress on, with the budget that it belongs to."""

    place: str
    listener: Callable[[Progress], None]
    latest: Progress

    def report(self, news: Progress) -> None:
        """Pass ``news`` on; a missing cost or bound is replaced by the latest one known."""
        cost = self.latest.cost if news.cost is None else news.cost
        bound = self.latest.bound if news.bound is None else news.bound
        self.latest = Progress(f"{self.place}: {news.activity}", cost, bound, news.nodes)
        self.listener(self.latest)
