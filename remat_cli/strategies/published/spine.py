"""Schedules by a path decomposition in which a spine runs through all nodes.

Source: Kumar et al., "Efficient Rematerialization for Deep Networks", NeurIPS 2019, section 5, which sketches the idea.
What follows is derived from the sketch:

- The spine runs always the ready node whose leftmost bag is the smallest. Each cut of the path is crossed to the left
  only by a node of its own bag, so stretching the nodes until neighbours on the spine share a bag adds about k + 1
  nodes to a bag: the factor 2 of the paper.
- A *part* is a run of nodes on the spine, its *hull* all bags from its leftmost to its rightmost. Parts are halved.
  While one is made, the nodes that it needs from the two outer bags of its hull stay. Every bag of the hull holds a
  node of the part itself, so the other nodes there have a decomposition that is narrower by one.
- These are made when a node of the part reads them, by the same recursion, on a decomposition that is shorter and
  narrower. With a width of k, length grows by at most a power of log n that depends on k, and so does memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise

from remat_cli.control import Control
from remat_cli.graph.model import Graph
from remat_cli.strategies.published.separators import LOOK_EVERY, ends, path_bags

_DEEPEST = 250
"""Levels of recursion: three calls each, within the thousand that Python allows. The paper's Transformer takes 33."""


@dataclass(frozen=True, slots=True)
class Spine:
    """Nodes in the order of a spine, and where they are on the path of bags.

    Attributes:
        order: All nodes in a topological order; neighbours share a bag.
        place: For every node its place in ``order``.
        first: For every node its leftmost bag.
        last: For every node its rightmost bag.
        width: Nodes in the largest bag, less one.
        bare_width: The same without the spine.
    """

    order: tuple[int, ...]
    place: tuple[int, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]
    width: int
    bare_width: int

    @classmethod
    def both(cls, graph: Graph, control: Control) -> tuple[Spine, Spine]:
        """The spines along the narrowest path decomposition found, in both directions.

        Raises:
            LimitReached, Interrupted: If it has to stop before there is a decomposition.
        """
        bags = path_bags(graph, control)
        return cls.along(graph, bags), cls.along(graph, bags[::-1])

    @classmethod
    def along(cls, graph: Graph, bags: Sequence[frozenset[int]]) -> Spine:
        """The spine from the left to the right end of a path decomposition."""
        n = len(graph.nodes)
        first, last = [0] * n, [0] * n
        for at in range(len(bags) - 1, -1, -1):
            for node in bags[at]:
                first[node] = at
        for at, bag in enumerate(bags):
            for node in bag:
                last[node] = at
        bare = _width(first, last)
        order = _leftmost_first(graph, first)
        for one, other in pairwise(order):
            if last[one] < first[other]:
                last[one] = first[other]
            elif last[other] < first[one]:
                first[one] = last[other]
        place = [0] * n
        for at, node in enumerate(order):
            place[node] = at
        return cls(tuple(order), tuple(place), tuple(first), tuple(last), _width(first, last), bare)


def _width(first: Sequence[int], last: Sequence[int]) -> int:
    """Nodes in the largest bag, less one."""
    change = [0] * (max(last, default=0) + 2)
    for begin, end in zip(first, last, strict=True):
        change[begin] += 1
        change[end + 1] -= 1
    most = now = 0
    for step in change:
        now += step
        most = max(most, now)
    return most - 1


def _leftmost_first(graph: Graph, first: Sequence[int]) -> list[int]:
    """The topological order that takes always the ready node whose leftmost bag is the smallest."""
    missing = [len(makers) for makers in _makers(graph)]
    readers: list[list[int]] = [[] for _ in graph.nodes]
    for node, makers in enumerate(_makers(graph)):
        for maker in makers:
            readers[maker].append(node)
    ready = [(first[node], node) for node, count in enumerate(missing) if not count]
    heapify(ready)
    order = []
    while ready:
        node = heappop(ready)[1]
        order.append(node)
        for reader in readers[node]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, (first[reader], reader))
    return order


def _makers(graph: Graph) -> list[list[int]]:
    """For every node those whose values it reads."""
    return [sorted({graph.producer[v] for v in node.inputs}) for node in graph.nodes]


def spine_schedule(
    graph: Graph, spines: Iterable[Spine], limit: int, longest: int, control: Control, fewest_bags: int = 1
) -> list[int] | None:
    """The schedule that halves a spine, and makes what a part needs from within its hull again by recursion.

    Args:
        graph: The graph.
        spines: Its spines; the shortest schedule of all is returned.
        limit: So often is a part halved; then its nodes are computed in order and kept meanwhile.
        longest: Most computes; None is returned beyond.
        control: The clock.
        fewest_bags: Parts whose hull has fewer bags are computed in order too.

    Returns:
        Nodes in the order in which they run, every node at least once; not in document order.

    Raises:
        LimitReached, Interrupted: If it has to stop.
    """
    shortest: list[int] | None = None
    for spine in spines:
        maker = _Maker(_makers(graph), spine, longest, fewest_bags, control, [0] * len(graph.nodes), [])
        try:
            maker.provide(ends(graph), limit, 0)
        except _TooLong:
            continue
        if shortest is None or len(maker.computes) < len(shortest):
            shortest = maker.computes
    return shortest


class _TooLong(Exception):
    """A schedule has become too long, or the recursion too deep."""


@dataclass(slots=True)
class _Maker:
    """Makes a schedule.

    Attributes:
        before: For every node those whose values it reads.
        spine: The spine.
        longest: Most computes.
        fewest_bags: Parts with fewer bags are computed in order.
        control: The clock.
        holds: How many reasons each node has to stay resident; none if it is not.
        computes: The schedule so far.
    """

    before: list[list[int]]
    spine: Spine
    longest: int
    fewest_bags: int
    control: Control
    holds: list[int]
    computes: list[int]

    def provide(self, wanted: Iterable[int], levels: int, depth: int) -> None:
        """Make nodes resident, each with one more hold: part by part, split where no hull reaches."""
        if depth > _DEEPEST:
            raise _TooLong
        targets = frozenset(wanted)
        parts: list[list[int]] = []
        reach = -1
        low = 0
        for node in sorted(self._missing(targets), key=self.spine.place.__getitem__):
            begin, end = self.spine.first[node], self.spine.last[node]
            if parts and begin <= reach and end >= low:
                parts[-1].append(node)
                low, reach = min(low, begin), max(reach, end)
            else:
                parts.append([node])
                low, reach = begin, end
        borders = [self._border(part) for part in parts]
        for at, part in enumerate(parts):
            inside = frozenset(part)
            later = [border & inside for border in borders[at + 1 :]]
            kept = (targets & inside).union(*later)
            self._make(part, kept, levels, depth + 1)
            for border in later:
                self._hold(border)
            self._release(kept - targets)
            self._release(borders[at])

    def _make(self, part: Sequence[int], kept: frozenset[int], levels: int, depth: int) -> None:
        """Compute a part, whose border is resident; then ``kept`` of it have one more hold each."""
        low, high = self._hull(part)
        if levels == 0 or high - low + 1 < self.fewest_bags:
            self._straight(part, kept)
        elif len(part) == 1:
            node = part[0]
            inputs = [i for i in self.before[node] if not self.holds[i]]
            if inputs:
                self.provide(inputs, levels, depth)
            self._compute(node)
            self._release(inputs)
            self._hold(kept)
        else:
            half = len(part) // 2
            one, other = part[:half], part[half:]
            inside = frozenset(one)
            across = self._border(other) & inside
            self._make_within(one, (kept & inside) | across, levels - 1, depth)
            self._hold(kept & across)
            self._make_within(other, kept - inside, levels - 1, depth)
            self._release(across)

    def _make_within(self, part: Sequence[int], kept: frozenset[int], levels: int, depth: int) -> None:
        """The same for a half: what is missing on its border lies within the hull of the whole."""
        border = self._border(part)
        if border:
            self.provide(border, levels, depth)
        self._make(part, kept, levels, depth + 1)
        self._release(border)

    def _straight(self, part: Sequence[int], kept: frozenset[int]) -> None:
        """Compute a part and all that it needs in order, and keep all of it meanwhile."""
        needed = sorted(self._missing(part), key=self.spine.place.__getitem__)
        for node in needed:
            self._compute(node)
        self._hold(kept)

    def _compute(self, node: int) -> None:
        self.computes.append(node)
        if len(self.computes) > self.longest:
            raise _TooLong
        if len(self.computes) % LOOK_EVERY == 0:
            self.control.check()

    def _hold(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            self.holds[node] += 1

    def _release(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            self.holds[node] -= 1

    def _hull(self, part: Sequence[int]) -> tuple[int, int]:
        """The outer bags of a part."""
        return min(self.spine.first[i] for i in part), max(self.spine.last[i] for i in part)

    def _missing(self, wanted: Iterable[int]) -> set[int]:
        """``wanted``, and what is not resident of all that they need."""
        found = set(wanted)
        todo = list(found)
        while todo:
            for i in self.before[todo.pop()]:
                if not self.holds[i] and i not in found:
                    found.add(i)
                    todo.append(i)
        return found

    def _border(self, part: Sequence[int]) -> frozenset[int]:
        """Nodes of the outer bags that a part needs, and that are neither in it nor resident."""
        low, high = self._hull(part)
        seen = set(part)
        border = []
        todo = list(part)
        while todo:
            for i in self.before[todo.pop()]:
                if i in seen or self.holds[i]:
                    continue
                seen.add(i)
                begin, end = self.spine.first[i], self.spine.last[i]
                if begin <= low <= end or begin <= high <= end:
                    border.append(i)
                else:
                    todo.append(i)
        return frozenset(border)
