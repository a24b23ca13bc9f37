"""The cheapest plan for each of several budgets, every one learning from the others."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from remat_cli.control import Control, Ending, Outcome, Progress
from remat_cli.errors import Infeasible, RematError, SolverFailed
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.plan.model import ClaimStatus
from remat_cli.planning.job import Job, Solved
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.pool import Pool
from remat_cli.planning.processes import shared_calls
from remat_cli.planning.refusals import no_plan, refuse_impossible
from remat_cli.planning.runs import Runs
from remat_cli.running import interruptible
from remat_cli.strategies.base import NotFound, Task
from remat_cli.tolerances import NOTHING_LEFT
from remat_cli.units import Budget, parse_budget, parse_budgets

_QUICK_S, _QUICK_PER_NODE_S = 2.0, 1 / 12
"""Time for the first look at a budget, which most are done within."""
_LATE_S = 20.0
"""Seconds over its time after which the process of a first look is ended."""
_WORTH_PROCESSES = 500
"""Nodes times budgets from which on the budgets are looked at independently, so that processes can take part."""
_PROCESSES_AFTER_S = 1.0
"""Seconds after which processes take part; they need about as long to start."""


class PointStatus(StrEnum):
    """What became of one budget."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    """Proven: no plan fits, or none of the class that the reason names."""
    UNKNOWN = "unknown"
    """No plan was found, and nothing was proven."""


@dataclass(frozen=True, slots=True)
class Point:
    """One budget of a curve.

    Attributes:
        asked: The budget as asked.
        budget_bytes: In bytes, fixed memory included.
        status: What became of it.
        solved: The plan and its replay; None if there is none.
        refusal: Why there is none, with a hint; None if there is one.
    """

    asked: Budget
    budget_bytes: int
    status: PointStatus
    solved: Solved | None = None
    refusal: RematError | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """The cheapest plans found for several budgets. Neither costs nor bounds rise with the budget.

    Attributes:
        graph: The graph.
        points: By rising budget; budgets of the same bytes appear once.
        outcome: How the search ended; its time limit, if that is how the run for any budget ended.
        wall_s: Seconds it took.
    """

    graph: Graph
    points: tuple[Point, ...]
    outcome: Outcome
    wall_s: float


def solve_curve(
    graph: Graph,
    budgets: Iterable[Budget | str | int] | str,
    options: SolveOptions | None = None,
    *,
    jobs: int = 1,
    listener: Callable[[Progress], None] | None = None,
) -> Curve:
    """The cheapest plan of ``graph`` within each of ``budgets``.

    Args:
        graph: The graph.
        budgets: Budgets, each as :func:`solve` takes it, or all as text: ``"40%:95%:5%"``, ``"4GB,8GB"``.
        options: How to solve; the time limit is for all budgets together.
        jobs: Budgets that get their first look at the same time, in this process and in others with one thread each,
            which import the main module: a script must keep its call under ``if __name__ == "__main__"``.
        listener: Gets the progress, from any thread.

    Raises:
        UsageError, SolverUnavailable, StrategyMismatch, InvalidStrategyPlan: As their names say.
        SolverFailed: If the solver failed and there is no plan for any budget.
    """
    each = parse_budgets(budgets) if isinstance(budgets, str) else budgets
    wanted = [parse_budget(str(budget)) if isinstance(budget, str | int) else budget for budget in each]
    top = no_remat_peak(graph)
    asked = {budget.bytes_for(top): budget for budget in reversed(wanted)}
    job = Job.of(graph, options or SolveOptions(), None)
    course = _Course(Runs(job, Pool(graph)), dict(sorted(asked.items())), listener, jobs)
    control = course.runs.control
    with interruptible(control):
        course.run()
    points = tuple(course.point(budget_bytes) for budget_bytes in course.asked)
    if course.failed is not None and not any(point.solved for point in points):
        raise course.failed
    stopped = control.stopping() or Outcome.TIME_LIMIT in course.outcomes.values()
    return Curve(graph, points, control.stopped_by() if stopped else Outcome.FINISHED, time.monotonic() - job.started_s)


@dataclass(slots=True)
class _Course:
    """A curve on its way.

    The smallest budget within which a plan comes up is looked at first, for its plan is one for every larger budget,
    and then the others by rising budget. What is hard gets its time only when all have had a look, for it may take
    minutes where the rest take seconds; then it starts from the plans found so far. Bounds are handed on at once.

    Attributes:
        runs: What all runs share.
        asked: The budgets by their bytes, rising.
        listener: Gets the progress.
        jobs: First looks at the same time.
        outcomes: How the latest run for each budget ended, by bytes; those that had none are missing.
        failed: The first failure of the solver.
    """

    runs: Runs
    asked: dict[int, Budget]
    listener: Callable[[Progress], None] | None
    jobs: int = 1
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    failed: SolverFailed | None = None

    def run(self) -> None:
        """Work on all budgets: shortly on each, so that all have something; then on those that this leaves open."""
        possible = [budget for budget in self.asked if self._refused(budget) is None]
        if not self.runs.job.strategy.minds_budget:  # one schedule, take it or leave it
            for budget in possible[-1:]:
                self._work(budget, self.runs.control)
            self.outcomes = dict.fromkeys(possible, Outcome.FINISHED)
            return
        if len(possible) > 1 and self.jobs > 1 and len(possible) * len(self.runs.job.graph.nodes) >= _WORTH_PROCESSES:
            self._look_together(possible)
        elif len(possible) > 1:
            rest = [b for b in possible[self._smallest_with_plan(possible) :] if b not in self.outcomes]
            for k, budget in enumerate(rest):
                self._work(budget, self.runs.first_of(len(rest) - k + 1, self._quick_s))
        self._close([budget for budget in possible if self._open(budget)])

    def _look_together(self, possible: list[int]) -> None:
        """Look at all budgets: at the smallest ones here, and meanwhile at the others in processes, the largest first.

        Then take part. What comes out depends neither on who looks at a budget nor on when: no look knows of another.
        One that is lost with its process is taken again here.
        """
        rest = possible[1:]
        job, control = self.runs.job, self.runs.control
        clock = self.runs.first_of(math.ceil(len(rest) / self.jobs) + 1, self._quick_s)
        most_s = clock.remaining_s() or self._quick_s
        timed = control.deadline_s is not None
        options = replace(job.options, time_limit_s=most_s if timed else None, started_s=None, threads=1)
        calls = [(job.graph, options, budget, self.asked[budget], most_s) for budget in rest]
        with shared_calls(_look, calls, self.jobs - 1, "remat_cli.planning.warm", most_s + _LATE_S) as shared:
            shared.begin(_PROCESSES_AFTER_S)
            first = self._smallest_with_plan(possible)
            least = possible[first] if first < len(possible) else math.inf
            looks: dict[int, tuple[Pool, Outcome]] = {}
            while not self.runs.over() and (index := shared.take()) is not None:
                if rest[index] >= least and rest[index] not in self.outcomes:
                    looks[rest[index]] = self._look_here(options, rest[index], most_s)
            looks |= {rest[index]: found for index, found in shared.results(control).items()}
            lost = {rest[index]: error for index, error in shared.lost().items()}
        for budget, error in lost.items():
            if not self.runs.over() and self._missed(budget, error):
                looks[budget] = self._look_here(options, budget, most_s)
        for budget, (pool, outcome) in sorted(looks.items()):
            if budget >= least and budget not in self.outcomes:
                self.runs.pool.merge(pool)
                self.outcomes[budget] = outcome
        if self.listener is not None:
            place = f"{len(self.outcomes)} of {len(self.asked)} budgets have had a look"
            self.listener(Progress(place, None, job.graph.total_cost))

    def _missed(self, budget: int, error: BaseException) -> bool:
        """Say that a look was lost; whether to take it again, which is no use where it did not end in its time."""
        again = not isinstance(error, TimeoutError)
        if self.listener is not None:
            ending = "was lost with its process and is taken again" if again else "did not end in its time"
            self.listener(Progress(f"{self.asked[budget].text}: the first look {ending}"))
        return again

    def _look_here(self, options: SolveOptions, budget: int, most_s: float) -> tuple[Pool, Outcome]:
        """A first look in this process, just as in another; what is interrupted counts."""
        job = Job.of(self.runs.job.graph, options, None)
        job.context.control.cancelled = self.runs.control.cancelled
        return _looked(job, budget, self.asked, most_s, self.listener)

    def _smallest_with_plan(self, possible: list[int]) -> int:
        """Index of the smallest of the budgets for which a plan comes up: the first of all if need be by bisection."""
        fails, fits, at = -1, len(possible), 0
        while fails + 1 < fits and not self.runs.over():
            self._work(possible[at], self.runs.first_of(len(possible), self._quick_s))
            fits = next((k for k in range(fits) if self.runs.pool.within(possible[k]) is not None), fits)
            fails = max(fails, at if at < fits else -1)
            at = (fails + fits) // 2
        return fits

    def _close(self, budgets: list[int]) -> None:
        """Give open budgets all the time there is: with a plan by rising budget, then the others by falling budget."""
        missing = [budget for budget in reversed(budgets) if self.runs.pool.within(budget) is None]
        planned = [budget for budget in budgets if budget not in missing]
        for k, budget in enumerate(planned):
            self._work(budget, self.runs.first_of(len(planned) - k + (1 if missing else 0)))
        for k, budget in enumerate(missing):
            self._work(budget, self.runs.first_of(len(missing) - k))
            if self.runs.pool.within(budget) is None:
                return  # nor will there be a plan within less

    def _open(self, budget: int) -> bool:
        """Whether a longer run may find more: there was none yet, or the latest ended at its time limit."""
        return self.outcomes.get(budget, Outcome.TIME_LIMIT) is Outcome.TIME_LIMIT

    def _work(self, budget: int, clock: Control) -> None:
        """Run the strategy for a budget, if there is time and something to gain."""
        job, control, pool = self.runs.job, self.runs.control, self.runs.pool
        if self.runs.over():
            return
        if pool.proven_within(budget, min(NOTHING_LEFT, job.context.gap)):
            self.outcomes[budget] = Outcome.FINISHED
            return
        limited = control.deadline_s is not None
        run_clock = clock if limited or clock.deadline_s is None else clock.braked(timed=False)
        # The plan for a smaller budget is far from the best one here, and makes models larger: measured, it costs a
        # third more time, and within the gap it stops the search. Who is stuck without it gets it the second time.
        fresh = budget not in self.outcomes
        try:
            answer, ending = self.runs.run(budget, self._heard(run_clock, budget), fresh=fresh)
            outcome = ending.outcome
        except SolverFailed as error:
            self.failed = self.failed or error
            answer, outcome = NotFound(f"the solver failed: {error.message}"), Outcome.SOLVER_FAILED
            pool.learn(budget, answer)
        if outcome is Outcome.TIME_LIMIT and isinstance(answer, NotFound) and not clock.stopping():
            # A run that proves that there is no plan says so without being at its end. One that gave up may have had
            # too little time for what it would have done next.
            outcome = Outcome.TIME_LIMIT if limited and answer.scope is None else Outcome.FINISHED
        self.outcomes[budget] = outcome

    @property
    def _quick_s(self) -> float:
        return _QUICK_S + _QUICK_PER_NODE_S * len(self.runs.job.graph.nodes)

    def _heard(self, control: Control, budget: int) -> Control:
        """``control`` with a listener that knows which budget it hears of."""
        if self.listener is None:
            return control
        kept = self.runs.pool.within(budget)
        place = f"{self.asked[budget].text} ({1 + list(self.asked).index(budget)} of {len(self.asked)})"
        latest = Progress("", None if kept is None else kept.cost, self.runs.job.graph.total_cost)
        return replace(control, listener=_Placed(place, self.listener, latest).report)

    def _refused(self, budget: int) -> Infeasible | None:
        """Why no plan can be within a budget, where that is plain to see."""
        try:
            refuse_impossible(self.runs.job.graph, budget, self.asked[budget])
        except Infeasible as refusal:
            return refusal
        return None

    def point(self, budget: int) -> Point:
        """What became of a budget."""
        asked, job, pool, control = self.asked[budget], self.runs.job, self.runs.pool, self.runs.control
        if (refused := self._refused(budget)) is not None:
            return Point(asked, budget, PointStatus.INFEASIBLE, refusal=refused)
        answer = pool.answer(budget) or NotFound("there was no time for this budget")
        if isinstance(answer, NotFound) and not job.strategy.minds_budget and pool.kept:
            answer = pool.kept[0].found
        if isinstance(answer, NotFound):
            refusal = no_plan(job.graph, asked, budget, answer, control)
            status = PointStatus.INFEASIBLE if isinstance(refusal, Infeasible) else PointStatus.UNKNOWN
            return Point(asked, budget, status, refusal=refusal)
        ending = Ending(self.outcomes.get(budget, control.stopped_by()))
        try:
            solved = job.solved(Task(job.graph, budget), answer, ending, asked)
        except Infeasible as over:
            return Point(asked, budget, PointStatus.INFEASIBLE, refusal=over)
        optimal = solved.plan.claim.status is ClaimStatus.OPTIMAL
        return Point(asked, budget, PointStatus.OPTIMAL if optimal else PointStatus.FEASIBLE, solved)


def _look(graph: Graph, options: SolveOptions, budget: int, asked: Budget, most_s: float) -> tuple[Pool, Outcome]:
    """A first look at a budget, in a process of its own: what it found, and how it ended.

    Args:
        graph: The graph.
        options: How to solve; with a time limit if the command has one, so that strategies see theirs.
        budget: Bytes.
        asked: The budget as asked.
        most_s: Seconds.
    """
    return _looked(Job.of(graph, options, None), budget, {budget: asked}, most_s, None)


def _looked(
    job: Job, budget: int, asked: dict[int, Budget], most_s: float, listener: Callable[[Progress], None] | None
) -> tuple[Pool, Outcome]:
    """What a first look at a budget that knows of no other finds, and how it ends."""
    course = _Course(Runs(job, Pool(job.graph)), asked, listener)
    control = course.runs.control
    course._work(budget, control if control.deadline_s is not None else control.part(most_s=most_s))
    return course.runs.pool, course.outcomes.get(budget, Outcome.TIME_LIMIT)


@dataclass(slots=True)
class _Placed:
    """Passes progress on with the budget it is about, so that nobody takes it for that of another."""

    place: str
    listener: Callable[[Progress], None]
    latest: Progress

    def report(self, news: Progress) -> None:
        """Pass on, with what was known before where the news is silent."""
        cost = self.latest.cost if news.cost is None else news.cost
        bound = self.latest.bound if news.bound is None else news.bound
        self.latest = Progress(f"{self.place}: {news.activity}", cost, bound, news.nodes)
        self.listener(self.latest)
