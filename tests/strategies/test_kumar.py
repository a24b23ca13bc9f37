"""The algorithms of Kumar et al., against second implementations that follow the words of the paper."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from families import random_graph
from seeded import seeded

from benchmarks.paper.published import published
from remat_cli.control import Control
from remat_cli.errors import RematError, UsageError
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph, Node
from remat_cli.planning.solving import SolveOptions, solve
from remat_cli.strategies.published.separators import (
    Bags,
    merged,
    min_fill,
    recursive_schedule,
    skeleton,
    tree_separators,
)
from remat_cli.strategies.published.xla_greedy import _Walk
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.zoo.registry import build_graph

LONG = 10**6


def wild(seed: int, n: int = 14, **more: object) -> Graph:
    rng = random.Random(seed)
    return random_graph(rng, n, max_outputs=2, random_outputs=seed % 3 == 0, **more)  # type: ignore[arg-type]


# GreedyRemat


class Naive:
    """The pass on a plain list: every question is answered by a walk over all of it."""

    def __init__(self, graph: Graph, budget: int) -> None:
        self.graph, self.budget = graph, budget
        self.items = list(range(len(graph.nodes)))

    def run(self) -> list[int]:
        at, first = 0, 0
        while at < len(self.items):
            own = self.items[at] == first and self.items.index(first) == at
            while self.used(self.items, at) > self.budget:
                best = self.best(at, first)
                if best is None or len(self.items) > 5 * len(self.graph.nodes):  # as long as the pass allows
                    break
                self.items = best
            first += own
            at += 1
        return self.items

    def next_read(self, items: list[int], at: int, v: int) -> int | None:
        """The position after ``at`` at which the value is read, unless it is made anew before."""
        graph = self.graph
        for k in range(at + 1, len(items)):
            if v in graph.nodes[items[k]].inputs:
                return k
            if v in graph.values_of(items[k]):
                return None
        return len(items) if v in graph.outputs else None

    def used(self, items: list[int], at: int) -> int:
        graph, node = self.graph, items[at]
        live = {*graph.nodes[node].inputs, *graph.values_of(node)}
        for v, maker in enumerate(graph.producer):
            made = [k for k in range(at + 1) if items[k] == maker]
            if made and self.next_read(items, at, v) is not None:
                live.add(v)
        return graph.fixed_memory + graph.nodes[node].workspace + sum(graph.size[v] for v in live)

    def best(self, at: int, first: int) -> list[int] | None:
        """The list with that operation inserted which lowers the memory now the most; the first one on a tie."""
        graph, node = self.graph, self.items[at]
        now = self.used(self.items, at)
        pinned = {*graph.nodes[node].inputs, *graph.values_of(node)}
        found: tuple[int, list[int]] | None = None
        for i in range(first):
            values = graph.values_of(i)
            reads = {v: self.next_read(self.items, at, v) for v in values}
            to_end = any(place == len(self.items) for place in reads.values())
            if not graph.nodes[i].recompute or pinned.intersection(values) or to_end:
                continue
            if all(place is None for place in reads.values()):
                continue
            places = [self.next_read(self.items, at, v) for v in (*graph.nodes[i].inputs, *values)]
            before = min(place for place in places if place is not None)
            tried = [*self.items[:before], i, *self.items[before:]]
            # As XLA counts: an input that is dead now is charged, even if a later item makes it anew.
            dead = [v for v in graph.nodes[i].inputs if v not in pinned and self.next_read(self.items, at, v) is None]
            lowered = sum(graph.size[v] for v in values if reads[v] is not None) - sum(graph.size[v] for v in dead)
            assert lowered <= now - self.used(tried, at)
            if lowered > 0 and (found is None or lowered > found[0]):
                found = (lowered, tried)
        return None if found is None else found[1]


@seeded(range(60), recomputed=60)
def test_greedy_remat_takes_one_operation_at_a_time(seed: int) -> Iterator[str]:
    graph = wild(seed, 9, workspace=seed % 2 == 0, recompute_false=0.2 * (seed % 4 == 0))
    low, high = peak_bound(graph).bytes, no_remat_peak(graph)
    for budget in (high, (low + high) // 2, low):
        walk = _Walk(graph, budget, 1, False)
        walk.run(Control())
        assert walk.items == Naive(graph, budget).run()
        if len(walk.items) > len(graph.nodes):
            yield "recomputed"


# TWRemat with a recursion limit


class Literal:
    """Algorithm 1 on a tree of bags, with the recursion limit of section 4.3.

    Only what the nodes of a part need is computed, and ties go by number.
    """

    def __init__(self, graph: Graph, tree: Bags, k: int) -> None:
        self.tree, self.k = tree, k
        self.before = [{graph.producer[v] for v in node.inputs} for node in graph.nodes]
        self.schedule: list[int] = []
        ends = {i for i in range(len(graph.nodes)) if not any(graph.readers[v] for v in graph.values_of(i))}
        ends |= {graph.producer[v] for v in graph.outputs}
        self.remat(set(range(len(tree.bags))), set(), set(), ends)

    def needed(self, inside: set[int], wanted: set[int]) -> set[int]:
        more = wanted | {i for j in wanted for i in self.before[j] if i in inside}
        return wanted if more == wanted else self.needed(inside, more)

    def components(self, bag: int, gone: set[int]) -> list[set[int]]:
        """The trees of bags around a bag without it."""
        found = []
        for start in sorted(set(self.tree.around[bag]) - gone, key=lambda b: sorted(self.tree.bags[b])):
            reached, todo = {start}, [start]
            while todo:
                more = set(self.tree.around[todo.pop()]) - gone - reached - {bag}
                reached |= more
                todo += more
            found.append(reached)
        return found

    def remat(self, bags: set[int], gone: set[int], above: set[int], asked: set[int]) -> None:
        tree = self.tree
        wanted = self.needed(set().union(*(tree.bags[bag] for bag in bags)) - above, asked)
        if len(bags) < self.k:
            self.schedule.extend(sorted(wanted))
            return

        def heaviest(bag: int) -> tuple[int, list[int]]:
            return max(map(len, self.components(bag, gone)), default=0), sorted(tree.bags[bag])

        star = min(bags, key=heaviest)
        covered, without = above | tree.bags[star], gone | {star}
        nodes = [set().union(*(tree.bags[bag] for bag in part)) - covered for part in self.components(star, gone)]
        parts = list(zip(self.components(star, gone), nodes, strict=True))
        for node in sorted(wanted & tree.bags[star] - above):
            for part, inside in parts:
                if inputs := self.before[node] & inside:
                    self.remat(part, without, covered, inputs)
            self.schedule.append(node)
        for part, inside in parts:
            if asked & inside:
                self.remat(part, without, covered, asked & inside)


@seeded(range(30), between=60)
def test_the_recursion_limit_is_that_of_section_4_3(seed: int) -> Iterator[str]:
    graph = wild(seed, 16)
    tree = merged(min_fill(skeleton(graph), Control()))
    root, _ = tree_separators(graph)
    assert root.bags == len(tree.bags) <= len(graph.nodes)
    lengths = []
    for k in range(1, len(graph.nodes) + 2):
        found = recursive_schedule(graph, root, root.depth, LONG, k)
        assert found == Literal(graph, tree, k).schedule
        lengths.append(len(found))
        if len(graph.nodes) < len(found) < lengths[0]:
            yield "between"
    assert lengths[-1] == len(graph.nodes)


@seeded(range(30), merged=3)
def test_merging_leaves_a_decomposition_without_bags_inside_their_neighbours(seed: int) -> Iterator[str]:
    around = skeleton(wild(seed, 20))
    plain = min_fill([set(others) for others in around], Control())
    tree = merged(plain)
    assert tree.width == plain.width
    for node, others in enumerate(around):
        assert all(any({node, other} <= bag for bag in tree.bags) for other in others)
        holding = {k for k, bag in enumerate(tree.bags) if node in bag}
        reached, todo = set(), [min(holding)]
        while todo:
            reached.add(bag := todo.pop())
            todo.extend(other for other in tree.around[bag] if other in holding - reached)
        assert reached == holding
    for bag, neighbours in zip(tree.bags, tree.around, strict=True):
        assert not any(bag <= tree.bags[other] for other in neighbours)
    assert sum(map(len, tree.around)) == 2 * (len(tree.bags) - 1)
    if len(tree.bags) < len(plain.bags):
        yield "merged"


@pytest.mark.parametrize("strategy", ["twremat", "pwremat"])
def test_bags_are_an_option(strategy: str) -> None:
    graph = build_graph("mobilenet-v1")
    found = solve(graph, "60%", SolveOptions(strategy=f"{strategy}{{bags=8}}"))
    assert found.plan.strategy == f"{strategy}{{bags=8}}"
    assert found.report.overhead > 0
    with pytest.raises(RematError, match="no plan"):
        solve(graph, "60%", SolveOptions(strategy=f"{strategy}{{bags=1000}}"))
    for options in ("bags=0", "bags=2,levels=3"):
        with pytest.raises(UsageError):
            strategy_from_spec(f"{strategy}{{{options}}}")


@pytest.mark.parametrize("strategy", ["twremat", "pwremat", "xla-greedy{block=1}", "checkmate-ilp", "optimal"])
def test_figure_1_takes_three_values_with_a_computed_twice(strategy: str) -> None:
    edges = {"A": (), "B": (0,), "C": (1,), "D": (1, 2), "E": (0, 3)}
    graph = Graph("figure 1", tuple(Node(name, 1.0, reads, (1,)) for name, reads in edges.items()), (4,))
    assert no_remat_peak(graph) == published("treewidth", "A B C D E", "peak (values)") == 4
    solved = solve(graph, 3, SolveOptions(strategy=strategy))
    assert solved.report.replay.peak_bytes == published("treewidth", "A B C D A E", "peak (values)") == 3
    assert solved.plan.claim.cost == 6
