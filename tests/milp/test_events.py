"""Bounds for document order from the retention model without in-stage rows, against searches of all schedules."""

import math
import random
from collections.abc import Iterator

import pytest
from bruteforce import cheapest
from families import random_graph
from seeded import seeded

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph, Node, closed
from remat_cli.milp import cover_bound, retention
from remat_cli.milp.support import Support, event_support, full_support
from remat_cli.mip import LinearModel
from remat_cli.solvers.base import Request
from remat_cli.solvers.highs import Highs
from remat_cli.zoo.registry import build_graph


def graph_of(seed: int, low: int, high: int) -> Graph:
    rng = random.Random(seed)
    return random_graph(
        rng,
        rng.randint(low, high),
        max_outputs=rng.choice((1, 1, 2, 3)),
        max_inputs=rng.choice((1, 2, 3)),
        max_cost=rng.choice((2, 8, 50)),
        workspace=rng.random() < 0.4,
        recompute_false=rng.choice((0.0, 0.2, 0.5)),
        random_outputs=rng.random() < 0.3,
        zero_outputs=rng.random() < 0.3,
        fixed_memory=rng.choice((0, 5)),
    )


def optimum(graph: Graph, budget: int, support: Support) -> float | None:
    """Optimum over ``support`` without in-stage rows."""
    stated = retention.build(graph, budget, None, Control(), support=support)
    outcome = Highs().solve(Request(stated.model(), gap=1e-9, threads=1))
    return None if outcome.objective is None else round(outcome.objective * stated.cost_scale, 6)


def cover(graph: Graph, budget: int) -> float:
    model = cover_bound.build(graph, budget)
    if model is None:
        return graph.total_cost
    assert isinstance(model, LinearModel)
    outcome = Highs().solve(Request(model, gap=1e-9, threads=1))
    assert outcome.bound is not None
    return graph.total_cost * (1 + outcome.bound)


@seeded(range(150), none=10, dearer=50, free=20)
def test_event_support_loses_nothing(seed: int) -> Iterator[str]:
    graph = graph_of(seed, 5, 12)
    rng = random.Random(seed)
    budget = rng.randint(peak_bound(graph).bytes, no_remat_peak(graph))
    full = optimum(graph, budget, full_support(closed(graph)))
    costs = [node.cost for node in closed(graph).nodes]
    for most in (math.inf, *([] if full is None else [full - graph.total_cost])):
        assert optimum(graph, budget, event_support(closed(graph), costs, most)) == full
    yield "none" if full is None else "dearer" if full > graph.total_cost else "free"


def test_event_support_is_small_where_it_counts() -> None:
    graph = closed(build_graph("resnet50{backward=operator}"))
    costs = [node.cost for node in graph.nodes]
    pairs = sum(map(len, event_support(graph, costs, 0.002 * graph.total_cost)))
    assert pairs < 0.1 * sum(map(len, full_support(graph)))


def test_bound_is_never_above_the_truth_and_often_above_the_cover_bound() -> None:
    better = 0
    for seed in range(1000, 1250):
        graph = graph_of(seed, 3, 6)
        support = event_support(closed(graph), [0.0] * len(closed(graph).nodes), math.inf)
        for budget in range(max(peak_bound(graph).bytes, no_remat_peak(graph) - 6), no_remat_peak(graph)):
            truth = cheapest(graph, budget)
            bound = optimum(graph, budget, support)
            if bound is None:
                assert truth is None
            elif truth is not None:
                assert bound <= truth
                better += bound > cover(graph, budget) + 1e-6
    assert better > 10


@seeded(range(60), compared=1000, omitted=20)
def test_prices_hold_whatever_the_weights(seed: int) -> Iterator[str]:
    graph = closed(graph_of(seed, 5, 9))
    rng = random.Random(seed)
    budget = rng.randint(peak_bound(graph).bytes, no_remat_peak(graph))
    stated = cover_bound.price_model(graph, budget)
    prices = stated.prices([rng.choice((-0.1, 0.0, rng.random() / 4)) for _ in stated.rows])
    nodes = range(len(graph.nodes))
    assert all(price >= 0 for price in prices.of_node)
    for _ in range(200):
        chosen = {i for i in nodes if rng.random() < 0.7}
        if all(sum(size for i, size in parts.items() if i in chosen) >= need for need, parts in stated.rows):
            paid = sum(graph.nodes[i].cost for i in chosen)
            omitted = sum(prices.of_omission[i] for i in nodes if i not in chosen)
            assert paid >= prices.base + sum(prices.of_node[i] for i in chosen) + omitted - 1e-9
            yield from ["compared"] * (prices.base != 0) + ["omitted"] * (omitted > 0)


def test_prices_reach_the_relaxed_cover_bound() -> None:
    graph = closed(build_graph("unit-chain{n=17}"))
    stated = cover_bound.price_model(graph, 5)
    outcome = Highs().solve(Request(stated.model, threads=1))
    assert outcome.values is not None
    prices = stated.prices(outcome.values.tolist())
    model = cover_bound.build(graph, 5)
    assert isinstance(model, LinearModel)
    relaxed = Highs().solve(Request(model.relaxed(), threads=1))
    assert relaxed.objective is not None
    assert prices.base == pytest.approx(relaxed.objective * graph.total_cost)
    assert prices.base > 0


def test_the_stage_after_one_that_reads_an_input_is_an_event() -> None:
    """Node 3, tight, is the last to read what the cheap node 2 reads: only right after it is there room for node 2."""
    nodes = (
        Node("source", 2.0, (), (8,), recompute=False),
        Node("one", 1.0, (0,), (1,), recompute=False),
        Node("cheap", 2.0, (0,), (1,), workspace=4),
        Node("tight", 1.0, (0,), (8,), workspace=8, recompute=False),
        Node("wide", 1.0, (3,), (5,), workspace=5, recompute=False),
        Node("five", 2.0, (3,), (2,), workspace=7, recompute=False),
        Node("six", 1.0, (5,), (5,), recompute=False),
        Node("last", 1.0, (2,), (2,)),
    )
    graph = Graph("after a reader", nodes, (7,))
    support = event_support(graph, [node.cost for node in nodes], math.inf)
    assert support[2] == (3, 4, 7)
    assert optimum(graph, 24, support) == optimum(graph, 24, full_support(graph)) == 13.0
    assert optimum(graph, 24, tuple(tuple(t for t in stages if t != 4) for stages in support)) is None
