"""Statements derived from sequences: valid, as lean as can be, and in step with an independent count."""

import random
from collections.abc import Iterator

import pytest
from families import random_graph
from seeded import seeded

from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph, Node
from remat_cli.plan.derive import derive, peak, prune
from remat_cli.plan.model import Allocate, Compute, Deallocate
from remat_cli.plan.replay import replay

CHAIN = Graph(
    "chain",
    (Node("a", 1.0, (), (10,)), Node("b", 1.0, (0,), (20,)), Node("c", 1.0, (1,), (5,))),
    outputs=(2,),
    fixed_memory=100,
)


def random_sequence(rng: random.Random, graph: Graph, extra: float = 0.5) -> list[int]:
    """First computations in document order, with recomputations of allowed nodes strewn in between."""
    sequence: list[int] = []
    for i in range(len(graph.nodes)):
        sequence.append(i)
        while rng.random() < extra:
            again = rng.randint(0, i)
            if graph.nodes[again].recompute:
                sequence.append(again)
    return sequence


def naive_peak(graph: Graph, computes: list[int]) -> int:
    """Peak by the definition: a value is resident at a step if it was made before and is needed at or after it."""
    highest = graph.fixed_memory
    for at, k in enumerate(computes):
        made = {v for j in computes[:at] for v in graph.values_of(j)}
        needed = set()
        for v in made - set(graph.values_of(k)):
            later = next((j for j in computes[at:] if v in graph.nodes[j].inputs or v in graph.values_of(j)), None)
            # Needed if the next event that concerns it is a read, or it is an output and nothing concerns it again.
            if (v in graph.outputs) if later is None else v in graph.nodes[later].inputs:
                needed.add(v)
        total = sum(graph.size[v] for v in needed | set(graph.values_of(k))) + graph.nodes[k].workspace
        highest = max(highest, graph.fixed_memory + total)
    return highest


def test_values_die_right_after_their_last_read() -> None:
    assert derive(CHAIN, [0, 1, 2]) == (
        Allocate("%0", 0),
        Compute(0, ("%0",)),
        Allocate("%1", 1),
        Compute(1, ("%1",)),
        Deallocate("%0"),
        Allocate("%2", 2),
        Compute(2, ("%2",)),
        Deallocate("%1"),
    )


def test_held_values_stay_to_the_end() -> None:
    statements = derive(CHAIN, [0, 1, 2], frozenset({0, 1}))
    assert statements[-2:] == (Deallocate("%0"), Deallocate("%1"))
    assert replay(CHAIN, statements).peak_bytes == 135


def test_an_unread_value_dies_at_once() -> None:
    graph = Graph("g", (Node("a", 1.0, (), (10, 7)), Node("b", 1.0, (0,), (1,))), outputs=(2,))
    assert derive(graph, [0, 1])[3] == Deallocate("%1")


def test_an_earlier_instance_of_an_output_is_dropped() -> None:
    graph = Graph("g", (Node("a", 1.0, (), (10,)), Node("b", 1.0, (), (90,))), outputs=(0,))
    assert peak(graph, [0, 1, 0]) == 90
    assert peak(graph, [0, 1]) == 100


def test_a_read_before_any_computation_is_refused() -> None:
    with pytest.raises(ValueError, match="b is computed before its input a:0"):
        derive(CHAIN, [1, 0, 2])


@seeded(range(60), recomputed=40, pruned=30, kept=30, held=20)
def test_any_sequence_gives_a_valid_plan(seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    graph = random_graph(
        rng,
        rng.randint(1, 12),
        max_outputs=3,
        zero_outputs=True,
        workspace=True,
        recompute_false=0.2,
        random_outputs=seed % 2 == 0,
        fixed_memory=rng.randint(0, 9),
    )
    sequence = random_sequence(rng, graph)
    seen = replay(graph, derive(graph, sequence))
    assert seen.findings == ()
    assert seen.peak_bytes == peak(graph, sequence) == naive_peak(graph, sequence)
    assert seen.cost == sum(graph.nodes[k].cost for k in sequence)
    pruned = prune(graph, sequence)
    assert replay(graph, derive(graph, pruned)).valid
    assert peak(graph, pruned) <= peak(graph, sequence)
    assert prune(graph, pruned) == pruned
    if len(sequence) > len(graph.nodes):
        yield "recomputed"
    if len(pruned) < len(sequence):
        yield "pruned"
    if len(pruned) > len(graph.nodes):
        yield "kept"
    held = frozenset(rng.sample(range(len(graph.size)), len(graph.size) // 2))
    assert replay(graph, derive(graph, sequence, held)).valid
    if replay(graph, derive(graph, sequence, held)).peak_bytes > seen.peak_bytes:
        yield "held"


@seeded(range(20), apart=15)
def test_no_remat_peak_is_what_the_judge_sees(seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    graph = random_graph(rng, 15, max_outputs=2, workspace=True, random_outputs=True)
    everything_once = range(len(graph.nodes))
    assert no_remat_peak(graph) == replay(graph, derive(graph, everything_once)).peak_bytes
    assert peak_bound(graph).bytes <= no_remat_peak(graph)
    if peak_bound(graph).bytes < no_remat_peak(graph):
        yield "apart"


def test_pruning_keeps_first_computations_and_needed_ones() -> None:
    assert prune(CHAIN, [0, 1, 0, 2, 1, 0]) == (0, 1, 2)
    # The second a and the second b serve reads; that the first b then serves none does not matter: it comes first.
    assert prune(CHAIN, [0, 1, 0, 1, 2]) == (0, 1, 0, 1, 2)
