"""What is left of a strategy that does not come to an end."""

from dataclasses import dataclass
from typing import ClassVar

from remat_cli.control import Control
from remat_cli.errors import LimitReached
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.plan.model import Scope
from remat_cli.planning.job import Job
from remat_cli.planning.options import SolveOptions
from remat_cli.solvers.highs import Highs
from remat_cli.strategies.base import Bound, Context, Found, NotFound, Strategy, Task
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.zoo.registry import build_graph

GRAPH = build_graph("unit-chain{n=17}")


@dataclass(frozen=True)
class Stopped(Strategy):
    """Finds a schedule, then bounds, and then runs out of time."""

    name: ClassVar[str] = "stopped"
    summary: ClassVar[str] = ""
    reference: ClassVar[str] = ""

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        best = Incumbent.of(task, context)
        best.raise_bound(Bound(GRAPH.total_cost + 1, Scope.FRONTIER))
        best.offer([*range(9), *range(3, 17)])
        best.raise_bound(Bound(GRAPH.total_cost + 2, Scope.FRONTIER))
        best.raise_bound(Bound(GRAPH.total_cost + 1, Scope.DOCUMENT_ORDER))
        raise LimitReached("no time")


def test_bounds_that_came_after_the_last_schedule_are_not_lost() -> None:
    task = Task(GRAPH, no_remat_peak(GRAPH) * 2)
    job = Job.of(GRAPH, SolveOptions(strategy="keep-all"), None)
    answer, ending = job.attempt(task, strategy=Stopped())
    assert isinstance(answer, Found)
    assert str(ending) == "time limit"
    assert {Bound(GRAPH.total_cost + 2, Scope.FRONTIER), Bound(GRAPH.total_cost + 1, Scope.DOCUMENT_ORDER)} <= {
        *answer.bounds
    }


def test_a_bound_is_handed_over_with_a_schedule_or_not_at_all() -> None:
    heard: list[Found] = []
    context = Context(Control(), Highs(), publish=heard.append)
    best = Incumbent.of(Task(GRAPH, 1), context)
    best.raise_bound(Bound(GRAPH.total_cost + 1, Scope.DOCUMENT_ORDER))
    assert not heard
    best = Incumbent.of(Task(GRAPH, no_remat_peak(GRAPH)), context)
    heard.clear()
    bound = Bound(GRAPH.total_cost, Scope.DOCUMENT_ORDER)
    best.raise_bound(bound)
    best.raise_bound(bound)
    assert [bound in found.bounds for found in heard] == [True]
