"""Costs to go: states of a tail, and the inequalities from them, against an exhaustive search from its beginning."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import replace

import bruteforce
import families
import numpy as np
import pytest
from seeded import seeded

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_peak, working_set, working_sets
from remat_cli.graph.model import Graph, Node
from remat_cli.graph.standing import coarse, standing
from remat_cli.milp import stage_cuts
from remat_cli.plan.derive import derive, peak
from remat_cli.plan.liveness import cost_of, heights
from remat_cli.plan.replay import replay
from remat_cli.solvers.base import Request, Termination
from remat_cli.solvers.highs import Highs
from remat_cli.strategies.base import Context, Task
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.openers import tails
from remat_cli.strategies.states import Search, coarse_states
from remat_cli.zoo.registry import build_graph


def small(seed: int, most: int = 7) -> Graph:
    """A graph of a few nodes, some of which make a value of one other value for nothing or next to nothing."""
    rng = random.Random(seed)
    graph = families.random_graph(
        rng,
        rng.randint(4, most),
        max_outputs=2,
        workspace=True,
        recompute_false=0.1,
        unread=False,
    )
    size, nodes = list(graph.size), []
    for i, node in enumerate(graph.nodes):
        made = graph.values_of(i)
        if len(made) == len(node.inputs) == 1 and rng.random() < 0.6:
            size[made[0]] = max(1, size[node.inputs[0]] + rng.choice((-3, 0, 0, 1)))
            node = replace(node, cost=rng.choice((0.0, 0.01)), outputs=(size[made[0]],))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def rooms(graph: Graph) -> range:
    """Bytes from the least peak to one below that without recomputation."""
    least = bruteforce.least_peak(graph) - graph.fixed_memory
    return range(least, no_remat_peak(graph) - graph.fixed_memory)


def cheapest_end(graph: Graph, first: int, kept: frozenset[int], room: int) -> float:
    """What is recomputed at least after ``first``, if ``kept`` stays while it is computed; infinite if nothing fits."""
    n = len(graph.nodes)
    there = kept.union(graph.values_of(first))
    if sum(graph.size[v] for v in kept - {*graph.nodes[first].inputs}) + working_set(graph, first) > room:
        return math.inf
    queue: list[tuple[float, int, tuple[int, ...]]] = [(0.0, first + 1, tuple(sorted(there)))]
    seen = set()
    while queue:
        cost, done, resident = heapq.heappop(queue)
        if (done, resident) in seen:
            continue
        seen.add((done, resident))
        memory = set(resident)
        if done == n and memory.issuperset(graph.outputs):
            return cost
        for v in resident:
            heapq.heappush(queue, (cost, done, tuple(sorted(memory - {v}))))
        for i in range(min(done + 1, n)):
            node, after = graph.nodes[i], memory.union(graph.values_of(i))
            if (i < done and not node.recompute) or not memory.issuperset(node.inputs):
                continue
            if sum(graph.size[v] for v in after) + node.workspace <= room:
                added = node.cost if i < done else 0.0
                heapq.heappush(queue, (cost + added, max(done, i + 1), tuple(sorted(after))))
    return math.inf


def some_sets(graph: Graph, first: int, rng: random.Random) -> Iterator[frozenset[int]]:
    """Sets of values that were made before ``first`` and are read after it."""
    read = {v for j in range(first + 1, len(graph.nodes)) for v in graph.nodes[j].inputs}.union(graph.outputs)
    values = [v for v in range(graph.first_value[first]) if v in read]
    yield frozenset(values)
    for _ in range(8):
        yield frozenset(v for v in values if rng.random() < 0.6)


def parts(graph: Graph, room: int) -> Iterator[tuple[int, frozenset[int], tails.Part]]:
    """The tails of a graph in which something must be recomputed: the first node, the nodes, and the tail."""
    for first, nodes in tails.tails(graph):
        part = tails.Part.of(graph, first, nodes, room, Control())
        if part is not None:
            yield first, nodes, part


@seeded(range(60), compared=150, apart=60, impossible=20)
def test_in_document_order_it_finds_the_cheapest_schedule(seed: int) -> Iterator[str]:
    graph = small(seed)
    least = bruteforce.least_peak(graph)
    for budget in range(least - 1, no_remat_peak(graph) + 1):
        truth = bruteforce.cheapest(graph, budget)
        search = Search.of(graph, budget - graph.fixed_memory, in_order=True, ceiling=math.inf, most_bytes=2**20)
        at = search.next(Control())
        if truth is None:
            assert (at, search.exhausted) == (None, True)
            yield "impossible"
            continue
        assert at is not None
        computes = search.sequence(at)
        assert peak(graph, computes) <= budget
        assert cost_of(graph, computes) == pytest.approx(truth)
        yield "compared"
        if truth > graph.total_cost:
            yield "apart"


@seeded(range(80), compared=120, coarser=50, fewer=20)
def test_states_of_a_coarse_graph_change_no_result_and_save_states(seed: int) -> Iterator[str]:
    graph, rng = small(seed), random.Random(seed)
    for room in rooms(graph):
        free = [rng.random() < 0.2 for _ in graph.size]
        by = standing(graph, free, stage_cuts.derived_values(graph, 3e-3))
        other, image = coarse(graph, by)
        assert working_sets(other) == working_sets(graph)
        bounds = coarse_states(other, room, Control(), least_left=0, most_bytes=2**30)
        assert bounds is not None
        searches = [
            Search.of(graph, room, in_order=True, ceiling=math.inf, most_bytes=2**20, coarse=found)
            for found in (None, bounds.of(np.array(image)))
        ]
        plain, guided = (search.next(Control()) for search in searches)
        assert plain is not None
        assert guided is not None
        truth = float(searches[0].states.cost[plain])
        assert float(searches[1].states.cost[guided]) == pytest.approx(truth)
        assert bounds.states.ahead[0] <= truth + 1e-12
        yield "compared"
        if bounds.states.ahead[0] > 0:
            yield "coarser"
        looked = [int(search.states.totals[2]) for search in searches]
        if looked[1] < looked[0]:
            yield "fewer"


@pytest.mark.parametrize(("made", "by"), [(2, [0, 1, 2, 3]), (10, [0, 0, 2, 3])])
def test_no_value_is_represented_by_a_larger_one(made: int, by: list[int]) -> None:
    """Beside node c two bytes fit, and ten do not: with two there is nothing to recompute."""
    nodes = (
        Node("a", 5.0, (), (10,)),
        Node("b", 0.0, (0,), (made,)),
        Node("c", 1.0, (), (1,), 9),
        Node("d", 1.0, (1, 2), (1,)),
    )
    graph = Graph("represented", nodes, (3,))
    assert standing(graph, [False] * 4, stage_cuts.derived_values(graph)) == by
    search = Search.of(coarse(graph, by)[0], 10 + made, in_order=True, ceiling=math.inf, most_bytes=2**20)
    at = search.next(Control())
    assert at is not None
    assert search.states.cost[at] == 0


@pytest.mark.parametrize("shares", [(0.04, 0.1), (0.1, 0.4)], ids=["fine", "coarse"])
@seeded(range(80), compared=300, met=100, apart=80)
def test_no_tail_costs_less_than_its_cost_to_go(
    seed: int, shares: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    monkeypatch.setattr(tails, "_SMALL", shares[0])
    monkeypatch.setattr(tails, "_LARGE", shares[1])
    graph, rng = small(seed), random.Random(seed)
    unit = graph.total_cost or 1.0
    for room in rooms(graph):
        for first, _, part in parts(graph, room):
            *_, tail = part.costs_to_go(Control())
            for kept in some_sets(graph, first, rng):
                truth = cheapest_end(graph, first, kept, room)
                chosen = np.array([float(v in kept) for v in range(graph.first_value[first])])
                assert tail.cost(chosen) * unit <= truth + 1e-9, (seed, room, first, kept)
                yield "compared"
                if 0 < truth < math.inf:
                    yield "apart"
                if tail.cost(chosen) * unit > truth - 1e-9:
                    yield "met"


@seeded(range(60), compared=150, wider=10)
def test_the_wider_search_says_more_and_lists_no_set_that_contains_another(seed: int) -> Iterator[str]:
    graph, rng = small(seed), random.Random(seed)
    for room in rooms(graph):
        for first, _, part in parts(graph, room):
            near, wide = part.costs_to_go(Control())
            for row, kept in enumerate(wide.kept):
                assert not any(np.all(kept >= other) for other in wide.kept[:row])
            assert list(wide.costs) == sorted(wide.costs)
            for chosen in some_sets(graph, first, rng):
                values = np.array([float(v in chosen) for v in range(graph.first_value[first])])
                assert near.cost(values) <= wide.cost(values) + 1e-12
                yield "compared"
                if near.cost(values) < wide.cost(values) - 1e-9:
                    yield "wider"


@seeded(range(150), compared=400, met=100, inside=100)
def test_an_inequality_holds_for_all_sets_and_meets_the_one_that_it_is_for(seed: int) -> Iterator[str]:
    graph, rng = small(seed), random.Random(seed)
    context = Context(Control.within(60), Highs(), threads=1)
    for room in rooms(graph):
        for first, nodes, part in parts(graph, room):
            *_, tail = part.costs_to_go(Control())
            sets = [
                np.array([float(v in kept) for v in range(graph.first_value[first])])
                for kept in some_sets(graph, first, rng)
            ]
            for kept in (sets[1], sets[2], (sets[0] + sets[1]) / 2):
                row = tail.inequality(kept, context, Control())
                assert row.first == first
                assert row.nodes >= nodes
                says = [row.constant - math.fsum(cost * one[v] for v, cost in row.spared.items()) for one in sets]
                assert all(said <= tail.cost(one) + 1e-12 for said, one in zip(says, sets, strict=True))
                yield "compared"
                if kept is sets[1]:
                    assert says[1] == pytest.approx(tail.cost(kept), abs=1e-3)
                    yield "met"
                elif row.constant > 0:
                    yield "inside"


@seeded(range(100), compared=150, higher=20)
def test_a_model_with_costs_to_go_bounds_every_schedule(seed: int) -> Iterator[str]:
    graph, rng = small(seed), random.Random(seed)
    context = Context(Control.within(60), Highs(), threads=1)
    for room in rooms(graph):
        truth = bruteforce.cheapest(graph, room + graph.fixed_memory)
        assert truth is not None
        for first, _, part in parts(graph, room):
            *_, tail = part.costs_to_go(Control())
            sets = some_sets(graph, first, rng)
            rows = [
                tail.inequality(
                    np.array([float(v in kept) for v in range(graph.first_value[first])]), context, Control()
                )
                for kept in sets
            ]
            more = [(t, t) for t in range(len(graph.nodes)) if rng.random() < 0.3 or t == first]
            free = stage_cuts.derived_values(graph)
            bounds = []
            for to_go in ((), rows):
                stated = stage_cuts.build(graph, more, room, Control(), derived=free, to_go=to_go)
                outcome = Highs().solve(Request(stated.model, Control(), gap=1e-9, threads=1))
                assert outcome.termination is Termination.OPTIMAL
                assert outcome.objective is not None
                assert outcome.values is not None
                assert graph.total_cost * (1 + outcome.objective) <= truth + 1e-6, (seed, room, first)
                bounds.append(outcome.objective)
            yield "compared"
            assert bounds[0] <= bounds[1] + 1e-9
            if bounds[1] > bounds[0] + 1e-6:
                yield "higher"


@seeded(range(150), ends=150, dear=120)
def test_an_end_completes_every_schedule_that_keeps_what_it_needs(seed: int) -> Iterator[str]:
    graph = small(seed)
    for room in rooms(graph):
        for first, _, part in parts(graph, room):
            *_, tail = part.costs_to_go(Control())
            for end in part.ends(Control())[:20]:
                whole = (*range(first + 1), *end.computes)
                assert not replay(graph, derive(graph, whole)).findings
                assert max(heights(graph, whole)[first + 1 :]) <= room + graph.fixed_memory
                assert cost_of(graph, whole) - graph.total_cost == pytest.approx(end.cost)
                there = set(end.kept)
                for i in end.computes:
                    assert there.issuperset(graph.nodes[i].inputs)
                    there.update(graph.values_of(i))
                kept = np.array([float(v in end.kept) for v in range(graph.first_value[first])])
                assert tail.cost(kept) * (graph.total_cost or 1.0) <= end.cost + 1e-9
                yield "ends"
                if end.cost > 0:
                    yield "dear"


@pytest.mark.parametrize(("kept", "chosen"), [((0, 1), 0), ((0,), 1), ((), 1), ((1,), 0), ((0, 1, 2), 0)])
def test_a_solution_gets_the_end_that_needs_the_fewest_other_bytes(kept: tuple[int, ...], chosen: int) -> None:
    """The first end needs a (4 bytes) and b (8); the second one only a, and computes b again."""
    nodes = (
        Node("a", 1.0, (), (4,)),
        Node("b", 1.0, (0,), (8,)),
        Node("c", 1.0, (1,), (1,)),
        Node("d", 1.0, (0, 1, 2), (1,)),
    )
    best = Incumbent.of(Task(Graph("ends", nodes, (3,)), 14), Context(Control(), Highs()))
    engine = tails.Tails(best)
    engine.found = tails.Tail(2, frozenset(range(4)), np.zeros((0, 2), dtype=np.bool_), np.zeros(0), 0.0, ended=True)
    engine.ends = [tails.End(frozenset((0, 1)), 0.0, (3,)), tails.End(frozenset((0,)), 1.0, (1, 3))]
    assert engine.ended_from(frozenset(kept), (0, 1, 2, 1, 3)) == (0, 1, 2, *engine.ends[chosen].computes)


def test_the_tail_of_a_network_is_its_first_stage() -> None:
    """After the first backward node of the first stage nothing of the later stages is read."""
    graph = build_graph("resnet50")
    found = tails.tails(graph)
    assert all(len(nodes) <= 100 for _, nodes in found)
    assert [first for first, _ in found] == sorted((first for first, _ in found), reverse=True)
    for first, nodes in found:
        assert {*range(first, len(graph.nodes))} <= nodes
        read = {v for j in range(first + 1, len(graph.nodes)) for v in graph.nodes[j].inputs}
        assert {graph.producer[v] for v in read} <= nodes
