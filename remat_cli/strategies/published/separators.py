"""Graphs split by small separators: tree and path decompositions, and the schedules that follow from them.

Source: Kumar, Purohit, Svitkina, Vee, Wang, "Efficient Rematerialization for Deep Networks", NeurIPS 2019. A
decomposition is of the undirected skeleton of the graph: nodes, and an edge between the maker and every reader of a
value. It knows neither costs nor sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from remat_cli.control import Control
from remat_cli.graph.model import Graph
from remat_cli.strategies.published.tree_decomposition import Bags, merged, min_fill

_STARTS = 8
LOOK_EVERY = 256
"""Nodes placed, or computes added, between two checks of the clock."""


@dataclass(frozen=True, slots=True)
class Separator:
    """Nodes that separate the parts below from each other and, with the separators above, from all other nodes.

    Attributes:
        bag: These nodes, ascending; none of them is in a separator above.
        below: The parts.
        nodes: All nodes here and below.
        depth: Separators on the longest path down, this one included.
        bags: Bags of the decomposition of the part, this one included.
    """

    bag: tuple[int, ...]
    below: tuple[Separator, ...]
    nodes: frozenset[int]
    depth: int
    bags: int

    @classmethod
    def over(cls, bag: Iterable[int], below: Iterable[Separator], bags: int) -> Separator:
        """A separator over parts; empty ones, also this one, are left out where that is possible.

        Args:
            bag: The nodes of this one.
            below: The parts.
            bags: Bags of the decomposition here and below, empty ones included.
        """
        own = tuple(sorted(bag))
        parts = tuple(part for part in below if part.nodes)
        if not own and len(parts) == 1:
            return parts[0]
        nodes = frozenset(own).union(*(part.nodes for part in parts))
        return cls(own, parts, nodes, 1 + max((part.depth for part in parts), default=0), bags)


def skeleton(graph: Graph) -> list[set[int]]:
    """The neighbours of every node in the undirected skeleton."""
    around: list[set[int]] = [set() for _ in graph.nodes]
    for v, readers in enumerate(graph.readers):
        for j in readers:
            around[graph.producer[v]].add(j)
            around[j].add(graph.producer[v])
    return around


def tree_separators(graph: Graph, control: Control | None = None) -> tuple[Separator, int]:
    """Balanced separators from a min-fill tree decomposition, and its width.

    The tree of bags is rooted at its centroid, and so is every remaining branch: the depth is at most the logarithm of
    the number of bags, plus one.

    Args:
        graph: The graph.
        control: The clock; None for no limit.

    Raises:
        LimitReached, Interrupted: If it has to stop.
    """
    if not graph.nodes:
        return Separator((), (), frozenset(), 0, 0), 0
    tree = merged(min_fill(skeleton(graph), control or Control()))
    return _rooted(tree, 0, [False] * len(tree.bags), frozenset()), tree.width


def _rooted(tree: Bags, start: int, used: list[bool], above: frozenset[int]) -> Separator:
    """The separators of a connected part of the tree of bags, without the nodes ``above``.

    Args:
        tree: The bags.
        start: A bag of the part.
        used: Bags that are separators above; those of the part are added.
        above: The nodes in them.
    """
    count = len(_walked(tree, start, used)[0])
    root = _centroid(tree, start, used)
    used[root] = True
    covered = above | tree.bags[root]
    starts = sorted((bag for bag in tree.around[root] if not used[bag]), key=lambda bag: sorted(tree.bags[bag]))
    below = [_rooted(tree, bag, used, covered) for bag in starts]
    return Separator.over(tree.bags[root] - above, below, count)


def _walked(tree: Bags, start: int, used: Sequence[bool]) -> tuple[list[int], dict[int, int]]:
    """The bags connected to ``start``, in the order of a search, and the predecessor of each."""
    order = [start]
    parent = {start: -1}
    for bag in order:
        for other in tree.around[bag]:
            if not used[other] and other not in parent:
                parent[other] = bag
                order.append(other)
    return order, parent


def _centroid(tree: Bags, start: int, used: Sequence[bool]) -> int:
    """The centroid: the bag without which the largest branch is smallest; on a tie the one with the smallest nodes."""
    order, parent = _walked(tree, start, used)
    weight = dict.fromkeys(order, 1)
    heaviest = dict.fromkeys(order, 0)
    for bag in reversed(order):
        heaviest[bag] = max(heaviest[bag], len(order) - weight[bag])
        up = parent[bag]
        if up >= 0:
            weight[up] += weight[bag]
            heaviest[up] = max(heaviest[up], weight[bag])
    least = min(heaviest.values())
    return min((bag for bag in order if heaviest[bag] == least), key=lambda bag: sorted(tree.bags[bag]))


def path_separators(graph: Graph, control: Control | None = None) -> tuple[Separator, int]:
    """Balanced separators from a path decomposition, and its width: the middle bag, then the middle of both sides.

    Args:
        graph: The graph.
        control: The clock; None for no limit.

    Raises:
        LimitReached, Interrupted: If it has to stop before there is a decomposition.
    """
    bags = path_bags(graph, control or Control())
    width = max((len(bag) for bag in bags), default=1) - 1

    def halved(low: int, high: int, above: frozenset[int]) -> Separator:
        if low == high:
            return Separator((), (), frozenset(), 0, 0)
        middle = (low + high) // 2
        covered = above | bags[middle]
        sides = (halved(low, middle, covered), halved(middle + 1, high, covered))
        return Separator.over(bags[middle] - above, sides, high - low)

    return halved(0, len(bags), frozenset()), width


def path_bags(graph: Graph, control: Control) -> list[frozenset[int]]:
    """Bags of a path decomposition of the skeleton: the narrowest of several greedy ones.

    Each is a linear layout of the nodes. The next node is always the one after which the fewest placed nodes have
    neighbours not yet placed (vertex separation, which equals pathwidth for the best layout). They differ in the first
    node.

    Raises:
        LimitReached, Interrupted: If it has to stop before there is a decomposition.
    """
    around = skeleton(graph)
    n = len(around)
    thin = sorted(range(n), key=lambda i: (len(around[i]), i))[: _STARTS - 2]
    best: list[frozenset[int]] = []
    widest = n + 1
    for start in dict.fromkeys((0, n - 1, *thin)) if n else ():
        if best and control.stopping():
            break
        row = _row(around, start, widest, control)
        if row is not None:
            best = [
                bag for bag, following in zip(row, [*row[1:], frozenset[int]()], strict=True) if not bag <= following
            ]
            widest = max(map(len, best))
    return best


def _row(around: Sequence[set[int]], start: int, widest: int, control: Control) -> list[frozenset[int]] | None:
    """The bags of the greedy layout that begins with ``start``; None as soon as one has ``widest`` nodes or more."""
    missing = [len(others) for others in around]
    placed = [False] * len(around)
    edge: set[int] = set()
    bags: list[frozenset[int]] = []
    unplaced = iter(range(len(around)))
    node = start
    while True:
        if len(bags) % LOOK_EVERY == 0:
            control.check()
        bags.append(frozenset({*edge, node}))
        if len(bags[-1]) >= widest:
            return None
        placed[node] = True
        for other in around[node]:
            missing[other] -= 1
            if other in edge and not missing[other]:
                edge.remove(other)
        if missing[node]:
            edge.add(node)
        if len(bags) == len(around):
            return bags
        near = {other for i in edge for other in around[i] if not placed[other]}
        if near:
            node = min(near, key=lambda i: (_growth(around, edge, missing, i), i))
        else:
            node = next(i for i in unplaced if not placed[i])


def _growth(around: Sequence[set[int]], edge: set[int], missing: Sequence[int], node: int) -> int:
    """The change in the number of placed nodes with neighbours not yet placed if ``node`` is placed."""
    return (missing[node] > 0) - sum(1 for other in around[node] if other in edge and missing[other] == 1)


def recursive_schedule(
    graph: Graph, root: Separator, limit: int, longest: int, fewest_bags: int = 1
) -> list[int] | None:
    """The schedule that computes the graph separator by separator (the paper's Algorithm 1).

    To provide nodes of a part, compute the nodes of its separator that they need, in order. The inputs of each from the
    parts below are made by recursion and freed at once. Then provide the other nodes from the parts below. The
    separators above stay meanwhile: memory holds a bag and one node's inputs per level, and all else is recomputed
    whenever it is read. Nodes of a separator that are not needed are left out; the paper says nothing on that.

    Args:
        graph: The graph.
        root: Its separators.
        limit: Levels of recursion. Parts below are computed in document order and kept meanwhile.
        longest: Most computes; None is returned beyond.
        fewest_bags: Parts with fewer bags are computed in document order too: TWRemat(k) of the paper's section 4.3.

    Returns:
        Nodes in the order in which they run, every node at least once; not in document order.
    """
    before = [sorted({graph.producer[v] for v in node.inputs}) for node in graph.nodes]
    computes: list[int] = []

    def have(part: Separator, wanted: frozenset[int], levels: int) -> None:
        needed = _needed(before, wanted, part.nodes)
        straight = levels == 0 or not part.below or part.bags < fewest_bags
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

    try:
        have(root, ends(graph), limit)
    except _TooLong:
        return None
    return computes


def ends(graph: Graph) -> frozenset[int]:
    """The nodes that a schedule has to provide: those of the outputs, and those that no node reads."""
    unread = (i for i in range(len(graph.nodes)) if not any(graph.readers[v] for v in graph.values_of(i)))
    return frozenset(unread) | {graph.producer[v] for v in graph.outputs}


class _TooLong(Exception):
    """A schedule has become too long."""


def _needed(before: Sequence[Sequence[int]], wanted: Iterable[int], inside: frozenset[int]) -> set[int]:
    """``wanted`` and its ancestors within a part; nodes outside are resident."""
    found = set(wanted)
    todo = list(found)
    while todo:
        for i in before[todo.pop()]:
            if i in inside and i not in found:
                found.add(i)
                todo.append(i)
    return found
