"""The levels of a training step: what of its forward part must be computed together, and which nodes visit it.

A *spine* is a sequence z_1, ..., z_N of forward nodes each of which leads to the next. Level j holds z_j and the other
nodes between it and z_(j+1) that lead there; the values that *count* are those that nodes of the level read of each
other, and z_(j+1) of them. If none of them is in memory, z_(j+1) cannot be computed before all nodes of the level are.

The spine is made of dominators: nodes on every path to the last forward node. They are those of the whole graph, also
where reads are left out (see ``bound``): each must still lead to the next, and no more. A spine is *divided* where the
visit with the largest working set reads a value that is made within a level. What was made before that value is then a
level of its own: it must be kept beside that working set, or be computed again.

In the form ``APART``, z_j is a level of its own where z_(j+1) reads it over a skip connection: values of the rest of
the block, such as a narrow one of a bottleneck, spare cost, but do not stand for it (``docs/mathematics.md``, "Partial
values").
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise

import numpy as np

from remat_cli.graph.analysis import working_set
from remat_cli.graph.model import Graph, Node
from remat_cli.plan.liveness import cost_of
from remat_cli.strategies.chains.visits import dominators, forward_end, leading, longest_falling
from remat_cli.strategies.openers.clearing import Network, Question
from remat_cli.strategies.repeated.runs import group_ends, runs_of
from remat_cli.tolerances import SUM_ROUNDING

MOST_LEVELS, _FEWEST_LEVELS = 400, 2
"""The table grows with the square of the number of levels; one level alone has nothing to be recomputed from."""
NEVER = 2**62
"""Bytes of what no schedule keeps, or of a room without limit."""
_PASSED = 0.25
"""Least share of levels to be apart: of a long chain in groups of blocks hardly any is. Untuned."""
_REACH, _SPAN = 8, 2
"""Levels back to which gradients are made again, and visits until they are read, see ``_waiting``. With 2, 4, 6, 8 and
16 levels ResNet-299 has +30.8, 33.9, 37.2, 39.8 and 39.9% at 2 working sets (by hand). Where z is a level of its own, a
gradient that passes by a block waits during two visits."""
_PRICES = 24
"""Most lines of one level."""


@dataclass(frozen=True, slots=True)
class Spine:
    """Forward nodes each of which leads to the next.

    Attributes:
        nodes: z_1 .. z_N.
        level: For every forward node its level, from 1; 0 for none.
        passed: Levels that are the rest of the one before, see :meth:`apart`.
    """

    nodes: tuple[int, ...]
    level: tuple[int, ...]
    passed: frozenset[int] = frozenset()

    @classmethod
    def of(cls, graph: Graph, most: int = MOST_LEVELS) -> Spine:
        """The dominators of the forward part, see :meth:`coarser`; none if it has less than two nodes."""
        split = forward_end(graph)
        nodes, level = dominators(graph, split) if split > 1 else ([], [0] * split)
        return cls(tuple(nodes), tuple(level)).coarser(graph, most)

    def coarser(self, graph: Graph, most: int) -> Spine:
        """The spine with at most ``most`` levels: where there are more, the first of every few that repeat."""
        starts = _starts(graph, self, most)
        # A level holds z and all up to the next one: its number is how many of those chosen are not above it.
        return Spine(
            tuple(self.nodes[j] for j in starts), tuple(bisect.bisect_left(starts, number) for number in self.level)
        )

    def leads(self, graph: Graph) -> list[tuple[set[int], set[int]]]:
        """For every level the nodes that lead to the next z, and the values that count."""
        found = []
        for j, z in enumerate(self.nodes, start=1):
            if j < len(self.nodes) and j + 1 not in self.passed:
                found.append(leading(graph, self.level, j, self.nodes[j]))
            else:
                found.append(({z}, {v for v in graph.values_of(z) if graph.readers[v]}))
        return found

    def connected(self, graph: Graph) -> Spine:
        """The levels from the first one on in which each z leads to the next one in ``graph``."""
        last = max(
            (j for j, (nodes, _) in enumerate(self.leads(graph)[:-1], 1) if self.nodes[j - 1] not in nodes), default=0
        )
        return Spine(self.nodes[last:], tuple(max(0, number - last) for number in self.level))

    def divided(self, graph: Graph, visits: Sequence[Sequence[int]]) -> Spine:
        """The spine, divided where the largest visit to a level reads a value that is made on the way to the next z."""
        members = self.members()
        nodes: list[int] = []
        level = [0] * len(self.level)
        for j, (on_the_way, _) in enumerate(self.leads(graph), start=1):
            nodes.append(z := self.nodes[j - 1])
            for i in members[j]:
                level[i] = len(nodes)
            read = graph.nodes[_largest(graph, visits[j])].inputs if visits[j] else ()
            first = min((graph.producer[v] for v in read if graph.producer[v] in on_the_way), default=z)
            before, _ = leading(graph, self.level, j, first)
            if z in before:
                nodes.append(first)
                for i in members[j]:
                    level[i] += i not in before
        return Spine(tuple(nodes), tuple(level))

    def apart(self, graph: Graph) -> Spine:
        """The spine with z_j alone in its level, where the next z reads it, and the rest in a level after it.

        Such a rest is *passed*: whatever of it is in memory, the next z cannot be computed without z_j.
        """
        members = self.members()
        nodes: list[int] = []
        level = [0] * len(self.level)
        passed = set()
        for j, (on_the_way, _) in enumerate(self.leads(graph), start=1):
            nodes.append(z := self.nodes[j - 1])
            for i in members[j]:
                level[i] = len(nodes)
            rest = min(on_the_way - {z}, default=-1)
            if rest >= 0 and z in {graph.producer[v] for v in graph.nodes[self.nodes[j]].inputs}:
                nodes.append(rest)
                passed.add(len(nodes))
                for i in members[j]:
                    level[i] += i != z
        return Spine(tuple(nodes), tuple(level), frozenset(passed))

    def members(self) -> list[list[int]]:
        """The nodes of every level, from 0."""
        found: list[list[int]] = [[] for _ in range(len(self.nodes) + 1)]
        for i, number in enumerate(self.level):
            found[number].append(i)
        return found


def _after(graph: Graph, z: int, nodes: Iterable[int], values: Set[int]) -> set[int]:
    """Those of ``values``, made by ``nodes``, that cannot be made without ``z``, or without all that ``z`` reads."""
    made, read = set(graph.values_of(z)), set(graph.nodes[z].inputs)
    for i in sorted(nodes):
        inputs = graph.nodes[i].inputs
        if not made.isdisjoint(inputs) or (read and read.issubset(inputs)):
            made.update(v for v in graph.values_of(i) if v in values)
    return made & values


def _largest(graph: Graph, nodes: Sequence[int]) -> int:
    return max(nodes, key=lambda i: working_set(graph, i))


def _starts(graph: Graph, spine: Spine, most: int) -> Sequence[int]:
    """Which of its nodes begin a level, at most ``most``: the first of each group of a few repetitions, and the last.

    Evenly spread ones, if there are more groups than that.
    """
    count = len(spine.nodes)
    if count <= most:
        return range(count)
    shapes: list[list[object]] = [[] for _ in range(count + 1)]
    for i, number in enumerate(spine.level):
        shapes[number].append((graph.nodes[i].cost, graph.nodes[i].outputs))
    known: dict[tuple[object, ...], int] = {}
    runs = runs_of([known.setdefault(tuple(shape), len(known)) for shape in shapes[1:]])
    repetitions = 1
    while repetitions < count:
        starts = sorted({0, *(end + 1 for end in group_ends(runs, repetitions)), count - 1} - {count})
        if len(starts) <= most:
            return starts
        repetitions += max(1, repetitions // 8)  # an eighth at a time, so that a long spine takes no second
    return range(0, count, -(-count // most))


@dataclass(frozen=True, slots=True)
class Line:
    """At least ``cost`` - ``rate`` * h is spent if at most h bytes are kept."""

    cost: float
    rate: float


@dataclass(frozen=True, slots=True)
class Saving:
    """At most ``cost`` is spared by values of ``kept`` bytes; between two such, in proportion."""

    kept: float
    cost: float


@dataclass(frozen=True, slots=True)
class Level:
    """A level; the fields on which the bound depends.

    Attributes:
        cost: u.
        tail: The part of it that its own visits do not need.
        smallest: The fewest bytes of values by which it is present.
        working: The largest working set of its visits; -1 if it has none.
        lines: f, as lines.
        waiting: g, as lines.
        step: Bytes that divide the sizes of all values that are read.
        partial: How much of the cost is spared, at most, by how many bytes of partial values.
        restored: Cost, at most, of making the values again by which the level is present, if they take at most so many
            bytes; without partial values empty.
    """

    cost: float
    tail: float
    smallest: int
    working: int
    lines: tuple[Line, ...]
    waiting: tuple[Line, ...]
    step: int
    partial: tuple[Saving, ...] = ()
    restored: tuple[Saving, ...] = ()

    def restoring(self, price: float) -> float:
        """Cost, at most, of making the values again by which the level is present, less a price per byte.

        Only bytes beyond ``smallest`` have it, as the level is present by no less.
        """
        return max((0.0, *(one.cost - price * max(0.0, one.kept - self.smallest) for one in self.restored)))


class Form(Enum):
    """What is a level, and by what it is present."""

    PLAIN = "plain"
    """From one dominator to the next; any value will do."""
    DIVIDED = "divided"
    """As plain, but see :meth:`Spine.divided`."""
    APART = "apart"
    """See :meth:`Spine.apart`; what is in memory of the rest of a level spares cost, but does not make it present."""


def levels_of(graph: Graph, spine: Spine, form: Form = Form.PLAIN) -> tuple[Level, ...] | None:
    """The levels of a training step; None if it has too few, or no visits, or hardly a level would be apart.

    Args:
        graph: The graph, or one without some reads.
        spine: The spine of the whole graph.
        form: What is a level.
    """
    spine = spine.connected(graph)
    if len(spine.nodes) < _FEWEST_LEVELS:
        return None
    if form is Form.DIVIDED:
        spine = spine.divided(graph, _visits(graph, spine, spine.leads(graph)))
    elif form is Form.APART:
        whole, spine = spine, spine.apart(graph)
        if len(spine.passed) < _PASSED * len(whole.nodes):
            return None
    leads = spine.leads(graph)
    read = _visits(graph, spine, leads)
    lines = _Lines(graph)
    members = spine.members()
    waiting = _waiting(graph, len(spine.level), read, lines)
    found = []
    for j, (nodes, counts) in enumerate(leads, start=1):
        visited = {v for i in read[j] for v in graph.nodes[i].inputs}
        again = lines.of(members[j], visited)
        cost, needed = cost_of(graph, nodes), cost_of(graph, _led(graph, counts, visited)[0])
        level = Level(
            cost=cost,
            tail=cost - needed,
            smallest=min((graph.size[v] for v in counts), default=NEVER),
            working=max((working_set(graph, v) for v in read[j]), default=-1),
            lines=again,
            waiting=waiting[j],
            step=_step(graph, members[j]),
        )
        if form is Form.APART and len(nodes) > 1 and j < len(leads):
            level = _with_partial(level, graph, spine, j, counts, read[j], members[j], lines)
        found.append(level)
    if spine.passed:
        # Below the first block and above the last one small values make levels present; these are as if always there.
        found = found[min(spine.passed) - 2 : max(spine.passed)]
    return tuple(found) if any(level.working >= 0 for level in found) else None


def _with_partial(
    level: Level,
    graph: Graph,
    spine: Spine,
    j: int,
    counts: set[int],
    visits: Sequence[int],
    members: Sequence[int],
    lines: _Lines,
) -> Level:
    """The level j with partial values: it is present only if they cut all ways from z to the next z, or to a visit.

    Of a passed level, to the largest visit, from the z before it: from that one the next z is reached directly.
    """
    later = set(graph.nodes[spine.nodes[j]].inputs)
    visited = set(graph.nodes[_largest(graph, visits)].inputs) if visits else set()
    savings = (*_savings(lines.of(members, later), level.cost), *_savings(level.lines, level.cost - level.tail))
    if j in spine.passed:
        z = spine.nodes[j - 2]
        smallest = lines.cut([z, *members], z, visited) if visited else NEVER
        restored = tuple(_restored(graph, *_led(graph, counts, visited)))
    else:
        smallest = min(lines.cut(members, spine.nodes[j - 1], wanted) for wanted in (later, visited) if wanted)
        restored = (Saving(0, level.cost),)
    return replace(level, smallest=smallest, partial=savings, restored=restored)


def _step(graph: Graph, nodes: Iterable[int]) -> int:
    """Bytes that divide the sizes of all values that ``nodes`` make and that are read."""
    return math.gcd(*(graph.size[v] for i in nodes for v in graph.values_of(i) if graph.readers[v]))


def _restored(graph: Graph, nodes: set[int], values: set[int]) -> Iterator[Saving]:
    """The cost of making some of ``values`` again, at most, if they take at most so many bytes together.

    A node is needed for those alone that it leads to, and they take at least as many bytes as the smallest of them.
    """
    least_bytes: dict[int, int] = {}
    for i in sorted(nodes, reverse=True):
        of = [v for v in graph.values_of(i) if v in values]
        after = (least_bytes[reader] for v in of for reader in graph.readers[v] if reader in least_bytes)
        least_bytes[i] = min(*(graph.size[v] for v in of), NEVER, *after)
    for kept in sorted(set(least_bytes.values())):
        yield Saving(kept, cost_of(graph, (i for i, size in least_bytes.items() if size <= kept)))


def _savings(lines: Sequence[Line], cost: float) -> Iterator[Saving]:
    """The corners of what is spared of ``cost``, at most, over the bytes that are kept."""
    yield from (Saving(kept, cost - least(lines, kept)) for kept in corners(lines))


def _waiting(graph: Graph, split: int, visits: Sequence[Sequence[int]], lines: _Lines) -> list[tuple[Line, ...]]:
    """G of every level: of the values made before its largest visit that are read before the next visit but one.

    Of those made since the largest visit to the ``_REACH``-th level above: what is older is as if in memory.
    """
    found: list[tuple[Line, ...]] = [()] * len(visits)
    order = [j for j in range(len(visits) - 1, 0, -1) if visits[j]]
    largest = [_largest(graph, visits[j]) for j in order]
    starts = [split - 1] * _REACH + largest
    ends = [*largest[_SPAN:], *[len(graph.nodes)] * _SPAN]
    for j, before, at, end in zip(order, starts, largest, ends, strict=False):
        made = range(before + 1, at)
        later = {v for i in made for v in graph.values_of(i) if any(at < reader <= end for reader in graph.readers[v])}
        # What is computed again between two visits is charged to the _SPAN before it, so each pays a share.
        found[j] = tuple(
            Line(line.cost / _SPAN, line.rate / _SPAN)
            for line in lines.of(made, later, frozenset(graph.nodes[at].inputs))
        )
    return found


def _led(graph: Graph, counts: Set[int], read: Iterable[int]) -> tuple[set[int], set[int]]:
    """The nodes and values on the way to those of the values ``read`` that are in ``counts``, along such values."""
    todo = [v for v in read if v in counts]
    nodes: set[int] = set()
    values: set[int] = set()
    while todo:
        values.add(v := todo.pop())
        maker = graph.producer[v]
        if maker not in nodes:
            nodes.add(maker)
            todo.extend(v for v in graph.nodes[maker].inputs if v in counts)
    return nodes, values


def _visits(graph: Graph, spine: Spine, leads: Sequence[tuple[set[int], set[int]]]) -> list[list[int]]:
    """For every level the backward nodes that visit it, of a sequence of visits whose levels never rise.

    A visit reads a value that cannot be made without all levels below, of which it reads none.
    """
    level, split = spine.level, len(spine.level)
    counting: set[int] = set()
    for j, (nodes, values) in enumerate(leads, start=1):
        counting |= _after(graph, spine.nodes[j - 1 - (j in spine.passed)], nodes, values)
    found, lowest = [], []
    for i in range(split, len(graph.nodes)):
        forward = [v for v in graph.nodes[i].inputs if graph.producer[v] < split and level[graph.producer[v]] > 0]
        numbers = [level[graph.producer[v]] for v in forward if v in counting]
        # A visit reads no value of a lower level, not even one that does not count.
        if numbers and min(numbers) == min(level[graph.producer[v]] for v in forward):
            found.append(i)
            lowest.append(min(numbers))
    read: list[list[int]] = [[] for _ in range(len(leads) + 1)]
    for at in longest_falling(lowest) if found else []:
        read[lowest[at]].append(found[at])
    return read


_Shape = tuple[tuple[float, tuple[int, ...], tuple[int, ...], bool], ...]
"""Cost, inputs, outputs and whether it may be recomputed, of some nodes; inputs that others make are left out."""


@dataclass(slots=True)
class _Lines:
    """Lines below the least cost of what must be computed again, over the bytes that are kept, by structure."""

    graph: Graph
    known: dict[object, tuple[Line, ...]] = field(default_factory=dict)

    def of(
        self, nodes: Iterable[int], wanted: Set[int], free: Set[int] = frozenset(), alone: int | None = None
    ) -> tuple[Line, ...]:
        """The lines for those of the values ``wanted`` that ``nodes`` make.

        Args:
            nodes: The nodes.
            wanted: The values.
            free: Keeping one of these takes no bytes.
            alone: The only node to cost something; None for all.
        """
        place: dict[int, int] = {}
        shape = []
        for i in nodes:
            node = self.graph.nodes[i]
            cost = node.cost if alone is None else float(i == alone)
            shape.append((cost, tuple(place[v] for v in node.inputs if v in place), node.outputs, node.recompute))
            for v in self.graph.values_of(i):
                place[v] = len(place)
        asked, given = (tuple(sorted(place[v] for v in of if v in place)) for of in (wanted, free))
        key = (tuple(shape), asked, given)
        if key not in self.known:
            self.known[key] = tuple(_lines(*key))
        return self.known[key]

    def cut(self, nodes: Sequence[int], z: int, wanted: Set[int]) -> int:
        """Bytes, at least, that are kept where the values ``wanted`` are made without ``z``, one of ``nodes``."""
        step = _step(self.graph, nodes) or 1
        # The lines are rounded, and the sizes of some values are a multiple of their divisor.
        return step * math.ceil(corners(self.of(nodes, wanted, alone=z))[-1] * (1 - SUM_ROUNDING) / step)


def _lines(nodes: _Shape, wanted: Sequence[int], free: Sequence[int]) -> Iterator[Line]:
    made = (Node(f"n{i}", cost, of, outputs, recompute=again) for i, (cost, of, outputs, again) in enumerate(nodes))
    graph = Graph("level", tuple(made), ())
    if not wanted or graph.total_cost <= 0:
        return
    room = max(1, sum(graph.size))
    network = Network.of(graph, room)
    needs = np.zeros(len(graph.size), dtype=np.bool_)
    needs[list(wanted)] = True
    charge = np.array(graph.size, dtype=np.float64)
    charge[list(free)] = 0.0
    question = Question(needs, charge, len(graph.nodes))
    whole = float(charge[needs].sum())
    if not whole:
        return

    def asked(price: float) -> tuple[float, float]:
        """Bytes kept and cost at a price; adds the line."""
        choice = network.choose(question, price * room)
        lines.append(Line(choice.level * graph.total_cost, price * graph.total_cost))
        return choice.kept_bytes, choice.cost

    lines: list[Line] = []
    todo = [((whole, 0.0), asked(1e3 / room))]
    while todo and len(lines) < _PRICES:
        (more, cheap), (less, dear) = todo.pop(0)
        if more <= less or dear <= cheap:
            continue
        middle = asked((dear - cheap) / (more - less))
        if middle not in {(more, cheap), (less, dear)} and less < middle[0] < more:
            todo += [((more, cheap), middle), (middle, (less, dear))]
    yield from lines


def corners(lines: Sequence[Line]) -> list[float]:
    """Bytes, ascending from 0, at which two neighbouring lines meet, and at which the last one comes to nothing."""
    ordered = sorted(set(lines), key=lambda line: -line.rate)
    ends = {0.0}
    for first, second in pairwise(ordered):
        if first.rate > second.rate:
            ends.add((first.cost - second.cost) / (first.rate - second.rate))
    if ordered and ordered[-1].rate > 0:
        ends.add(ordered[-1].cost / ordered[-1].rate)
    return sorted(end for end in ends if end >= 0)


def least(lines: Sequence[Line], kept: float) -> float:
    """The cost, at least, of what is computed again if ``kept`` bytes are kept."""
    return max((0.0, *(line.cost - line.rate * kept for line in lines)))


def without_small(graph: Graph, threshold: int) -> Graph:
    """``graph`` without reads of values below ``threshold`` bytes."""
    if not threshold:
        return graph
    nodes = []
    for node in graph.nodes:
        inputs = tuple(v for v in node.inputs if graph.size[v] >= threshold)
        nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))  # making a node takes long
    return replace(graph, nodes=tuple(nodes))
