"""R and S of a sequence, and the sequence with the least recomputation for an S."""

import random
from collections.abc import Iterator

import pytest
from families import random_graph
from seeded import seeded
from test_derive import random_sequence

from remat_cli.graph.model import Graph, Node, closed
from remat_cli.plan.derive import derive, peak, prune
from remat_cli.plan.matrices import is_frontier_advancing, least_recomputation, matrices_of, straightened
from remat_cli.plan.replay import replay

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

    def kept(stage: int, value: int) -> bool:
        return any(s < stage <= e for s, e in seen.kept[value])

    again = least_recomputation(closed(graph), kept)
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
