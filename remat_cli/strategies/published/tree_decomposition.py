"""Tree decompositions by the min-fill heuristic: eliminate next the node whose neighbours lack the fewest edges.

The order is that of the textbook rule, with incremental updates: eliminating a node changes the number of missing edges
of its neighbours and, for every edge that it adds, of the common neighbours of both ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import combinations

from remat_cli.control import Control

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
