"""The levels of a training step: what of its forward part must be computed together, and which nodes visit it.

A *spine* is a sequence z_1, ..., z_N of forward nodes each of which leads to the next. Level j holds z_j and the other
nodes between it and z_(j+1) that lead there; the values that *count* are those that nodes of the level read of each
other, and z_(j+1) of them. If none of them is in memory, z_(j+1) cannot be computed before all nodes of the level are.

The spine is made of dominators: nodes on every path to the last forward node. They are those of the whole graph, also
where reads are left out (see ``bound``): each must still lead to the next, and no more. A spine is *divided* where the
visit with the largest working set reads a value that is made within a level. What was made before that value is then a
level of its own: it must be kept beside that working set, or be computed again.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from remat_cli.graph.analysis import working_set
from remat_cli.graph.model import Graph, Node
from remat_cli.plan.liveness import cost_of
from remat_cli.strategies.chains.visits import dominators, forward_end, leading, longest_falling
from remat_cli.strategies.openers.clearing import Network, Question
from remat_cli.strategies.repeated.runs import group_ends, runs_of

MOST_LEVELS, _FEWEST_LEVELS = 400, 2
"""The table grows with the square of the number of levels; one level alone has nothing to be recomputed from."""
_PRICES = 24
"""Most lines of one level."""


@dataclass(frozen=True, slots=True)
class Spine:
    """Forward nodes each of which leads to the next.

    Attributes:
        nodes: z_1 .. z_N.
        level: For every forward node its level, from 1; 0 for none.
    """

    nodes: tuple[int, ...]
    level: tuple[int, ...]

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
            if j < len(self.nodes):
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

    def members(self) -> list[list[int]]:
        """The nodes of every level, from 0."""
        found: list[list[int]] = [[] for _ in range(len(self.nodes) + 1)]
        for i, number in enumerate(self.level):
            found[number].append(i)
        return found


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
class Level:
    """A level; the fields on which the bound depends.

    Attributes:
        cost: u.
        tail: The part of it that its own visits do not need.
        smallest: Bytes of the smallest value that counts.
        working: The largest working set of its visits; -1 if it has none.
        lines: f, as lines.
        waiting: g, as lines.
        step: Bytes that divide the sizes of all values that are read.
    """

    cost: float
    tail: float
    smallest: int
    working: int
    lines: tuple[Line, ...]
    waiting: tuple[Line, ...]
    step: int


def levels_of(graph: Graph, spine: Spine, *, divided: bool = False) -> tuple[Level, ...] | None:
    """The levels of a training step; None if it has too few or no visits.

    Args:
        graph: The graph, or one without some reads.
        spine: The spine of the whole graph.
        divided: Whether to divide it.
    """
    spine = spine.connected(graph)
    if len(spine.nodes) < _FEWEST_LEVELS:
        return None
    leads = spine.leads(graph)
    read = _visits(graph, spine.level, [values for _, values in leads])
    if divided:
        spine = spine.divided(graph, read)
        leads = spine.leads(graph)
        read = _visits(graph, spine.level, [values for _, values in leads])
    if not any(read):
        return None
    lines = _Lines(graph)
    members = spine.members()
    waiting = _waiting(graph, len(spine.level), read, lines)
    found = []
    for j, (nodes, counts) in enumerate(leads, start=1):
        cost = cost_of(graph, nodes)
        found.append(
            Level(
                cost=cost,
                tail=cost - _needed(graph, counts, read[j]),
                smallest=min((graph.size[v] for v in counts), default=0),
                working=max((working_set(graph, v) for v in read[j]), default=-1),
                lines=lines.of(members[j], {v for i in read[j] for v in graph.nodes[i].inputs}),
                waiting=waiting[j],
                step=math.gcd(*(graph.size[v] for i in members[j] for v in graph.values_of(i) if graph.readers[v])),
            )
        )
    return tuple(found)


def _waiting(graph: Graph, split: int, visits: Sequence[Sequence[int]], lines: _Lines) -> list[tuple[Line, ...]]:
    """G of every level: of values that a later node reads, made since the largest visit to the level above."""
    found: list[tuple[Line, ...]] = [()] * len(visits)
    lasting = set(graph.outputs)
    first = split
    for j in range(len(visits) - 1, 0, -1):
        if not visits[j]:
            continue
        largest = _largest(graph, visits[j])
        made = range(first, largest)
        later = {
            v for i in made for v in graph.values_of(i) if v in lasting or max(graph.readers[v], default=-1) > largest
        }
        found[j] = lines.of(made, later, frozenset(graph.nodes[largest].inputs))
        first = largest + 1
    return found


def _needed(graph: Graph, counts: set[int], visits: Sequence[int]) -> float:
    """Cost of the nodes of a level without which its visits cannot be, if none of the values that count is there."""
    todo = [v for i in visits for v in graph.nodes[i].inputs if v in counts]
    needed: set[int] = set()
    while todo:
        maker = graph.producer[todo.pop()]
        if maker not in needed:
            needed.add(maker)
            todo.extend(v for v in graph.nodes[maker].inputs if v in counts)
    return cost_of(graph, needed)


def _visits(graph: Graph, level: Sequence[int], counts: Sequence[set[int]]) -> list[list[int]]:
    """For every level the backward nodes that visit it, of a sequence of visits whose levels never rise."""
    split = len(level)
    counting = {v for values in counts for v in values}
    nodes, lowest = [], []
    for i in range(split, len(graph.nodes)):
        forward = [v for v in graph.nodes[i].inputs if graph.producer[v] < split and level[graph.producer[v]] > 0]
        numbers = [level[graph.producer[v]] for v in forward if v in counting]
        # A visit reads no value of a lower level, not even one that does not count.
        if numbers and min(numbers) == min(level[graph.producer[v]] for v in forward):
            nodes.append(i)
            lowest.append(min(numbers))
    read: list[list[int]] = [[] for _ in range(len(counts) + 1)]
    for at in longest_falling(lowest) if nodes else []:
        read[lowest[at]].append(nodes[at])
    return read


_Shape = tuple[tuple[float, tuple[int, ...], tuple[int, ...], bool], ...]
"""Cost, inputs, outputs and whether it may be recomputed, of some nodes; inputs that others make are left out."""


@dataclass(slots=True)
class _Lines:
    """Lines below the least cost of what must be computed again, over the bytes that are kept, by structure."""

    graph: Graph
    known: dict[object, tuple[Line, ...]] = field(default_factory=dict)

    def of(self, nodes: Iterable[int], wanted: Set[int], free: Set[int] = frozenset()) -> tuple[Line, ...]:
        """The lines for those of the values ``wanted`` that ``nodes`` make; keeping one of ``free`` takes no bytes."""
        place: dict[int, int] = {}
        shape = []
        for i in nodes:
            node = self.graph.nodes[i]
            shape.append((node.cost, tuple(place[v] for v in node.inputs if v in place), node.outputs, node.recompute))
            for v in self.graph.values_of(i):
                place[v] = len(place)
        asked, given = (tuple(sorted(place[v] for v in of if v in place)) for of in (wanted, free))
        key = (tuple(shape), asked, given)
        if key not in self.known:
            self.known[key] = tuple(_lines(*key))
        return self.known[key]


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
