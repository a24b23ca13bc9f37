"""The bound of served levels: the bound of visits (``chains/visits``), which also counts what visits read.

The bound of visits lets a level be served for nothing as long as one of its values is in memory. But the backward nodes
that visit a level read most of what its nodes make, and whatever of that is not kept is computed again.

The recursion and its proof are in ``docs/mathematics.md``, "Served levels".

Values that are small are no obstacle to keeping a level, but they make s small. So reads of values below a threshold
are left out, which is a relaxation: schedules stay valid, cost the same, and take no more memory. The highest bound of
several thresholds counts. Reads of the values that pass by all blocks are left out too (see ``reduced``). The levels
are those of ``levels``; segments of equal ones are solved once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median_low

import numpy as np

from remat_cli.control import Control
from remat_cli.graph.analysis import working_sets
from remat_cli.graph.model import Graph
from remat_cli.mip import Floats, Ints
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Bound
from remat_cli.strategies.chains.segments import prefix_sums
from remat_cli.strategies.engine import Once
from remat_cli.strategies.repeated.levels import MOST_LEVELS, Level, Line, Spine, least, levels_of, without_small
from remat_cli.strategies.repeated.parts import reduced
from remat_cli.strategies.repeated.programme import MOST_NUMBERS, Segments
from remat_cli.tolerances import CHAIN_ROUNDING

# Doubling all constants of ``chains`` and ``repeated`` makes the gap larger, halving does not (benchmark ``ablation``).
_WORK, _MOST_UNITS, _FEWEST_UNITS = 2e10, 4_000, 40
"""Steps of the innermost loop for one threshold, and numbers of units."""
_PIECES = 12
"""Numbers of bytes to tell apart between two corners of the lines."""
_SHARE = 0.1
"""Sizes of levels that are rarer than this do not count for the choice of the unit."""
_NO_LIMIT = 2**62


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
    unit = step
    marks = [_marks(ends, unit) for ends in corners]
    units = most // unit
    if units > min(_MOST_UNITS, MOST_NUMBERS / len(segments.first), _WORK / (segments.work * _mean(marks))):
        units = int(min(_MOST_UNITS, _WORK / (segments.work * _PIECES * _mean(corners))))
        if units < _FEWEST_UNITS:
            return None
        unit = _unit([level.smallest for level in levels], most, units)
        marks = [_marks(ends, unit) for ends in corners]
    if control.stopping():
        return None
    return _solved(graph, levels, spare, segments, top, marks, unit, control)


def _mean(lists: Sequence[Sequence[int]]) -> float:
    return sum(map(len, lists)) / len(lists)


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
            pay.append(0.0 if following is None else least(level.lines, (following - exact) * unit))
        begin.append(len(keep))
    prefix: Floats = prefix_sums([level.cost for level in levels])
    width = max(free for free in spare if free != _NO_LIMIT) // unit + 1
    known: dict[tuple[tuple[Line, ...], int], int] = {}
    kind = [known.setdefault((level.waiting, free), len(known)) for level, free in zip(levels, spare, strict=True)]
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
        kind=np.array(kind, dtype=np.int64),
        due=np.concatenate([_due(lines, free, unit, width) for lines, free in known]),
    )
    rows = len(segments.first)
    value, nothing = np.full(rows * width, np.inf), np.zeros(width)
    for start in range(0, rows, _ROWS):
        if control.stopping():
            return None
        fill_served(served, nothing, value, start, min(start + _ROWS, rows))
    highest = int(top[-1])
    found = float(value[int(segments.row_of[0, highest]) * width])
    once = float(prefix[highest + 1]) - levels[highest].tail
    return max(graph.total_cost, (graph.total_cost + found - once) * (1 - CHAIN_ROUNDING))


def _due(lines: Sequence[Line], free: int, unit: int, width: int) -> Floats:
    """float64[width]: g with 0 .. width - 1 units reserved of ``free`` bytes beside the largest visit."""
    kept = np.maximum(0.0, free - np.arange(width, dtype=np.float64) * unit)
    found: Floats = np.zeros(width)
    for line in lines:
        np.maximum(found, line.cost - line.rate * kept, out=found)
    return found


_ROWS = 20
"""Rows between two looks at the clock."""


_FEWER = (1, 2, 4, 8)
"""Where the programme takes too long, it is tried with half of the most levels, then with a quarter, and an eighth."""


def bounds_of(graph: Graph, room: int, control: Control) -> Iterator[float]:
    """The bounds with some reads left out or none, and with the spine undivided or divided.

    Args:
        graph: The graph, without reads of values that pass by its blocks.
        room: Bytes beside the fixed memory.
        control: Ends it early.
    """
    finest = Spine.of(graph)
    spines = [finest]
    for threshold in thresholds(graph, finest):
        free = without_small(graph, threshold)
        for divided in (False, True):
            for k, fewer in enumerate(_FEWER):
                if control.stopping():
                    return
                if k == len(spines):
                    spines.append(finest.coarser(graph, MOST_LEVELS // fewer))
                levels = levels_of(free, spines[k], divided=divided)
                found = None if levels is None else bound_of(graph, levels, room, control)
                if found is not None:
                    yield found
                if levels is None or found is not None:
                    break


class ServedLevels(Once):
    """Raises the bound by that of served levels."""

    def attempt(self) -> None:
        """Try all bounds."""
        incumbent, graph = self.incumbent, self.incumbent.graph
        incumbent.report("bounding blocks")
        room = incumbent.budget_bytes - graph.fixed_memory
        cut = reduced(graph, max(working_sets(graph))).graph
        for found in bounds_of(cut, room, incumbent.context.control):
            if found > graph.total_cost:
                incumbent.raise_bound(Bound(found, Scope.DOCUMENT_ORDER))
            if incumbent.over():
                break


_MOST_THRESHOLDS, _OFTEN = 5, 0.02
"""Most sizes to leave reads out below, and the share of all nodes whose values must have such a size. Untuned."""


def thresholds(graph: Graph, spine: Spine) -> list[int]:
    """Sizes below which reads are left out, largest first: just above those of small values of many nodes; and 0."""
    if not spine.nodes:
        return [0]
    made = zip(graph.producer, graph.size, strict=True)
    count = Counter(size for maker, size in made if graph.readers[graph.first_value[maker]])
    # A spine is no spine any more if what most of its nodes make is left out.
    usual = median_low(max(graph.nodes[z].outputs, default=0) for z in spine.nodes)
    often = sorted(size for size, times in count.items() if times >= _OFTEN * len(graph.nodes) and size < usual)
    return [*(size + 1 for size in reversed(often[-_MOST_THRESHOLDS:])), 0]
