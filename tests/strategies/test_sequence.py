"""The annealing engine: its bookkeeping against the derivation of statements, its results against all schedules."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
from bruteforce import cheapest
from families import random_graph
from seeded import seeded

from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph
from remat_cli.plan.derive import derive, peak
from remat_cli.plan.replay import replay
from remat_cli.strategies.annealing.walk import Problem, Walk
from remat_cli.zoo.registry import build_graph


def anneal(problem: Problem, start: Sequence[int], seed: int) -> tuple[int, ...] | None:
    """What a short run finds."""
    walk = Walk.of(problem, start, seed, 0.3)
    walk.advance(20_000, 0.05, 0.001)
    return walk.best


def cost(graph: Graph, computes: Sequence[int]) -> float:
    return sum(graph.nodes[k].cost for k in computes)


def excess(graph: Graph, computes: tuple[int, ...], room: int) -> int:
    """Bytes over the room, summed over the computes, from the replay of the derived statements."""
    statements = derive(graph, computes)
    profile = replay(graph, statements).profile
    at_compute = [profile[k] for k, s in enumerate(statements) if type(s).__name__ == "Compute"]
    return sum(max(0, m - graph.fixed_memory - room) for m in at_compute)


@seeded(range(40), recomputed=80, over=70, best=80)
def test_bookkeeping_agrees_with_the_replay(seed: int) -> Iterator[str]:
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
        walk = Walk.of(problem, start, seed + run, 0.05)
        walk.advance(5_000, 0.5, 0.2)
        assert replay(graph, derive(graph, walk.last)).valid
        assert walk.excess_bytes == excess(graph, walk.last, room)
        assert walk.cost == pytest.approx(cost(graph, walk.last) / (graph.total_cost or 1.0), abs=1e-9)
        if walk.best is not None:
            assert replay(graph, derive(graph, walk.best)).valid
            assert peak(graph, walk.best) <= room + graph.fixed_memory
            assert walk.best_cost == pytest.approx(cost(graph, walk.best) / (graph.total_cost or 1.0), abs=1e-9)
            yield "best"
        yield from ["recomputed"] * (len(walk.last) > len(graph.nodes)) + ["over"] * (walk.excess_bytes > 0)
        start = walk.last


@seeded(range(150), found=15)
def test_finds_the_optimum_of_tiny_graphs(seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    graph = random_graph(rng, rng.randint(4, 6), workspace=True)
    budget = no_remat_peak(graph) - 2
    truth = cheapest(graph, budget)
    if truth is None or budget < peak_bound(graph).bytes:
        return
    problem = Problem.of(graph, budget)
    costs = []
    for run in range(6):
        found = anneal(problem, range(len(graph.nodes)), run)
        if found is not None:
            costs.append(cost(graph, found))
            assert costs[-1] >= truth
    assert min(costs) == truth
    yield "found"


def test_same_seed_same_result() -> None:
    graph = build_graph("unit-chain{n=17}")
    problem = Problem.of(graph, 5)
    assert anneal(problem, range(17), 7) == anneal(problem, range(17), 7)
    assert anneal(problem, range(17), 7) is not None


def test_a_walk_that_lays_its_slots_out_anew_keeps_its_books() -> None:
    graph = build_graph("unit-chain{n=129}")
    walk = Walk.of(Problem.of(graph, 6), range(129), 5, 0.5)
    layouts = set()
    for _ in range(40):
        walk.advance(2_000, 0.01, 0.01)
        layouts.add(int(walk.state.now.slots))
        assert walk.excess_bytes == excess(graph, walk.last, 6)
    assert len(layouts) > 2
