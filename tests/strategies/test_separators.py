"""Decompositions, the schedules that follow from them, and the strategies twremat and pwremat."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import networkx
import pytest
from families import random_graph
from networkx.algorithms.approximation import treewidth_min_fill_in
from seeded import seeded

from remat_cli.control import Control
from remat_cli.errors import Infeasible, LimitReached, StrategyMismatch, UsageError
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph
from remat_cli.plan.derive import derive, peak
from remat_cli.plan.replay import replay
from remat_cli.planning.solving import SolveOptions, solve
from remat_cli.strategies.published.separators import (
    Separator,
    min_fill,
    path_separators,
    recursive_schedule,
    skeleton,
    tree_separators,
)
from remat_cli.strategies.published.twremat import fitted, in_document_order
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.zoo.registry import build_graph

Decompose = Callable[[Graph], tuple[Separator, int]]
DECOMPOSITIONS = pytest.mark.parametrize("decompose", [tree_separators, path_separators])
LONG = 10**6


def wild(seed: int, n: int = 14, **more: object) -> Graph:
    rng = random.Random(seed)
    return random_graph(
        rng, n, max_outputs=2, workspace=True, random_outputs=seed % 3 == 0, zero_outputs=seed % 4 == 0, **more
    )  # type: ignore[arg-type]  # options of random_graph


def plain(seed: int) -> Graph:
    """Values of one byte, one per node, as the theorem counts them."""
    rng = random.Random(seed)
    return random_graph(rng, rng.randint(8, 40), max_inputs=rng.choice((1, 2)), max_size=1, unread=False)


def parts(root: Separator) -> list[tuple[Separator, frozenset[int]]]:
    """Every separator, with the nodes of those above it."""
    todo, found = [(root, frozenset[int]())], []
    while todo:
        part, above = todo.pop()
        found.append((part, above))
        todo.extend((child, above | set(part.bag)) for child in part.below)
    return found


@DECOMPOSITIONS
@seeded(range(25), parts=100)
def test_separators_separate(decompose: Decompose, seed: int) -> Iterator[str]:
    graph = wild(seed)
    around = skeleton(graph)
    root, width = decompose(graph)
    assert sorted(i for part, _ in parts(root) for i in part.bag) == list(range(len(graph.nodes)))
    for part, above in parts(root):
        assert len(part.bag) <= width + 1
        for child in part.below:
            outside = set().union(*(around[i] for i in child.nodes)) - child.nodes
            assert outside <= above | set(part.bag), "a part has neighbours beside itself and above"
            yield "parts"


@pytest.mark.parametrize("density", [0.02, 0.1, 0.3, 0.8])
def test_min_fill_is_that_of_networkx(density: float) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        plain = networkx.empty_graph(rng.randint(1, 35))
        plain.add_edges_from((i, j) for i in plain for j in range(i) if rng.random() < density)
        width, tree = treewidth_min_fill_in(plain)
        found = min_fill([set(plain[i]) for i in plain], Control())
        assert found.width == width
        edges = {frozenset((found.bags[i], found.bags[j])) for i, others in enumerate(found.around) for j in others}
        assert edges == {frozenset(edge) for edge in tree.edges}


@DECOMPOSITIONS
def test_decomposing_stops_with_the_clock(decompose: Callable[[Graph, Control], object]) -> None:
    with pytest.raises(LimitReached):
        decompose(wild(1), Control.within(0))


@DECOMPOSITIONS
@pytest.mark.parametrize(("name", "width"), [("unit-chain{n=41}", 2), ("linear{n=20,backward=none}", 1)])
def test_widths_of_chains(decompose: Decompose, name: str, width: int) -> None:
    graph = build_graph(name)
    root, found = decompose(graph)
    assert found == width
    assert root.depth <= math.log2(len(graph.nodes)) + 1


def test_the_width_of_a_clique() -> None:
    graph = random_graph(random.Random(0), 8, max_inputs=7)
    full = Graph(
        "clique", tuple(type(n)(n.id, n.cost, tuple(range(k)), n.outputs) for k, n in enumerate(graph.nodes)), (7,)
    )
    for decompose in (tree_separators, path_separators):
        root, width = decompose(full)
        assert (width, root.depth) == (7, 1)


@DECOMPOSITIONS
@seeded(range(25), recomputed=40)
def test_schedules_compute_everything_from_what_is_there(decompose: Decompose, seed: int) -> Iterator[str]:
    graph = wild(seed)
    root, _ = decompose(graph)
    for levels in range(root.depth + 1):
        computes = recursive_schedule(graph, root, levels, LONG)
        assert computes is not None
        assert set(computes) == set(range(len(graph.nodes)))
        assert replay(graph, derive(graph, computes), any_order=True).valid
        if levels == 0:
            assert len(computes) == len(graph.nodes)
        elif len(computes) > len(graph.nodes):
            yield "recomputed"
    assert recursive_schedule(graph, root, root.depth, len(graph.nodes) - 1) is None


@DECOMPOSITIONS
@seeded(range(25))
def test_memory_is_bags_and_inputs_along_one_way_down(decompose: Decompose, seed: int) -> None:
    """Kumar et al.: O(width * log n) values; here a bag and what one node reads for each level."""
    graph = plain(seed)
    root, width = decompose(graph)
    computes = recursive_schedule(graph, root, root.depth, LONG)
    assert computes is not None
    reads = max(len(node.inputs) for node in graph.nodes)
    sinks = sum(not readers for readers in graph.readers)
    assert peak(graph, computes) <= root.depth * (width + 1 + reads) + sinks


@DECOMPOSITIONS
@pytest.mark.parametrize(("stages", "longest", "highest"), [(10, 36, 7), (30, 135, 10), (100, 545, 12)])
def test_chains_take_few_computes_in_logarithmic_memory(
    decompose: Decompose, stages: int, longest: int, highest: int
) -> None:
    graph = build_graph(f"unit-chain{{n={2 * stages + 1}}}")
    root, _ = decompose(graph)
    computes = recursive_schedule(graph, root, root.depth, LONG)
    assert computes is not None
    assert len(computes) <= longest
    assert peak(graph, computes) <= highest
    assert in_document_order(graph, computes) == tuple(computes)


@seeded(range(40), spared=100, fits=12)
def test_fitting_keeps_what_there_is_room_for(seed: int) -> Iterator[str]:
    graph = wild(seed, recompute_false=0.2 * (seed % 2))
    root, _ = tree_separators(graph)
    computes = in_document_order(graph, recursive_schedule(graph, root, root.depth, LONG) or ())
    assert replay(graph, derive(graph, computes)).valid
    last = fitted(graph, computes, None)[-1]
    assert last == tuple(range(len(graph.nodes))), "without a budget nothing has to go"
    top, lowest = no_remat_peak(graph), peak(graph, computes)
    for budget in (top, (top + lowest) // 2, lowest, peak_bound(graph).bytes):
        for schedule in fitted(graph, computes, budget):
            assert replay(graph, derive(graph, schedule)).valid
            assert len(schedule) <= len(computes)
            if len(graph.nodes) < len(schedule) < len(computes):
                yield "spared"
            if budget >= lowest:
                assert peak(graph, schedule) <= budget
                if budget < top:
                    yield "fits"


@pytest.mark.parametrize("strategy", ["twremat", "pwremat"])
def test_networks_within_budgets(strategy: str) -> None:
    graph = build_graph("mobilenet-v1")
    overheads = []
    for budget in ("80%", "50%", "35%"):
        solved = solve(graph, budget, SolveOptions(strategy=strategy))
        again = solve(graph, budget, SolveOptions(strategy=solved.plan.strategy))
        assert "levels=" in solved.plan.strategy
        assert again.plan.statements == solved.plan.statements
        overheads.append(solved.report.overhead)
    assert 0 < overheads[0] < overheads[1] < overheads[2] < 1


@pytest.mark.parametrize("strategy", ["twremat", "pwremat"])
def test_given_levels_are_used_as_such(strategy: str) -> None:
    graph = build_graph("mobilenet-v1")
    with pytest.raises(Infeasible, match=f"no plan that {strategy} makes fits"):
        solve(graph, "80%", SolveOptions(strategy=f"{strategy}{{levels=0}}"))
    deep = solve(graph, "80%", SolveOptions(strategy=f"{strategy}{{levels=50}}"))
    assert deep.plan.strategy == f"{strategy}{{levels=50}}"
    with pytest.raises(UsageError):
        strategy_from_spec(f"{strategy}{{levels=-1}}")


def test_wide_graphs_are_not_for_pwremat() -> None:
    graph = random_graph(random.Random(1), 60, max_inputs=6)
    with pytest.raises(StrategyMismatch, match=r"has width \d+, above 16"):
        solve(graph, "90%", SolveOptions(strategy="pwremat"))
    with pytest.raises(UsageError):
        strategy_from_spec("pwremat{most_width=0}")
