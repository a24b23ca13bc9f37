"""All states of graphs of a few nodes: the optimum and every "no" are those of brute force, whatever the sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from bruteforce import cheapest, least_peak
from families import sized_graph, uneven_graph
from seeded import seeded

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Scope
from remat_cli.solvers.highs import Highs
from remat_cli.strategies.base import Context, Task
from remat_cli.strategies.incumbent import Incumbent, Verdict
from remat_cli.strategies.openers import enumeration
from remat_cli.zoo.registry import build_graph


def enumerated(graph: Graph, budget: int, control: Control | None = None) -> Incumbent:
    """The incumbent after the engine alone."""
    incumbent = Incumbent.empty(Task(graph, budget), Context(control or Control(), Highs(), threads=1))
    enumeration.Enumeration(incumbent).work()
    return incumbent


@seeded(range(24), no=20, worse=6)
def test_it_is_the_optimum_of_brute_force(seed: int) -> Iterator[str]:
    graph = uneven_graph(seed) if seed % 2 else sized_graph(seed, 7)
    least, top = least_peak(graph), no_remat_peak(graph)
    for budget in sorted({least - 1, least, least + 1, (least + top) // 2, top - 1, top}):
        truth, incumbent = cheapest(graph, budget), enumerated(graph, budget)
        if truth is None:
            assert incumbent.verdict is Verdict.IMPOSSIBLE
            assert not incumbent.uncertified
            yield "no"
            continue
        assert incumbent.verdict is Verdict.EXACT
        assert incumbent.cost == pytest.approx(truth, rel=1e-12)
        assert incumbent.bound.scope.contains(Scope.DOCUMENT_ORDER)
        if truth > graph.total_cost:
            yield "worse"


def test_where_it_ends_early_its_bound_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = build_graph("linear{n=6}")
    budget = least_peak(graph)
    truth = cheapest(graph, budget)
    assert truth is not None
    bounds = []
    for most in (1, 100, 400, 1600):
        monkeypatch.setattr(enumeration, "_MOST_STATES", most)
        bounds.append(enumerated(graph, budget).bound.cost)
    assert bounds == sorted(bounds)
    assert graph.total_cost <= bounds[0] < bounds[-1] <= truth


def test_without_time_nothing_is_said() -> None:
    graph = build_graph("linear{n=6}")
    incumbent = enumerated(graph, least_peak(graph), Control.within(0.0))
    assert incumbent.computes is None
    assert math.isclose(incumbent.bound.cost, graph.total_cost)
    assert incumbent.verdict is Verdict.OPEN
