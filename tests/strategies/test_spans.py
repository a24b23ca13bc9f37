"""Dropping values through a stretch: bounds against the truth and a solver, schedules against the judge."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from bruteforce import cheapest
from graphgen import sized_graph

from benchmarks.families import FAMILIES
from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_peak, peak_bound, working_set
from remat_cli.milp import crowded
from remat_cli.plan.derive import derive, peak
from remat_cli.plan.replay import replay
from remat_cli.solvers.base import Request, Termination
from remat_cli.solvers.highs import Highs
from remat_cli.strategies.base import Context, Task
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.openers.clearing import Clearing, offer_spans, span_bound, walked_back
from remat_cli.strategies.openers.closure import Network
from remat_cli.zoo.registry import build_graph


def test_no_bound_is_above_the_truth_at_any_stage() -> None:
    rng = random.Random(11)
    telling = tight = 0
    for seed in range(100):
        graph = sized_graph(seed, rng.randint(3, 6))
        for budget in range(peak_bound(graph).bytes, no_remat_peak(graph)):
            truth = cheapest(graph, budget)
            best = math.inf if truth is None else truth
            network = Network.of(graph, budget - graph.fixed_memory)
            bounds = [span_bound(graph, network, budget, t) for t in range(len(graph.nodes))]
            assert max(bounds) <= best
            telling += max(bounds) > graph.total_cost
            tight += graph.total_cost < max(bounds) == best
    assert telling > 80
    assert tight > 15


@pytest.mark.parametrize("seed", range(8))
def test_the_bound_is_the_linear_relaxation_of_a_cut(seed: int) -> None:
    graph = sized_graph(seed + 100, 40) if seed < 6 else build_graph(("unet", "vgg16")[seed - 6])
    heights, _ = walked_back(graph, range(len(graph.nodes)))
    t = int(heights.argmax())
    compared = 0
    for percent in (70, 85, 95):
        budget = graph.fixed_memory + int(heights.max()) * percent // 100
        network = Network.of(graph, budget - graph.fixed_memory)
        if budget - graph.fixed_memory < working_set(graph, t):
            continue
        stated = crowded.build(graph, [t], budget - graph.fixed_memory, Control())
        outcome = Highs().solve(Request(stated.model.relaxed(), Control(), threads=1))
        bound = span_bound(graph, network, budget, t) / graph.total_cost - 1
        if outcome.termination is Termination.INFEASIBLE:
            continue
        assert outcome.bound is not None
        step = math.gcd(*(int(node.cost) for node in graph.nodes)) / graph.total_cost
        assert outcome.bound - 1e-6 <= bound <= outcome.bound + step + 1e-6
        compared += 1
    assert compared


@pytest.mark.parametrize("ways", [(1.0, 0.05), (1.5, 0.0), (2.0, 0.05)])
def test_what_fits_is_a_schedule_that_fits(ways: tuple[float, float]) -> None:
    found = 0
    for seed in range(40):
        graph = sized_graph(seed + 300, 20 + 2 * seed)
        budget = no_remat_peak(graph) * (70 + seed % 25) // 100
        computes = Clearing(graph, Network.of(graph, budget - graph.fixed_memory), *ways).run(Control())
        if computes is None:
            continue
        found += len(computes) > len(graph.nodes)
        assert peak(graph, computes) <= budget
        seen = replay(graph, derive(graph, computes))
        assert seen.valid
        assert seen.peak_bytes <= budget
        firsts = list(dict.fromkeys(computes))
        assert firsts == list(range(len(graph.nodes)))
        assert all(computes.count(i) == 1 for i, node in enumerate(graph.nodes) if not node.recompute)
    assert found > 10


def test_walking_back_says_what_is_in_use_and_when_it_is_read_next() -> None:
    for seed in range(30):
        graph = sized_graph(seed + 500, 12)
        rng = random.Random(seed)
        computes = list(range(len(graph.nodes)))
        again = [i for i, node in enumerate(graph.nodes) if node.recompute]
        for i in rng.sample(again, min(3, len(again))):
            computes.insert(rng.randint(computes.index(i) + 1, len(computes)), i)
        at = rng.randint(0, len(computes))
        heights, (reads,) = walked_back(graph, computes, (at,))
        assert graph.fixed_memory + int(heights.max()) == peak(graph, computes)
        for v, made in enumerate(graph.producer):
            events = [
                (p, k == made) for p, k in enumerate(computes) if p >= at and (k == made or v in graph.nodes[k].inputs)
            ]
            ending = len(computes) if v in graph.outputs else -1
            expected = ending if not events else -1 if events[0][1] else events[0][0]
            assert reads[v] == expected


def test_a_layered_graph_is_cleared_where_long_runs_must_be_computed_again() -> None:
    graph = FAMILIES["layered"](3000, 0)
    budget = no_remat_peak(graph) * 9 // 10
    best = Incumbent.of(Task(graph, budget), Context(Control(), Highs(), threads=1))
    offer_spans(best, Network.of(graph, budget), Control())
    assert best.computes is not None
    assert peak(graph, best.computes) <= budget
    assert best.cost < 1.1 * graph.total_cost


def test_without_time_nothing_is_offered() -> None:
    graph = FAMILIES["layered"](300, 0)
    budget = no_remat_peak(graph) * 9 // 10
    network = Network.of(graph, budget)
    assert Clearing(graph, network, 1.0, 0.05).run(Control.within(0.0)) is None
    best = Incumbent.of(Task(graph, budget), Context(Control(), Highs(), threads=1))
    offer_spans(best, network, Control.within(0.0))
    assert best.computes is None


def test_a_budget_below_a_working_set_is_impossible() -> None:
    graph = build_graph("linear{n=6}")
    budget = peak_bound(graph).bytes - 1
    network = Network.of(graph, budget)
    assert max(span_bound(graph, network, budget, t) for t in range(len(graph.nodes))) == math.inf


def test_prices_that_no_capacity_could_hold_are_not_asked() -> None:
    graph = sized_graph(42, 60)
    network = Network.of(graph, 1)
    assert all(math.isfinite(span_bound(graph, network, graph.fixed_memory + 10**9, t)) for t in (10, 30))
    heights, _ = walked_back(graph, range(len(graph.nodes)))
    budget = graph.fixed_memory + int(np.max(heights)) * 6 // 10
    assert span_bound(graph, network, budget, int(heights.argmax())) >= graph.total_cost
