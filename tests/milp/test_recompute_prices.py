"""Prices of recomputation, from weights of the rows of the cover bound: no schedule pays less."""

import random
from collections.abc import Iterator

import pytest
from families import random_graph
from seeded import seeded

from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph, closed
from remat_cli.milp import cover_bound
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
