"""The walk that everything derived from a sequence stands on, against the definition of what is in memory."""

import random

import pytest
from families import random_graph

from remat_cli.graph.model import Graph, Node
from remat_cli.plan.derive import derive
from remat_cli.plan.liveness import DEAD, cost_of, heights, next_reads, priced, reads_at_end, walk_back
from remat_cli.plan.model import Compute
from remat_cli.plan.replay import replay


def case(seed: int) -> tuple[Graph, list[int]]:
    """A graph, and a schedule of it with some recomputations, needed or not."""
    rng = random.Random(seed)
    graph = random_graph(rng, 12, max_outputs=3, zero_outputs=True, random_outputs=True, workspace=True, fixed_memory=7)
    computes: list[int] = []
    for i in range(len(graph.nodes)):
        computes.append(i)
        computes += [k for k in (rng.randint(0, i), rng.randint(0, i)) if graph.nodes[k].recompute]
    return graph, computes


def next_read(graph: Graph, computes: list[int], at: int, v: int) -> int:
    """By the definition: the first event from a step on that concerns a value decides."""
    for step in range(at, len(computes)):
        if v in graph.nodes[computes[step]].inputs:
            return step
        if graph.producer[v] == computes[step]:
            return DEAD
    return len(computes) if v in graph.outputs else DEAD


@pytest.mark.parametrize("seed", range(30))
def test_the_state_before_every_step_is_that_of_the_definition(seed: int) -> None:
    graph, computes = case(seed)
    steps = range(len(computes) + 1)
    state = next_reads(graph, computes, steps)
    for at in steps:
        assert state[at] == [next_read(graph, computes, at, v) for v in range(len(graph.size))]
    for at, (k, height) in enumerate(zip(computes, heights(graph, computes), strict=True)):
        node = graph.nodes[k]
        there = {v for v, step in enumerate(state[at + 1]) if step >= 0} | {*node.inputs, *graph.values_of(k)}
        assert height == graph.fixed_memory + node.workspace + sum(graph.size[v] for v in there)


@pytest.mark.parametrize("seed", range(30))
def test_pruning_drops_the_recomputations_that_serve_nothing_and_no_others(seed: int) -> None:
    graph, computes = case(seed)
    found = priced(graph, computes)
    seen = replay(graph, derive(graph, found.computes))
    assert seen.valid
    assert (seen.cost, seen.peak_bytes) == (found.cost, found.peak_bytes)
    assert found.peak_bytes <= max(heights(graph, computes))
    assert found.cost == cost_of(graph, found.computes) <= cost_of(graph, computes)
    assert priced(graph, found.computes) == found
    state = next_reads(graph, found.computes, range(len(found.computes) + 1))
    for at, k in enumerate(found.computes):
        if k in found.computes[:at]:
            assert any(state[at + 1][v] >= 0 for v in graph.values_of(k))
    assert list(dict.fromkeys(found.computes)) == list(range(len(graph.nodes)))


@pytest.mark.parametrize("seed", range(10))
def test_everything_dies_once_and_what_stays_stays(seed: int) -> None:
    graph, computes = case(seed)
    rng = random.Random(seed)
    held = frozenset(rng.sample(range(len(graph.size)), 3))
    dying = [v for _, _, values in walk_back(graph, computes, reads_at_end(graph, computes, held)) for v in values]
    for v, maker in enumerate(graph.producer):
        stays = v in held or v in graph.outputs
        assert dying.count(v) == computes.count(maker) - stays
    assert sum(isinstance(s, Compute) for s in derive(graph, computes, held)) == len(computes)


def test_a_read_of_what_was_not_computed_is_refused_by_its_first_reader() -> None:
    nodes = (Node("a", 1.0, (), (1,)), Node("b", 1.0, (0,), (1,)), Node("c", 1.0, (0,), (1,)))
    graph = Graph("g", nodes, outputs=(2,))
    for walked in (heights, priced):
        with pytest.raises(ValueError, match="c is computed before its input a:0"):
            walked(graph, (2, 1, 0))


def test_nothing_computed_needs_fixed_memory() -> None:
    graph = Graph("g", (Node("a", 1.0, (), (5,)),), outputs=(0,), fixed_memory=3)
    assert priced(graph, ()).peak_bytes == 3
    assert priced(graph, (0,)).peak_bytes == 8
