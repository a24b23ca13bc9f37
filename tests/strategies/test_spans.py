"""Dropping values through a stretch: bounds against the truth and a solver, schedules against the judge."""

from __future__ import annotations

import math
import random

import pytest
from bruteforce import cheapest
from families import sized_graph
from seeded import seeded

from benchmarks.families import FAMILIES
from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_peak, no_remat_profile, peak_bound, working_set
from remat_cli.graph.model import Graph, Node
from remat_cli.milp import stage_cuts
from remat_cli.plan.derive import derive, peak
from remat_cli.plan.replay import replay
from remat_cli.solvers.base import Request, Termination
from remat_cli.solvers.highs import Highs
from remat_cli.strategies.base import Context, Task
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.openers.clearing import Clearing, Clearings, Network, span_bound
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


@seeded(range(8))
def test_the_bound_is_the_linear_relaxation_of_a_cut(seed: int) -> None:
    graph = sized_graph(seed + 100, 40) if seed < 6 else build_graph(("unet", "vgg16")[seed - 6])
    in_use = no_remat_profile(graph)
    t = in_use.index(max(in_use))
    compared = 0
    for percent in (70, 85, 95):
        budget = graph.fixed_memory + (max(in_use) - graph.fixed_memory) * percent // 100
        network = Network.of(graph, budget - graph.fixed_memory)
        if budget - graph.fixed_memory < working_set(graph, t):
            continue
        stated = stage_cuts.build(graph, [(t, t)], budget - graph.fixed_memory, Control())
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


def test_a_layered_graph_is_cleared_where_long_runs_must_be_computed_again() -> None:
    graph = FAMILIES["layered"](3000, 0)
    budget = no_remat_peak(graph) * 9 // 10
    best = Incumbent.of(Task(graph, budget), Context(Control(), Highs(), threads=1))
    Clearings(best).turn(Control())
    assert best.computes is not None
    assert peak(graph, best.computes) <= budget
    assert best.cost < 1.1 * graph.total_cost


def test_without_time_nothing_is_offered() -> None:
    graph = FAMILIES["layered"](300, 0)
    budget = no_remat_peak(graph) * 9 // 10
    network = Network.of(graph, budget)
    assert Clearing(graph, network, 1.0, 0.05).run(Control.within(0.0)) is None
    best = Incumbent.of(Task(graph, budget), Context(Control(), Highs(), threads=1))
    Clearings(best).turn(Control.within(0.0))
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
    in_use = no_remat_profile(graph)
    budget = graph.fixed_memory + (max(in_use) - graph.fixed_memory) * 6 // 10
    assert span_bound(graph, network, budget, in_use.index(max(in_use))) >= graph.total_cost


def test_a_stretch_in_which_only_workspace_is_too_much_is_left_alone() -> None:
    nodes = (Node("a", 1.0, (), (0,)), Node("b", 1.0, (0,), (0,), workspace=9))
    graph = Graph("g", nodes, outputs=(1,))
    assert Clearing(graph, Network.of(graph, 5), 1.5, 0.02).run(Control()) is None
