"""Strategy ``search``: never worse than its start, and each engine of use on its own."""

from __future__ import annotations

import math

import pytest

from remat_cli.control import Control
from remat_cli.graph.model import Graph
from remat_cli.milp import retention
from remat_cli.milp.support import full_support, support_within, widened
from remat_cli.plan.model import Scope
from remat_cli.solvers.highs import Highs
from remat_cli.strategies.annealing.engines import Annealing
from remat_cli.strategies.base import Bound, Context, Found, Known, Task
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.zoo.registry import build_graph

CHAIN = build_graph("unit-chain{n=17}")
BEST = 22
"""Cost of the chain's cheapest plan within 5 bytes."""


def cost(graph: Graph, found: Found) -> float:
    return math.fsum(graph.nodes[k].cost for k in found.schedule.computes)


def search(spec: str, task: Task) -> Found:
    context = Context(Control(), Highs(), threads=1, seed=3)
    answer = strategy_from_spec(spec).solve(task, context)
    assert isinstance(answer, Found)
    return answer


@pytest.mark.parametrize("strategy", ["search", "anneal"])
def test_finds_the_optimum_of_the_unit_chain(strategy: str) -> None:
    assert cost(CHAIN, search(strategy, Task(CHAIN, 5))) == BEST


@pytest.mark.parametrize("workers", [1, 3])
def test_a_seed_gives_the_same_schedules_again_for_as_many_workers(workers: int) -> None:
    task = Task(build_graph("unit-chain{n=21}"), 6)

    def once(seed: int) -> tuple[list[tuple[int, ...] | None], tuple[int, ...] | None]:
        """Where the workers are after some runs, and the best schedule."""
        annealing = Annealing(Incumbent.of(task, Context(Control(), Highs(), threads=workers, seed=seed)))
        annealing.turn(Control(), rounds=2)
        assert annealing.incumbent.computes is not None
        annealing.turn(Control(), rounds=1)
        assert len(set(annealing.states)) == workers
        return annealing.states, annealing.incumbent.computes

    assert once(5) == once(5)
    assert once(5)[0] != once(6)[0]


def test_no_worse_than_its_start_when_there_is_no_time() -> None:
    found = search("search", Task(CHAIN, 5))
    context = Context(Control.within(0.0), Highs(), threads=1)
    for strategy in ("search", "lns", "anneal"):
        again = strategy_from_spec(strategy).solve(Task(CHAIN, 5, Known((found.schedule,))), context)
        assert isinstance(again, Found)
        assert cost(CHAIN, again) <= BEST


def test_windows_improve_what_they_start_from() -> None:
    tight = search("search", Task(CHAIN, 4))
    assert cost(CHAIN, tight) == 26  # what four bytes cost at least; five leave room for something cheaper
    assert cost(CHAIN, search("lns", Task(CHAIN, 5, Known((tight.schedule,))))) < 26


def test_windows_work_with_running_sums_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_DENSE_MOST", -1)
    tight = search("lns", Task(CHAIN, 4))
    better = search("lns", Task(CHAIN, 5, Known((tight.schedule,))))
    assert cost(CHAIN, better) < cost(CHAIN, tight)


def test_a_proven_start_is_returned_as_it_is() -> None:
    found = search("search", Task(CHAIN, 5))
    known = Known((found.schedule,), (Bound(float(BEST), Scope.DOCUMENT_ORDER),))
    again = search("search", Task(CHAIN, 5, known))
    assert again.schedule == found.schedule
    assert Bound(float(BEST), Scope.DOCUMENT_ORDER) in again.bounds


def test_a_support_is_widened_by_exactly_the_steps_given() -> None:
    near, full = support_within(CHAIN, 0.0), full_support(CHAIN)
    assert widened(CHAIN, near, []) == near
    wide = widened(CHAIN, near, [(12, 3), (3, 3), (2, 3)])
    assert set(wide[3]) == {*near[3], 12}
    assert all(set(stages) <= set(full[i]) for i, stages in enumerate(wide))
