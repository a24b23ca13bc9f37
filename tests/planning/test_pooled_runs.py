"""What the searches over budgets share: runs whose findings are pooled, their clocks, and when to start no more."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from remat_cli.control import Control, Ending, Outcome
from remat_cli.errors import LimitReached, SolverFailed
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.plan.model import Scope
from remat_cli.planning.job import Job
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.solution_pool import SHORTEST_S, PooledRuns, SolutionPool
from remat_cli.solvers.highs import Highs
from remat_cli.strategies.base import Bound, Context, Found, Known, NotFound, Schedule, Strategy, Task
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.zoo.registry import build_graph

GRAPH = build_graph("unit-chain{n=9}")
PLAIN = Schedule(tuple(range(9)))
PEAK = no_remat_peak(GRAPH)


def runs_of(time_limit_s: float | None = None, maker: str = "") -> PooledRuns:
    return PooledRuns(
        Job.of(GRAPH, SolveOptions("keep-all", time_limit_s=time_limit_s), None), SolutionPool(GRAPH), maker
    )


@dataclass(frozen=True)
class Made(Strategy):
    """A strategy of a test."""

    name: ClassVar[str] = "made"
    summary: ClassVar[str] = ""
    reference: ClassVar[str] = ""


@dataclass(frozen=True)
class Breaking(Made):
    """Publishes the plain schedule, and then its solver fails."""

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        context.publish(Found(PLAIN, exhausted=False))
        raise SolverFailed("out of luck")


@dataclass(frozen=True)
class Asking(Made):
    """Answers with the plain schedule, and keeps what it was asked."""

    asked: ClassVar[list[Task]] = []

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        self.asked.append(task)
        return Found(PLAIN, (Bound(GRAPH.total_cost, Scope.ANY_ORDER),))


def test_a_solver_that_fails_after_a_plan_leaves_it_and_its_last_words() -> None:
    runs = runs_of(maker="someone")
    answer, ending = runs.run(PEAK, runs.control, strategy=Breaking())
    assert isinstance(answer, Found)
    assert ending == Ending(Outcome.SOLVER_FAILED, "out of luck")
    assert str(ending) == "solver failed: out of luck"
    assert [(entry.found.schedule, entry.found.maker) for entry in runs.pool.schedules] == [(PLAIN, "someone")]


def test_a_schedule_over_the_budget_is_pooled_though_its_run_fails() -> None:
    runs = runs_of()
    with pytest.raises(SolverFailed, match="out of luck"):
        runs.run(PEAK - 1, runs.control, strategy=Breaking())
    assert [entry.found.schedule for entry in runs.pool.schedules] == [PLAIN]
    assert not runs.pool.failures


def test_a_fresh_run_is_told_bounds_alone() -> None:
    runs = runs_of()
    for fresh in (True, False, True):
        answer, ending = runs.run(PEAK, runs.control, strategy=Asking(), fresh=fresh)
        assert isinstance(answer, Found)
        assert str(ending) == "finished"
    bounds = (Bound(GRAPH.total_cost, Scope.ANY_ORDER),)
    assert [task.known for task in Asking.asked] == [None, Known((PLAIN,), bounds), Known((), bounds)]


def test_the_first_of_several_runs_gets_twice_its_part_and_the_last_all_there_is() -> None:
    runs = runs_of(1000.0)
    whole = runs.control.remaining_s()
    assert whole is not None
    for left in (1, 3, 9):
        assert runs.first_of(left).remaining_s() == pytest.approx(whole * 2 / (left + 1), rel=0.01)
    assert runs.first_of(1, 5.0).remaining_s() == pytest.approx(5.0, rel=0.1)
    assert runs_of().first_of(3).deadline_s is None


def test_nothing_is_started_without_time_for_it_or_after_ctrl_c() -> None:
    assert not runs_of().over()
    assert runs_of(SHORTEST_S).over()
    runs = runs_of(1000.0)
    assert not runs.over()
    runs.control.cancelled.set()
    assert runs.over()


# What is left of a strategy that does not come to an end


CHAIN = build_graph("unit-chain{n=17}")


@dataclass(frozen=True)
class Stopped(Made):
    """Finds a schedule, then bounds, and then runs out of time."""

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        best = Incumbent.of(task, context)
        best.raise_bound(Bound(CHAIN.total_cost + 1, Scope.FRONTIER))
        best.offer([*range(9), *range(3, 17)])
        best.raise_bound(Bound(CHAIN.total_cost + 2, Scope.FRONTIER))
        best.raise_bound(Bound(CHAIN.total_cost + 1, Scope.DOCUMENT_ORDER))
        raise LimitReached("no time")


def test_bounds_that_came_after_the_last_schedule_are_not_lost() -> None:
    task = Task(CHAIN, no_remat_peak(CHAIN) * 2)
    job = Job.of(CHAIN, SolveOptions(strategy="keep-all"), None)
    answer, ending = job.attempt(task, strategy=Stopped())
    assert isinstance(answer, Found)
    assert str(ending) == "time limit"
    assert {Bound(CHAIN.total_cost + 2, Scope.FRONTIER), Bound(CHAIN.total_cost + 1, Scope.DOCUMENT_ORDER)} <= {
        *answer.bounds
    }


def test_a_bound_is_handed_over_with_a_schedule_or_not_at_all() -> None:
    heard: list[Found] = []
    context = Context(Control(), Highs(), publish=heard.append)
    best = Incumbent.of(Task(CHAIN, 1), context)
    best.raise_bound(Bound(CHAIN.total_cost + 1, Scope.DOCUMENT_ORDER))
    assert not heard
    best = Incumbent.of(Task(CHAIN, no_remat_peak(CHAIN)), context)
    heard.clear()
    bound = Bound(CHAIN.total_cost, Scope.DOCUMENT_ORDER)
    best.raise_bound(bound)
    best.raise_bound(bound)
    assert [bound in found.bounds for found in heard] == [True]
