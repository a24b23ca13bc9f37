"""Graphs taken apart by small separators: tree and path decompositions, and schedules that follow from them.

Source: Kumar, Purohit, Svitkina, Vee, Wang, "Efficient Rematerialization for Deep Networks", NeurIPS 2019. A
decomposition is of the undirected skeleton of the graph: nodes, and an edge between the maker and every reader of a
value. It knows neither costs nor sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from remat_cli.graph.model import Graph

_STARTS = 8


@dataclass(frozen=True, slots=True)
class Separator:
    """Nodes that keep the parts below apart from each other and, with the separators above, from all else.

    Attributes:
        bag: These nodes, ascending; none of them is in a separator above.
        below: The parts.
        nodes: All nodes here and below.
        depth: Separators on the longest way down, this one included.
    """

    bag: tuple[int, ...]
    below: tuple[Separator, ...]
    nodes: frozenset[int]
    depth: int

    @classmethod
    def over(cls, bag: Iterable[int], below: Iterable[Separator]) -> Separator:
        """A separator over parts; empty ones, also this one, are left out where that is possible."""
        own = tuple(sorted(bag))
        parts = tuple(part for part in below if part.nodes)
        if not own and len(parts) == 1:
            return parts[0]
        nodes = frozenset(own).union(*(part.nodes for part in parts))
        return cls(own, parts, nodes, 1 + max((part.depth for part in parts), default=0))


def skeleton(graph: Graph) -> list[set[int]]:
    """The neighbours of every node in the undirected skeleton."""
    around: list[set[int]] = [set() for _ in graph.nodes]
    for v, readers in enumerate(graph.readers):
        for j in readers:
            around[graph.producer[v]].add(j)
            around[j].add(graph.producer[v])
    return around


def tree_separators(graph: Graph) -> tuple[Separator, int]:
    """Balanced separators from a min-fill tree decomposition, and its width.

    The tree of bags is rooted at its centroid, and so is every branch that is left: the depth is at most one more than
    the logarithm of the number of bags.
    """
    import networkx as nx  # 0.2 s, and most strategies do without
    from networkx.algorithms.approximation import treewidth_min_fill_in

    network = nx.Graph()
    network.add_nodes_from(range(len(graph.nodes)))
    network.add_edges_from((i, j) for i, others in enumerate(skeleton(graph)) for j in sorted(others))
    if not graph.nodes:
        return Separator((), (), frozenset(), 0), 0
    width, tree = treewidth_min_fill_in(network)
    return _rooted(tree, frozenset(tree), frozenset()), int(width)


def _rooted(tree: Any, bags: frozenset[Any], above: frozenset[int]) -> Separator:
    """The separators of a connected part of the tree of bags, without the nodes ``above``."""
    root = _centroid(tree, bags)
    covered = above | root
    below, left = [], set(bags - {root})
    for start in sorted((bag for bag in tree[root] if bag in bags), key=sorted):
        branch = _branch(tree, start, left)
        left -= branch
        below.append(_rooted(tree, frozenset(branch), covered))
    return Separator.over(root - above, below)


def _branch(tree: Any, start: Any, allowed: Iterable[Any]) -> set[Any]:
    inside, found, todo = set(allowed), {start}, [start]
    while todo:
        for bag in tree[todo.pop()]:
            if bag in inside and bag not in found:
                found.add(bag)
                todo.append(bag)
    return found


def _centroid(tree: Any, bags: frozenset[Any]) -> Any:
    """The bag without which the largest branch is smallest; of equals the one with the smallest nodes."""
    start = min(bags, key=sorted)
    order = [start]
    parent: dict[Any, Any] = {start: None}
    for bag in order:
        for other in tree[bag]:
            if other in bags and other not in parent:
                parent[other] = bag
                order.append(other)
    weight = dict.fromkeys(order, 1)
    heaviest = dict.fromkeys(order, 0)
    for bag in reversed(order):
        heaviest[bag] = max(heaviest[bag], len(order) - weight[bag])
        up = parent[bag]
        if up is not None:
            weight[up] += weight[bag]
            heaviest[up] = max(heaviest[up], weight[bag])
    return min(order, key=lambda bag: (heaviest[bag], sorted(bag)))


def path_separators(graph: Graph) -> tuple[Separator, int]:
    """Balanced separators from a path decomposition, and its width: the middle bag, then the middle of either side."""
    bags = _path(skeleton(graph))
    width = max((len(bag) for bag in bags), default=1) - 1

    def halved(low: int, high: int, above: frozenset[int]) -> Separator:
        if low == high:
            return Separator((), (), frozenset(), 0)
        middle = (low + high) // 2
        covered = above | bags[middle]
        sides = (halved(low, middle, covered), halved(middle + 1, high, covered))
        return Separator.over(bags[middle] - above, sides)

    return halved(0, len(bags), frozenset()), width


def _path(around: Sequence[set[int]]) -> list[frozenset[int]]:
    """Bags of a path decomposition: the narrowest of some greedy ones.

    Each puts the nodes in a row, next always the one that leaves the fewest placed nodes with neighbours not yet placed
    (vertex separation, which equals pathwidth for the best row). They differ in where they begin.
    """
    n = len(around)
    thin = sorted(range(n), key=lambda i: (len(around[i]), i))[: _STARTS - 2]
    best: list[frozenset[int]] = []
    for start in dict.fromkeys((0, n - 1, *thin)) if n else ():
        row = _row(around, start)
        bags = [bag for bag, following in zip(row, [*row[1:], frozenset[int]()], strict=True) if not bag <= following]
        if not best or max(map(len, bags)) < max(map(len, best)):
            best = bags
    return best


def _row(around: Sequence[set[int]], start: int) -> list[frozenset[int]]:
    """The bags of the greedy row that begins with ``start``."""
    missing = [len(others) for others in around]
    placed: set[int] = set()
    edge: set[int] = set()
    bags = []
    unplaced = dict.fromkeys(range(len(around)))
    node = start
    while True:
        bags.append(frozenset({*edge, node}))
        placed.add(node)
        del unplaced[node]
        for other in around[node]:
            missing[other] -= 1
            if other in edge and not missing[other]:
                edge.remove(other)
        if missing[node]:
            edge.add(node)
        if not unplaced:
            return bags
        near = {other for i in edge for other in around[i] if other not in placed}
        node = min(near, key=lambda i: (_growth(around, edge, missing, i), i)) if near else next(iter(unplaced))


def _growth(around: Sequence[set[int]], edge: set[int], missing: Sequence[int], node: int) -> int:
    """By how much placing ``node`` would change the number of placed nodes with neighbours not yet placed."""
    return (missing[node] > 0) - sum(1 for other in around[node] if other in edge and missing[other] == 1)


def recursive_schedule(graph: Graph, root: Separator, limit: int, longest: int) -> list[int] | None:
    """The schedule that computes the graph separator by separator (the paper's Algorithm 1).

    To have some nodes of a part, compute what they need of its separator in order, each with what it reads from the
    parts below, made by recursion and dropped at once; then have the rest from below. The separators on the way stay
    meanwhile: memory holds a bag and one node's inputs per level, and everything else is made again and again.

    Args:
        graph: The graph.
        root: Its separators.
        limit: Levels of recursion. What is below is computed straightforwardly, all of it kept meanwhile.
        longest: Give up beyond so many computes, and return None.

    Returns:
        Nodes in the order in which they run, every node at least once; not in document order.
    """
    before = [sorted({graph.producer[v] for v in node.inputs}) for node in graph.nodes]
    computes: list[int] = []

    def have(part: Separator, wanted: frozenset[int], levels: int) -> None:
        needed = _needed(before, wanted, part.nodes)
        straight = levels == 0 or not part.below
        for node in sorted(needed) if straight else part.bag:
            if node not in needed:
                continue
            if not straight:
                for child in part.below:
                    inputs = child.nodes.intersection(before[node])
                    if inputs:
                        have(child, inputs, levels - 1)
            computes.append(node)
            if len(computes) > longest:
                raise _TooLong
        if not straight:
            for child in part.below:
                if rest := child.nodes & wanted:
                    have(child, rest, levels - 1)

    ends = frozenset(i for i in range(len(graph.nodes)) if not any(graph.readers[v] for v in graph.values_of(i)))
    try:
        have(root, ends | {graph.producer[v] for v in graph.outputs}, limit)
    except _TooLong:
        return None
    return computes


class _TooLong(Exception):
    """A schedule has grown beyond use."""


def _needed(before: Sequence[Sequence[int]], wanted: Iterable[int], inside: frozenset[int]) -> set[int]:
    """``wanted`` and all that it is made from within a part; what lies outside is there."""
    found = set(wanted)
    todo = list(found)
    while todo:
        for i in before[todo.pop()]:
            if i in inside and i not in found:
                found.add(i)
                todo.append(i)
    return found
