"""The search of all schedules in any order, against exhaustive search, and what ``reorder`` claims from it."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import anyorder
import pytest
from families import random_graph, varied_graph
from seeded import seeded

from benchmarks.families import wild
from remat_cli.control import Control
from remat_cli.errors import Infeasible
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph, Node
from remat_cli.plan.derive import peak
from remat_cli.plan.liveness import cost_of
from remat_cli.plan.model import ClaimStatus, Scope
from remat_cli.planning.solving import SolveOptions, solve
from remat_cli.strategies.ordering.any_order import cheapest_in_any_order
from remat_cli.strategies.ordering.candidates import find_orders
from remat_cli.zoo.registry import build_graph


def tight(graph: Graph) -> range:
    """The no-remat peak and the six budgets below it."""
    return range(max(1, no_remat_peak(graph) - 6), no_remat_peak(graph) + 1)


@seeded(range(100), compared=200, apart=45, impossible=150)
def test_it_finds_the_cheapest_of_all_schedules(seed: int) -> Iterator[str]:
    graph = varied_graph(seed, 3, 6, most_outputs=(1, 1, 2))
    for budget in tight(graph):
        truth = anyorder.cheapest_in_any_order(graph, budget)
        found = cheapest_in_any_order(graph, budget, Control(), ceiling=math.inf)
        if truth is None:
            assert (found.computes, found.bound) == (None, math.inf)
            yield "impossible"
            continue
        assert found.computes is not None
        assert peak(graph, found.computes) <= budget
        assert cost_of(graph, found.computes) == truth == pytest.approx(graph.total_cost * (1 + found.bound))
        yield "compared"
        if truth > graph.total_cost:
            yield "apart"


@seeded(range(40), below=15)
def test_a_ceiling_leaves_out_what_costs_as_much(seed: int) -> Iterator[str]:
    graph = varied_graph(seed, 3, 6)
    for budget in tight(graph):
        best = cheapest_in_any_order(graph, budget, Control(), ceiling=math.inf)
        if best.computes is None or best.bound == 0:
            continue
        above = cheapest_in_any_order(graph, budget, Control(), ceiling=best.bound * 1.001)
        assert (above.computes is None, above.bound) == (False, best.bound)
        at = cheapest_in_any_order(graph, budget, Control(), ceiling=best.bound)
        assert (at.computes, at.bound) == (None, best.bound)
        yield "below"


def test_what_was_looked_at_bounds_the_rest() -> None:
    """With few states, or no time, it says how cheap the others may be."""
    graph = wild(40, 0)
    budget = find_orders(graph, None, Control(), 0).lowest.peak_bytes * 84 // 100
    best = cheapest_in_any_order(graph, budget, Control(), ceiling=math.inf)
    assert best.computes is not None
    few = cheapest_in_any_order(graph, budget, Control(), ceiling=math.inf, most_bytes=0)
    assert few.computes is not None
    assert peak(graph, few.computes) <= budget
    assert few.states < best.states
    assert 0 < few.bound < best.bound <= cost_of(graph, few.computes) / graph.total_cost - 1 + 1e-12
    capped = cheapest_in_any_order(graph, budget, Control(), ceiling=few.bound / 2, most_bytes=0)
    assert capped.bound == few.bound / 2
    stopped = Control()
    stopped.cancelled.set()
    assert cheapest_in_any_order(graph, budget, stopped, ceiling=math.inf).bound == 0


@pytest.mark.parametrize("spec", ["linear{n=6}", "unit-chain{n=9}"])
def test_where_there_is_one_order_it_agrees_with_the_others(spec: str) -> None:
    graph = build_graph(spec)
    for percent in (60, 75, 90):
        budget = no_remat_peak(graph) * percent // 100
        found = cheapest_in_any_order(graph, budget, Control(), ceiling=math.inf)
        claim = solve(graph, budget, SolveOptions(strategy="optimal", gap=0.0)).plan.claim
        assert claim.status is ClaimStatus.OPTIMAL
        assert claim.cost == pytest.approx(graph.total_cost * (1 + found.bound))


def branches(count: int) -> Graph:
    """Branches that each make much and leave little, all of which is read at the end."""
    nodes = [Node(f"big{i}", 1.0, (), (100,)) for i in range(count)]
    nodes += [Node(f"small{i}", 1.0, (i,), (10,)) for i in range(count)]
    last = Node("sum", 1.0, tuple(range(count, 2 * count)), (1,))
    return Graph("fan", (*nodes, last), outputs=(2 * count,))


def test_nothing_fits_in_any_order() -> None:
    """The last branch must run beside the small values of the others, and that is more than any working set."""
    graph = branches(5)
    assert solve(graph, 150, SolveOptions(reorder=True)).plan.claim.cost == graph.total_cost
    with pytest.raises(Infeasible, match="no schedule in any order fits a budget of 149") as refusal:
        solve(graph, 149, SolveOptions(reorder=True))
    assert refusal.value.scope is Scope.ANY_ORDER
    assert "every plan needs at least 150" in str(refusal.value.hint)


@pytest.mark.parametrize(("strategy", "limit_s"), [("auto", None), ("optimal", 60.0)])
def test_medium_graphs_are_proven_in_any_order(strategy: str, limit_s: float | None) -> None:
    graph = wild(30, 0)
    budget = find_orders(graph, None, Control(), 0).lowest.peak_bytes * 95 // 100
    options = SolveOptions(strategy=strategy, reorder=True, threads=1, time_limit_s=limit_s)
    claim = solve(graph, budget, options).plan.claim
    assert (claim.status, claim.scope) == (ClaimStatus.OPTIMAL, Scope.ANY_ORDER)
    assert claim.cost > graph.total_cost


def test_a_wide_gap_ends_it_early() -> None:
    """What would close the gap is all that is searched."""
    graph = random_graph(random.Random(3), 14, max_inputs=2, unread=False)
    budget = find_orders(graph, None, Control(), 0).lowest.peak_bytes - 1
    best = solve(graph, budget, SolveOptions(reorder=True, gap=0.0)).plan.claim
    wide = solve(graph, budget, SolveOptions(reorder=True, gap=0.5)).plan.claim
    assert best.cost == best.lower_bound
    assert wide.gap <= 0.5
    assert wide.lower_bound <= best.cost <= wide.cost
