"""Graphs split by small separators: tree and path decompositions, and the schedules that follow from them.

Source: Kumar, Purohit, Svitkina, Vee, Wang, "Efficient Rematerialization for Deep Networks", NeurIPS 2019. A
decomposition is of the undirected skeleton of the graph: nodes, and an edge between the maker and every reader of a
value. It knows neither costs nor sizes. Tree decompositions are found by the min-fill heuristic: eliminate next the
node whose neighbours lack the fewest edges. The order is that of the textbook rule, with incremental updates:
eliminating a node changes the number of missing edges of its neighbours and, for every edge that it adds, of the common
neighbours of both ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import combinations

from remat_cli.control import Control
from remat_cli.graph.model import Graph

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


_LOOK_EVERY = 64
"""Eliminations between two checks of the clock."""


@dataclass(frozen=True, slots=True)
class Bags:
    """A tree of bags: every node and every edge is in a bag, and the bags that contain a node are connected.

    Attributes:
        bags: The bags. The first holds the nodes that were left when they formed a clique.
        around: For every bag its neighbours in the tree.
    """

    bags: tuple[frozenset[int], ...]
    around: tuple[tuple[int, ...], ...]

    @property
    def width(self) -> int:
        """Nodes in the largest bag, less one."""
        return max(map(len, self.bags)) - 1


def min_fill(around: Sequence[set[int]], control: Control) -> Bags:
    """The decomposition of an undirected graph that min-fill finds; ties go by degree, then by number.

    Args:
        around: The neighbours of every node.
        control: The clock.

    Raises:
        LimitReached, Interrupted: If it has to stop.
    """
    steps = _eliminate([set(others) for others in around], control)
    rest = frozenset(range(len(around))).difference(node for node, _ in steps)
    place = {node: at for at, (node, _) in enumerate(steps)}
    count = len(steps)
    bags = [rest]
    tree: list[list[int]] = [[] for _ in range(count + 1)]
    for at in range(count - 1, -1, -1):  # the bag of step ``at`` gets the number count - at
        node, neighbours = steps[at]
        first = min((place[other] for other in neighbours if other in place), default=count)
        number, parent = count - at, count - first  # all neighbours are in the bag of the first to be eliminated
        bags.append(neighbours | {node})
        tree[number].append(parent)
        tree[parent].append(number)
    return Bags(tuple(bags), tuple(map(tuple, tree)))


def merged(tree: Bags) -> Bags:
    """The same decomposition without a bag that is a subset of a neighbour (Kumar et al., lemma 1): at most n bags."""
    into = list(range(len(tree.bags)))

    def final(bag: int) -> int:
        while into[bag] != bag:
            into[bag] = into[into[bag]]
            bag = into[bag]
        return bag

    edges = [(a, b) for a, others in enumerate(tree.around) for b in others if a < b]
    for a, b in edges:
        first, second = final(a), final(b)
        if tree.bags[first] <= tree.bags[second]:
            into[first] = second
        elif tree.bags[second] <= tree.bags[first]:
            into[second] = first
    number = {bag: k for k, bag in enumerate(bag for bag in range(len(into)) if into[bag] == bag)}
    around: list[list[int]] = [[] for _ in number]
    for a, b in edges:
        first, second = number[final(a)], number[final(b)]
        if first != second:
            around[first].append(second)
            around[second].append(first)
    return Bags(tuple(tree.bags[bag] for bag in number), tuple(map(tuple, around)))


def _eliminate(around: list[set[int]], control: Control) -> list[tuple[int, frozenset[int]]]:
    """Nodes in elimination order, each with its neighbours then, until the rest is a clique; consumes the graph."""
    missing = [_missing(around, node) for node in range(len(around))]
    heap = [(missing[node], len(others), node) for node, others in enumerate(around)]
    heapify(heap)
    steps: list[tuple[int, frozenset[int]]] = []
    gone = [False] * len(around)
    while heap:
        fill, degree, node = heappop(heap)
        if gone[node] or (fill, degree) != (missing[node], len(around[node])):
            continue  # an entry from before it changed
        if fill == 0 and degree == len(around) - len(steps) - 1:
            break
        if len(steps) % _LOOK_EVERY == 0:
            control.check()
        gone[node] = True
        neighbours = around[node]
        steps.append((node, frozenset(neighbours)))
        for other in _join(around, missing, node):
            heappush(heap, (missing[other], len(around[other]), other))
    return steps


def _missing(around: Sequence[set[int]], node: int) -> int:
    """Edges that the neighbours of ``node`` lack among each other."""
    neighbours = around[node]
    return sum(len(neighbours) - 1 - len(neighbours & around[other]) for other in neighbours) // 2


def _join(around: Sequence[set[int]], missing: list[int], node: int) -> set[int]:
    """Remove ``node`` and connect its neighbours; the nodes whose number of missing edges may have changed."""
    neighbours = around[node]
    changed = set(neighbours)
    for a in neighbours:
        around[a].remove(node)
        missing[a] -= len(around[a]) - len(around[a] & neighbours)
    for a, b in combinations(sorted(neighbours), 2) if missing[node] else ():
        if b in around[a]:
            continue
        common = around[a] & around[b]
        for c in common:
            missing[c] -= 1
        changed |= common
        missing[a] += len(around[a]) - len(common)
        missing[b] += len(around[b]) - len(common)
        around[a].add(b)
        around[b].add(a)
    return changed
