"""The bound of served levels: the bound of visits (``chains/visits``), which also counts what visits read.

The bound of visits lets a level be served for nothing as long as one of its values is in memory. But the backward nodes
that visit a level read most of what its nodes make, and whatever of that is not kept is computed again.

The recursion and its proof are in ``docs/mathematics.md``, "Served levels".

Values that are small are no obstacle to keeping a level, but they make s small. So reads of values below a threshold
are left out, which is a relaxation: schedules stay valid, cost the same, and take no more memory. The highest bound of
several thresholds counts. Reads of the values that pass by all blocks are left out too (see ``reduced``). The spine may
be any subset of the dominators, so long chains are coarsened. Segments of equal levels are solved once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from remat_cli.control import Control
from remat_cli.graph.analysis import working_set, working_sets
from remat_cli.graph.model import Graph, Node
from remat_cli.mip import Floats, Ints
from remat_cli.plan.liveness import cost_of
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Bound
from remat_cli.strategies.chains.segments import prefix_sums
from remat_cli.strategies.chains.visits import dominators, forward_end, leading, longest_falling
from remat_cli.strategies.engine import Engine
from remat_cli.strategies.openers.clearing import Network, Question
from remat_cli.strategies.repeated.parts import reduced
from remat_cli.strategies.repeated.programme import Segments
from remat_cli.tolerances import CHAIN_ROUNDING

# Doubling all constants of ``chains`` and ``repeated`` makes the gap larger, halving does not (benchmark ``ablation``).
_MOST_LEVELS, _FEWEST_LEVELS = 400, 2
_WORK, _MOST_UNITS, _FEWEST_UNITS = 2e10, 4_000, 40
"""Steps of the innermost loop for one threshold, and numbers of units."""
_PRICES = 24
"""Most lines of one level."""
_PIECES = 12
"""Numbers of bytes to tell apart between two corners of the lines."""
_SHARE = 0.1
"""Sizes of levels that are rarer than this do not count for the choice of the unit."""
_NO_LIMIT = 2**62


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
        step: Bytes that divide the sizes of all values that are read.
    """

    cost: float
    tail: float
    smallest: int
    working: int
    lines: tuple[Line, ...]
    step: int


def without_small(graph: Graph, threshold: int) -> Graph:
    """``graph`` without reads of values below ``threshold`` bytes."""
    nodes = (replace(node, inputs=tuple(v for v in node.inputs if graph.size[v] >= threshold)) for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def levels_of(graph: Graph, most: int = _MOST_LEVELS) -> tuple[Level, ...] | None:
    """The levels of a training step, at most ``most``; None if it has too few or no visits."""
    split = forward_end(graph)
    if split < 2:
        return None
    spine, level = _coarse(*dominators(graph, split), most)
    if len(spine) < _FEWEST_LEVELS:
        return None
    members: list[list[int]] = [[] for _ in range(len(spine) + 1)]
    for i, number in enumerate(level):
        members[number].append(i)
    tails: list[float] = []
    counts: list[set[int]] = []
    for j, z in enumerate(spine, start=1):
        between, values = leading(graph, level, j, spine[j] if j < len(spine) else None)
        if j == len(spine):
            values = {v for v in graph.values_of(z) if graph.readers[v]}
        tails.append(cost_of(graph, between - {z}))
        counts.append(values)
    read = _visits(graph, split, level, counts)
    if not any(read):
        return None
    known: dict[object, tuple[Line, ...]] = {}
    found = []
    for j, z in enumerate(spine, start=1):
        visits = read[j]
        small, wanted = _small(graph, members[j], visits)
        key = (tuple((node.cost, node.inputs, node.outputs, node.recompute) for node in small.nodes), tuple(wanted))
        if key not in known:
            known[key] = tuple(_lines(small, wanted))
        found.append(
            Level(
                cost=graph.nodes[z].cost + tails[j - 1],
                tail=graph.nodes[z].cost + tails[j - 1] - _needed(graph, counts[j - 1], visits),
                smallest=min((graph.size[v] for v in counts[j - 1]), default=0),
                working=max((working_set(graph, v) for v in visits), default=-1),
                lines=known[key],
                step=math.gcd(*(graph.size[v] for i in members[j] for v in graph.values_of(i) if graph.readers[v])),
            )
        )
    return tuple(found)


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


def _coarse(spine: list[int], level: list[int], most: int) -> tuple[list[int], list[int]]:
    """A subset of the dominators with at most ``most``, evenly spread, and the levels that it gives."""
    step = -(-len(spine) // most)
    if step == 1:
        return spine, level
    # Level j holds z_j and what it dominates: the coarse level of fine level j is the number of chosen z up to j.
    return spine[::step], [0 if number == 0 else (number - 1) // step + 1 for number in level]


def _visits(graph: Graph, split: int, level: list[int], counts: list[set[int]]) -> list[list[int]]:
    """For every level the backward nodes that visit it, of a sequence of visits whose levels never rise."""
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


def _small(graph: Graph, members: Sequence[int], visits: Sequence[int]) -> tuple[Graph, list[int]]:
    """The nodes of a level as a graph, which reads nothing of other levels, and the values that its visits read."""
    place: dict[int, int] = {}
    nodes = []
    for i in members:
        inputs = tuple(place[v] for v in graph.nodes[i].inputs if v in place)
        node = graph.nodes[i]
        nodes.append(Node(f"n{i - members[0]}", node.cost, inputs, node.outputs, recompute=node.recompute))
        for v in graph.values_of(i):
            place[v] = len(place)
    wanted = sorted({place[v] for i in visits for v in graph.nodes[i].inputs if v in place})
    return Graph("level", tuple(nodes), ()), wanted


def _lines(graph: Graph, wanted: Sequence[int]) -> Iterator[Line]:
    """Lines below the least cost of what must be computed again, over the bytes that are kept."""
    if not wanted or graph.total_cost <= 0:
        return
    room = max(1, sum(graph.size))
    network = Network.of(graph, room)
    needs = np.zeros(len(graph.size), dtype=np.bool_)
    needs[wanted] = True
    question = Question(needs, np.array(graph.size, dtype=np.float64), len(graph.nodes))
    whole = float(question.charge[needs].sum())
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
    """The value of f at ``kept`` bytes."""
    return max((line.cost - line.rate * kept for line in lines), default=0.0)


def bound_of(graph: Graph, levels: Sequence[Level], room: int, control: Control) -> float | None:
    """Lower bound on the cost of schedules within ``room`` bytes beside the fixed memory; infinite if none fits.

    None if the levels say nothing in the time there is.
    """
    spare = [room - level.working if level.working >= 0 else _NO_LIMIT for level in levels]
    if min(spare) < 0:
        return math.inf
    known: dict[tuple[object, ...], int] = {}
    kinds = tuple(known.setdefault((level, free), len(known)) for level, free in zip(levels, spare, strict=True))
    visited = np.array([level.working >= 0 for level in levels])
    top = np.maximum.accumulate(np.where(visited, np.arange(len(levels)), -1))
    segments = Segments.of(kinds, top)
    most = max(free for free in spare if free != _NO_LIMIT)
    steps = [level.step for level in levels]
    step = math.gcd(*(one for one in set(steps) if steps.count(one) >= _SHARE * len(steps))) or 1
    corners = [_corners(level.lines, most) for level in levels]
    choices = _PIECES * max(map(len, corners))
    units = int(min(_MOST_UNITS, _WORK / (segments.work * choices)))
    if units < _FEWEST_UNITS or control.stopping():
        return None
    unit = step if most <= units * step else _unit([level.smallest for level in levels], most, units)
    marks = [_marks(ends, unit) for ends in corners]
    return _solved(graph, levels, spare, segments, top, marks, unit, control)


def _unit(sizes: Sequence[int], most: int, units: int) -> int:
    """Bytes of a unit, which divides the most frequent size."""
    unit = max(1, -(-most // units))
    common = max(set(sizes), key=sizes.count)
    return max(1, common // max(1, common // unit)) if common >= unit else unit


def _corners(lines: Sequence[Line], most: int) -> list[int]:
    """Bytes, ascending from 0, at which two neighbouring lines meet, and at which the last one comes to nothing."""
    ordered = sorted(set(lines), key=lambda line: -line.rate)
    ends = {0.0}
    for first, second in pairwise(ordered):
        if first.rate > second.rate:
            ends.add((first.cost - second.cost) / (first.rate - second.rate))
    if ordered and ordered[-1].rate > 0:
        ends.add(ordered[-1].cost / ordered[-1].rate)
    return sorted(int(end) for end in ends if 0 <= end <= most)


def _marks(ends: Sequence[int], unit: int) -> list[int]:
    """Numbers of units to tell apart, ascending from 0: around the corners, and between them."""
    marks = {0}
    for low, high in pairwise(ends):
        marks.update((low + (high - low) * piece // _PIECES) // unit for piece in range(1, _PIECES + 1))
        marks.add(high // unit + 1)
    return sorted(marks)


def _solved(
    graph: Graph,
    levels: Sequence[Level],
    spare: Sequence[int],
    segments: Segments,
    top: Ints,
    marks: Sequence[Sequence[int]],
    unit: int,
    control: Control,
) -> float | None:
    """Fill the table in units of ``unit`` bytes, all rounded in favour of the schedule."""
    from remat_cli.kernels.repeated import Served, fill_served  # numba takes 0.3 s to import

    begin, keep, pay = [0], [], []
    for level, of in zip(levels, marks, strict=True):
        exact = level.step % unit == 0  # what is kept takes whole units, so less than a mark is a unit less
        for mark, following in zip(of, [*of[1:], None], strict=True):
            keep.append(mark)
            pay.append(0.0 if following is None else max(0.0, least(level.lines, (following - exact) * unit)))
        begin.append(len(keep))
    prefix: Floats = prefix_sums([level.cost for level in levels])
    served = Served(
        first=segments.first,
        last=segments.last,
        row_of=segments.row_of,
        prefix=prefix,
        tail=np.array([level.tail for level in levels]),
        top=top,
        smallest=np.array([level.smallest // unit for level in levels], dtype=np.int64),
        spare=np.array([free if free == _NO_LIMIT else free // unit for free in spare], dtype=np.int64),
        begin=np.array(begin, dtype=np.int64),
        keep=np.array(keep, dtype=np.int64),
        pay=np.array(pay, dtype=np.float64),
    )
    rows = len(segments.first)
    width = max(free for free in spare if free != _NO_LIMIT) // unit + 1
    value, nothing = np.full(rows * width, np.inf), np.zeros(width)
    for start in range(0, rows, _ROWS):
        if control.stopping():
            return None
        fill_served(served, nothing, value, start, min(start + _ROWS, rows))
    highest = int(top[-1])
    found = float(value[int(segments.row_of[0, highest]) * width])
    once = float(prefix[highest + 1]) - levels[highest].tail
    return max(graph.total_cost, (graph.total_cost + found - once) * (1 - CHAIN_ROUNDING))


_ROWS = 20
"""Rows between two looks at the clock."""


@dataclass(slots=True)
class ServedLevels(Engine):
    """Raises the bound by that of served levels, for several thresholds."""

    asked: bool = False

    def work(self) -> bool:
        """Try all thresholds once."""
        incumbent, graph = self.incumbent, self.incumbent.graph
        if self.asked:
            return False
        self.asked = True
        incumbent.report("bounding blocks")
        control = incumbent.context.control
        room = incumbent.budget_bytes - graph.fixed_memory
        cut = reduced(graph, max(working_sets(graph))).graph
        for threshold in thresholds(cut):
            if incumbent.over():
                break
            levels = levels_of(without_small(cut, threshold))
            if levels is None:
                continue
            found = bound_of(cut, levels, room, control)
            if found is not None and found > graph.total_cost:
                incumbent.raise_bound(Bound(found, Scope.DOCUMENT_ORDER))
        return False


def thresholds(graph: Graph) -> list[int]:
    """Sizes below which reads are left out: none, and just above the sizes that small values of many nodes have."""
    count: dict[int, int] = {}
    for i, size in zip(graph.producer, graph.size, strict=True):
        if graph.readers[graph.first_value[i]] if graph.nodes[i].outputs else False:
            count[size] = count.get(size, 0) + 1
    often = sorted(size for size, times in count.items() if 50 * times >= len(graph.nodes))
    return [0, *(size + 1 for size in often[:_MOST_THRESHOLDS])]


_MOST_THRESHOLDS = 5
