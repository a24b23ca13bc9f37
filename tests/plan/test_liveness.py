"""The walk that everything derived from a sequence stands on, against the definition of what is in memory."""

import random
from collections.abc import Iterator

import pytest
from families import random_graph
from seeded import seeded
from test_derive import random_sequence

from remat_cli.graph.model import Graph, Node, closed
from remat_cli.plan.derive import derive, peak, prune
from remat_cli.plan.liveness import DEAD, cost_of, heights, next_reads, priced, reads_at_end, walk_back
from remat_cli.plan.matrices import is_frontier_advancing, least_recomputation_between, matrices_of, straightened
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


# R and S


CHAIN = Graph("g", tuple(Node(f"n{i}", 1.0, (i - 1,) if i else (), (1,)) for i in range(4)), (3,))


def test_a_chain_by_hand() -> None:
    seen = matrices_of(CHAIN, [0, 1, 0, 2, 3])
    assert seen.computed == {(0, 0), (1, 1), (2, 0), (2, 2), (3, 3)}
    # n0 is made for n1; the second time for nothing. n3 stays to the end, which is stage 4.
    assert seen.kept == (((0, 1),), ((1, 2),), ((2, 3),), ((3, 4),))


def test_bad_sequences_are_refused() -> None:
    with pytest.raises(ValueError, match="n2 is computed before n1"):
        matrices_of(CHAIN, [0, 2])


@seeded(range(60), recomputed=35, same=35)
def test_keeping_what_a_frontier_advancing_sequence_keeps_gives_it_back(seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    graph = random_graph(rng, rng.randint(2, 10), max_outputs=2, random_outputs=True)
    sequence = _ascending_stages(graph, random_sequence(rng, graph))
    seen = matrices_of(graph, sequence)

    again = least_recomputation_between(closed(graph), seen.kept)
    again = tuple(k for k in again if k < len(graph.nodes))
    assert replay(graph, derive(graph, again)).valid
    # It may drop what served nothing, and nothing else; what it keeps lives no longer.
    assert len(again) <= len(sequence)
    same = prune(graph, again) == prune(graph, sequence)
    assert same or peak(graph, again) <= peak(graph, sequence)
    if len(again) > len(graph.nodes):
        yield "recomputed"
        if same:
            yield "same"


def _ascending_stages(graph: Graph, sequence: list[int]) -> list[int]:
    """The sequence with every stage sorted and without repeats, as frontier-advancing schedules have it."""
    stages: list[set[int]] = [set()]
    for node in sequence:
        stages[-1].add(node)
        if node == len(stages) - 1:
            stages.append(set())
    return [node for stage in stages for node in sorted(stage)]


def test_which_sequences_are_frontier_advancing() -> None:
    assert is_frontier_advancing(CHAIN, [0, 1, 0, 2, 0, 1, 3])
    assert not is_frontier_advancing(CHAIN, [0, 1, 2, 1, 0, 3]), "1 before 0 within a stage"
    assert not is_frontier_advancing(CHAIN, [0, 1, 0, 0, 2, 3]), "0 twice in a stage"
    assert not is_frontier_advancing(CHAIN, [0, 1, 2]), "3 is missing"


@seeded(range(60), recomputed=30, straightened=20)
def test_a_straightened_sequence_is_frontier_advancing_and_no_dearer(seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    graph = random_graph(rng, rng.randint(2, 10), max_outputs=2, random_outputs=True)
    sequence = [k for k in random_sequence(rng, graph) if k < len(graph.nodes)]
    last = max(i for i, k in enumerate(sequence) if k == len(graph.nodes) - 1 and k not in sequence[:i])
    sequence = sequence[: last + 1]  # what comes after the last first computation belongs to no stage here
    straight = straightened(graph, sequence)
    assert is_frontier_advancing(graph, straight)
    assert replay(graph, derive(graph, straight)).valid
    cost = sum(graph.nodes[k].cost for k in prune(graph, straight))
    assert cost <= sum(graph.nodes[k].cost for k in sequence)
    if len(straight) > len(graph.nodes):
        yield "recomputed"
    if not is_frontier_advancing(graph, sequence):
        yield "straightened"
