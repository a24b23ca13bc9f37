"""The annealing engine: its bookkeeping against the derivation of statements, its results against all schedules."""

from __future__ import annotations

import random

import pytest
from bruteforce import cheapest
from graphgen import random_graph

from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph
from remat_cli.plan.derive import derive, peak
from remat_cli.plan.replay import replay
from remat_cli.strategies._sequence import Cooling, Problem, anneal
from remat_cli.zoo.registry import build_graph

WARM = Cooling(moves=20_000, hot=0.05, cold=0.001, price=0.3)


def excess(graph: Graph, computes: tuple[int, ...], room: int) -> int:
    """Bytes over the room, summed over the computes, from the replay of the derived statements."""
    statements = derive(graph, computes)
    profile = replay(graph, statements).profile
    at_compute = [profile[k] for k, s in enumerate(statements) if type(s).__name__ == "Compute"]
    return sum(max(0, m - graph.fixed_memory - room) for m in at_compute)


@pytest.mark.parametrize("seed", range(40))
def test_bookkeeping_agrees_with_the_replay(seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(
        rng,
        rng.randint(2, 25),
        max_outputs=3,
        zero_outputs=True,
        workspace=True,
        recompute_false=0.2,
        random_outputs=True,
        fixed_memory=3,
    )
    room = max(1, (no_remat_peak(graph) + peak_bound(graph).bytes) // 2 - graph.fixed_memory)
    problem = Problem.of(graph, room)
    start: tuple[int, ...] = tuple(range(len(graph.nodes)))
    for run in range(4):
        # A high temperature and a low price: the state wanders, and ends anywhere.
        result = anneal(problem, start, Cooling(5_000, 0.5, 0.2, 0.05), seed + run)
        assert replay(graph, derive(graph, result.last)).valid
        assert round(result.excess * room) == excess(graph, result.last, room)
        if result.computes is not None:
            assert replay(graph, derive(graph, result.computes)).valid
            assert peak(graph, result.computes) <= room + graph.fixed_memory
        start = result.last


@pytest.mark.parametrize("seed", range(25))
def test_finds_the_optimum_of_tiny_graphs(seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(rng, rng.randint(4, 6), workspace=True)
    budget = no_remat_peak(graph) - 2
    truth = cheapest(graph, budget)
    if truth is None or budget < peak_bound(graph).bytes:
        return
    problem = Problem.of(graph, budget)
    costs = []
    for run in range(6):
        found = anneal(problem, range(len(graph.nodes)), WARM, run).computes
        if found is not None:
            costs.append(sum(graph.nodes[k].cost for k in found))
            assert costs[-1] >= truth
    assert min(costs) == truth


def test_same_seed_same_result() -> None:
    graph = build_graph("unit-chain{n=17}")
    problem = Problem.of(graph, 5)
    assert anneal(problem, range(17), WARM, 7) == anneal(problem, range(17), WARM, 7)
    assert anneal(problem, range(17), WARM, 7).computes is not None
