"""Starts by prices: always schedules, judged by what shares no code with them, and the same ones every time."""

from __future__ import annotations

import math
import random

import bruteforce
import families
import pytest

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph, Node
from remat_cli.milp.support import support_within
from remat_cli.plan.derive import derive, peak
from remat_cli.plan.matrices import is_frontier_advancing
from remat_cli.plan.replay import replay
from remat_cli.solvers.highs import Highs
from remat_cli.strategies.annealing.engines import Polish
from remat_cli.strategies.base import Context, Task
from remat_cli.strategies.conditions import near_pairs
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.openers.prices import Prices, Pricing
from remat_cli.zoo.registry import build_graph


def priced(graph: Graph, budget: int, credit: float, rounds: int) -> list[tuple[int, float, tuple[int, ...]]]:
    """Excess, cost and schedule of every round."""
    pricing = Pricing.of(graph, budget)
    found = []
    for _ in range(rounds):
        excess = pricing.round(credit, 0.5, 0.3)
        assert excess is not None
        found.append((excess, pricing.cost * (graph.total_cost or 1.0), pricing.computes))
    return found


def small_graph(seed: int, n: int) -> Graph:
    rng = random.Random(seed)
    return families.random_graph(
        rng,
        n,
        max_outputs=3,
        workspace=True,
        recompute_false=0.2,
        random_outputs=seed % 2 == 0,
        zero_outputs=seed % 3 == 0,
        fixed_memory=seed % 5,
    )


@pytest.mark.parametrize("credit", [0.0, 0.5, 1.0])
def test_every_round_gives_a_schedule_and_its_true_cost_and_peak(credit):
    recomputing = 0
    for seed in range(120):
        graph = small_graph(seed, 1 + seed % 30)
        height = no_remat_peak(graph)
        budget = max(graph.fixed_memory + 1, round(height * (0.5 + 0.4 * (seed % 7) / 6)))
        for excess, cost, computes in priced(graph, budget, credit, 25):
            seen = replay(graph, derive(graph, computes))
            assert not seen.findings, (seed, seen.findings)
            assert excess == max(0, seen.peak_bytes - budget)
            assert cost == pytest.approx(seen.cost)
            assert is_frontier_advancing(graph, computes)
            recomputing += len(computes) > len(graph.nodes)
    assert recomputing > 100


def test_no_start_beats_the_search_of_all_schedules_and_most_meet_it():
    met = judged = 0
    for seed in range(30):
        graph = small_graph(seed, 5)
        for budget in range(bruteforce.least_peak(graph), no_remat_peak(graph)):
            fitting = [cost for excess, cost, _ in priced(graph, budget, 1.0, 60) if excess <= 0]
            truth = bruteforce.cheapest(graph, budget)
            judged += 1
            assert truth is not None
            if fitting:
                assert min(fitting) >= truth - 1e-9
                met += min(fitting) <= truth + 1e-9
    assert judged > 25
    assert met > 0.6 * judged


def started(graph: Graph, budget: int, seed: int = 0) -> Incumbent:
    """What prices and a polish make of nothing."""
    best = Incumbent.of(Task(graph, budget), Context(Control(), Highs(), threads=1, seed=seed))
    for engine in (Prices(best), Polish(best)):
        engine.turn(Control())
    return best


@pytest.mark.parametrize(("spec", "percent", "overhead"), [("resnet50", 60, 0.002), ("bert", 50, 0.0015)])
def test_networks_get_a_good_plan_and_always_the_same(spec, percent, overhead):
    graph = build_graph(spec)
    budget = no_remat_peak(graph) * percent // 100
    best = started(graph, budget)
    assert best.computes is not None
    assert peak(graph, best.computes) <= budget
    assert best.cost == math.fsum(graph.nodes[k].cost for k in best.computes)
    assert best.cost <= graph.total_cost * (1 + overhead)
    assert started(graph, budget).computes == best.computes


def test_nothing_is_found_where_nothing_fits():
    nodes = (
        Node("a", 1.0, (), (4,), recompute=False),
        Node("b", 1.0, (0,), (4,), recompute=False),
        Node("c", 1.0, (1,), (4,)),
        Node("d", 1.0, (0, 2), (1,)),
    )
    graph = Graph("stuck", nodes, (3,))
    assert no_remat_peak(graph) == 12
    best = started(graph, 11)
    assert best.computes is None
    assert best.lowest_peak == 12


@pytest.mark.parametrize("seed", range(20))
def test_near_pairs_are_no_fewer_than_the_support_of_depth_one(seed):
    graph = families.random_graph(random.Random(seed), 20, max_outputs=3, max_cost=1)
    assert 0 < sum(len(stages) for stages in support_within(graph, 1.0)) <= near_pairs(graph)
