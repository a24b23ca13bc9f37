"""The bound of large graphs: never above the truth, whatever the weights, and hardly below the linear relaxation."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np
import pytest
from bruteforce import cheapest
from families import sized_graph
from seeded import seeded

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph, closed
from remat_cli.milp import cover_bound
from remat_cli.mip import LinearModel
from remat_cli.plan.model import Scope
from remat_cli.solvers.base import Request
from remat_cli.solvers.highs import Highs
from remat_cli.strategies.base import Bound, Context, Found, Task
from remat_cli.strategies.openers import cover_bounds
from remat_cli.strategies.openers.cover_bounds import Cover, QuickBound, dual_bound
from remat_cli.strategies.searches import Anneal, Optimal
from remat_cli.zoo.registry import build_graph


def relaxed(graph: Graph, budget: int) -> float:
    """The linear relaxation by a solver, as a share of C0."""
    model = cover_bound.build_running(graph, budget, Control())
    assert isinstance(model, LinearModel)
    outcome = Highs().solve(Request(model.relaxed(), Control(), threads=1))
    assert outcome.bound is not None
    return outcome.bound


def test_no_weights_give_more_than_the_truth() -> None:
    rng = random.Random(5)
    telling = tight = 0
    for seed in range(90):
        graph = sized_graph(seed, rng.randint(3, 6))
        base = graph.total_cost
        for budget in range(peak_bound(graph).bytes, no_remat_peak(graph)):
            truth = cheapest(graph, budget)
            best = math.inf if truth is None else truth
            share = dual_bound(graph, budget, Control())
            assert base * (1 + share) <= best
            telling += 0 < share < math.inf
            tight += share > 0 and base * (1 + share) >= best * (1 - 1e-9)
            closing = closed(graph)
            stages = list(cover_bound.stages_of(closing, budget))
            cover = Cover.of(closing, stages, budget - graph.fixed_memory)
            for _ in range(5):
                level, _ = cover.at(np.array([rng.choice((0.0, 10 ** rng.uniform(-4, 1))) for _ in stages]))
                assert base * (1 + level) <= best
    assert telling > 60
    assert tight > 3


@seeded(range(6), compared=10)
def test_it_comes_within_a_hundredth_of_the_linear_relaxation(seed: int) -> Iterator[str]:
    graph = sized_graph(seed, 120) if seed < 4 else build_graph(("vgg16", "mobilenet-v1{batch=8}")[seed - 4])
    top = no_remat_peak(graph)
    for percent in (60, 85, 95):
        budget = top * percent // 100
        share = dual_bound(graph, budget, Control())
        if math.isinf(share):
            assert cover_bound.build_running(graph, budget, Control()) == "impossible"
            continue
        exact = relaxed(graph, budget)
        assert 0.99 * exact - 1e-7 <= share <= exact + 1e-7
        if exact > 1e-6:
            yield "compared"


def test_without_time_it_is_still_a_bound() -> None:
    graph = build_graph("linear{n=60}")
    budget = no_remat_peak(graph) * 6 // 10
    stopped = Control.within(0.0)
    assert 0 < dual_bound(graph, budget, stopped) <= dual_bound(graph, budget, Control())


def test_where_everything_fits_and_where_nothing_does() -> None:
    graph = build_graph("linear{n=20}")
    assert dual_bound(graph, no_remat_peak(graph), Control()) == 0.0
    assert dual_bound(graph, peak_bound(graph).bytes - 1, Control()) == math.inf


def test_small_graphs_leave_it_to_a_solver() -> None:
    graph = build_graph("linear{n=20}")
    bound = cover_bounds.quick_bound(graph, no_remat_peak(graph) // 2, Control())
    assert (bound.cost, bound.scope) == (graph.total_cost, Scope.ANY_ORDER)


@pytest.mark.parametrize("strategy", [Optimal(), Anneal(patience=1)])
def test_large_graphs_have_a_bound_before_there_is_anything_else(
    strategy: Optimal | Anneal, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Bound] = []

    def bounding(*arguments: object, **options: object) -> None:
        raise AssertionError("a solver was asked first")

    def stop(engine: QuickBound) -> None:
        seen.append(engine.incumbent.bound)
        raise InterruptedError

    monkeypatch.setattr(cover_bounds, "MOST_TERMS", 0)
    monkeypatch.setattr(cover_bounds, "cover_bound", bounding)
    work = QuickBound.work
    monkeypatch.setattr(QuickBound, "work", lambda engine: (work(engine), stop(engine)))
    graph = sized_graph(3, 120)
    budget = no_remat_peak(graph) * 9 // 10
    with pytest.raises(InterruptedError):
        strategy.solve(Task(graph, budget), Context(Control(), Highs(), threads=1))
    assert seen[0].scope is Scope.DOCUMENT_ORDER
    assert seen[0].cost > graph.total_cost
    monkeypatch.undo()
    answer = strategy.solve(Task(graph, budget), Context(Control.within(20), Highs(), threads=1))
    assert isinstance(answer, Found)
    assert sum(graph.nodes[k].cost for k in answer.schedule.computes) >= seen[0].cost
