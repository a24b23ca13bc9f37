"""The bound of served levels: the bound of visits (``chains/visits``), which also counts what visits read.

The bound of visits lets a level be served for nothing as long as one of its values is in memory. But the backward nodes
that visit a level read most of what its nodes make, and whatever of that is not kept is computed again.

The recursions and their proofs are in ``docs/mathematics.md``, "Served levels" and "Partial values".

Values that are small are no obstacle to keeping a level, but they make s small. So reads of values below a threshold
are left out, which is a relaxation: schedules stay valid, cost the same, and take no more memory. The highest bound of
several thresholds counts. Reads of the values that pass by all blocks are left out too (see ``reduced``). The levels
are those of ``levels``; segments of equal ones are solved once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
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
from remat_cli.strategies.repeated.levels import (
    MOST_LEVELS,
    NEVER,
    Form,
    Level,
    Line,
    Saving,
    Spine,
    corners,
    least,
    levels_of,
    without_small,
)
from remat_cli.strategies.repeated.parts import reduced
from remat_cli.strategies.repeated.programme import MOST_NUMBERS, Segments
from remat_cli.tolerances import CHAIN_ROUNDING, SUM_ROUNDING

# Doubling all constants of ``chains`` and ``repeated`` makes the gap larger, halving does not (benchmark ``ablation``).
_WORK, _MOST_UNITS, _FEWEST_UNITS = 2e10, 4_000, 40
"""Steps of the innermost loop for one threshold, and numbers of units."""
_PIECES = 12
"""Numbers of bytes to tell apart between two corners of the lines."""
_PRICES = (0.0, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Prices of a byte of partial values, of that at which none is worth its bytes: nothing, for segments where all fit.

ResNet-299 at 2 working sets with these +39.8%, with three of them 35.2%, and with eleven 40.0% (by hand)."""
_SHARE = 0.1
"""Sizes of levels that are rarer than this do not count for the choice of the unit."""


def bound_of(graph: Graph, levels: Sequence[Level], room: int, control: Control) -> float | None:
    """Lower bound on the cost of schedules within ``room`` bytes beside the fixed memory; infinite if none fits.

    None if the levels say nothing in the time there is.
    """
    spare = [room - level.working if level.working >= 0 else NEVER for level in levels]
    if min(spare) < 0:
        return math.inf
    known: dict[tuple[object, ...], int] = {}
    kinds = tuple(known.setdefault((level, free), len(known)) for level, free in zip(levels, spare, strict=True))
    visited = np.array([level.working >= 0 for level in levels])
    top = np.maximum.accumulate(np.where(visited, np.arange(len(levels)), -1))
    segments = Segments.of(kinds, top)
    most = max(free for free in spare if free != NEVER)
    grid = _Grid.of(levels, most, segments)
    if grid is None or control.stopping():
        return None
    return _solved(graph, levels, spare, segments, top, grid, control)


@dataclass(frozen=True, slots=True)
class _Grid:
    """What the table tells apart.

    Attributes:
        unit: Bytes of a unit.
        marks: Numbers of units of a level, see ``_marks``.
        prices: Prices of a byte of partial values, ascending.
        worth: The price at which no partial value is worth its bytes.
    """

    unit: int
    marks: list[list[int]]
    prices: list[float]
    worth: float

    @classmethod
    def of(cls, levels: Sequence[Level], most: int, segments: Segments) -> _Grid | None:
        """The finest grid that there is time and memory for.

        Args:
            levels: The levels.
            most: The most bytes beside a visit.
            segments: The segments to solve.
        """
        worth = max((one.cost / one.kept for level in levels for one in level.partial if one.kept > 0), default=0.0)
        prices = [worth * part for part in _PRICES] if worth else [0.0]
        ends = [[int(end) for end in corners(level.lines) if end <= most] for level in levels]
        pieces = 1 if worth else _PIECES
        work, rows = segments.work * len(prices), len(segments.first) * (3 * len(prices) if worth else 1)
        smallest = [level.smallest for level in levels if level.smallest != NEVER]
        finest = _divisor([level.step for level in levels])
        for unit in (finest, max(finest, _divisor(smallest))):
            marks = [_marks(of, unit, pieces) for of in ends]
            if most // unit <= min(_MOST_UNITS, MOST_NUMBERS / rows, _WORK / (work * _mean(marks))):
                return cls(unit, marks, prices, worth)
        units = int(min(_MOST_UNITS, MOST_NUMBERS / rows, _WORK / (work * pieces * _mean(ends))))
        if units < _FEWEST_UNITS:
            return None
        unit = _unit(smallest, most, units)
        return cls(unit, [_marks(of, unit, pieces) for of in ends], prices, worth)


def _divisor(sizes: Sequence[int]) -> int:
    """Bytes that divide all sizes but the rare ones."""
    return math.gcd(*(one for one in set(sizes) if sizes.count(one) >= _SHARE * len(sizes))) or 1


def _mean(lists: Sequence[Sequence[int]]) -> float:
    return sum(map(len, lists)) / len(lists)


def _unit(sizes: Sequence[int], most: int, units: int) -> int:
    """Bytes of a unit, which divides the most frequent size."""
    unit = max(1, -(-most // units))
    common = max(set(sizes), key=sizes.count)
    return max(1, common // max(1, common // unit)) if common >= unit else unit


def _spared(partial: Sequence[Saving], price: float) -> float:
    """What partial values spare, at most, beyond a price per byte."""
    return max((0.0, *(one.cost - price * one.kept for one in partial)))


def _marks(ends: Sequence[int], unit: int, pieces: int) -> list[int]:
    """Numbers of units to tell apart, ascending from 0: around the corners, and between them."""
    marks = {0}
    for low, high in pairwise(ends):
        marks.update((low + (high - low) * piece // pieces) // unit for piece in range(1, pieces + 1))
        marks.add(high // unit + 1)
    return sorted(marks)


def _solved(
    graph: Graph,
    levels: Sequence[Level],
    spare: Sequence[int],
    segments: Segments,
    top: Ints,
    grid: _Grid,
    control: Control,
) -> float | None:
    """Fill the table, all rounded in favour of the schedule."""
    from remat_cli.kernels.repeated import Served, fill_served  # numba takes 0.3 s to import

    unit, prices = grid.unit, grid.prices
    begin, keep, pay = _choices(levels, grid)
    prefix: Floats = prefix_sums([level.cost for level in levels])
    width = max(free for free in spare if free != NEVER) // unit + 1
    spared = [[_spared(level.partial, price) for level in levels] for price in prices]
    known: dict[tuple[tuple[Line, ...], int], int] = {}
    kind = [known.setdefault((level.waiting, free), len(known)) for level, free in zip(levels, spare, strict=True)]
    served = Served(
        first=segments.first,
        last=segments.last,
        row_of=segments.row_of,
        prefix=prefix,
        tail=np.array([level.tail for level in levels]),
        top=top,
        smallest=np.array([min(width, level.smallest // unit) for level in levels], dtype=np.int64),
        spare=np.array([free if free == NEVER else free // unit for free in spare], dtype=np.int64),
        begin=begin,
        apart=np.array([bool(level.partial) for level in levels]),
        keep=keep,
        pay=pay,
        kind=np.array(kind, dtype=np.int64),
        due=np.concatenate([np.repeat(_due(lines, free, unit, width), len(prices)) for lines, free in known]),
        price=np.array(prices),
        worth=grid.worth or 1.0,
        spared=np.array([total for of in spared for total in (0.0, *accumulate(of))]),
        restored=np.array([level.restoring(price) for price in prices for level in levels]),
        own=np.concatenate([_own(lines, free, unit, width, prices) for lines, free in known]),
    )
    rows, size = len(segments.first), width * len(prices)
    best, nothing, priced = np.zeros(width), np.zeros(size), np.full(rows * size, np.inf)
    left, beside = (np.zeros(rows * size), np.zeros(rows * size)) if grid.worth else (priced, priced)
    most = min(_MOST_ROWS, max(1, int(_TURN / (segments.work / rows * size * _mean(grid.marks)))))
    hold = np.zeros(most, dtype=np.int64)
    for start in range(0, rows, most):
        if control.stopping():
            return None
        fill_served(served, nothing, best, priced, left, beside, hold, start, min(start + most, rows))
    highest = int(top[-1])
    found = float(best[0])  # the row of all levels is the last one
    once = float(prefix[highest + 1]) - levels[highest].tail
    # What partial values spare is the least of rounded lines, of which one may hide a corner of two others.
    rounding = SUM_ROUNDING if grid.worth else CHAIN_ROUNDING
    return max(graph.total_cost, (graph.total_cost + found - once) * (1 - rounding))


def _choices(levels: Sequence[Level], grid: _Grid) -> tuple[Ints, Ints, Floats]:
    """The first choice of every level, and of every choice the units kept and the cost of what is made again."""
    unit = grid.unit
    begin, keep, pay = [0], [], []
    for level, marks in zip(levels, grid.marks, strict=True):
        lines = [Line(line.cost - level.restoring(line.rate), line.rate) for line in level.lines]
        # What is kept takes whole units, so less than a mark is a unit less.
        exact = level.step % unit == 0 and (not level.partial or level.smallest % unit == 0)
        for mark, following in zip(marks, [*marks[1:], None], strict=True):
            keep.append(mark)
            pay.append(0.0 if following is None else least(lines, (following - exact) * unit))
        begin.append(len(keep))
    return np.array(begin, dtype=np.int64), np.array(keep, dtype=np.int64), np.array(pay, dtype=np.float64)


def _due(lines: Sequence[Line], free: int, unit: int, width: int) -> Floats:
    """float64[width]: g with 0 .. width - 1 units reserved of ``free`` bytes beside the largest visit."""
    kept = np.maximum(0.0, free - np.arange(width, dtype=np.float64) * unit)
    found: Floats = np.zeros(width)
    for line in lines:
        np.maximum(found, line.cost - line.rate * kept, out=found)
    return found


def _own(lines: Sequence[Line], free: int, unit: int, width: int, prices: Sequence[float]) -> Floats:
    """float64[width * prices]: as ``_due``, less the bytes beside the largest visit and the m units, at each price.

    Of these bytes, waiting gradients take some, and partial values the others.
    """
    spare = np.maximum(0.0, free - np.arange(width, dtype=np.float64)[:, None] * unit)
    found: Floats = np.full((width, len(prices)), np.inf)
    for kept in {*corners(lines), 0.0, math.inf}:
        taken = np.minimum(spare, kept)
        cost = np.zeros((width, 1))
        for line in lines:
            np.maximum(cost, line.cost - line.rate * taken, out=cost)
        np.minimum(found, cost - np.array(prices) * (spare - taken), out=found)
    return found.reshape(-1)


_MOST_ROWS, _TURN = 400, 1e8
"""Rows between two looks at the clock, and steps of the innermost loop, which take a tenth of a second.

Neighbouring rows read neighbouring rows: with 400 at a time ResNet-1001 takes 6.4 s, with 20 8.3 s (by hand)."""


_FEWER = (1, 2, 4, 8)
"""Where the programme takes too long, it is tried with half of the most levels, then with a quarter, and an eighth."""


def bounds_of(graph: Graph, room: int, control: Control) -> Iterator[float]:
    """The bounds with some reads left out or none, and with each form of levels.

    Args:
        graph: The graph, without reads of values that pass by its blocks.
        room: Bytes beside the fixed memory.
        control: Ends it early.
    """
    finest = Spine.of(graph)
    spines = [finest]
    forms = [Form.DIVIDED, Form.APART, Form.PLAIN]
    for threshold in thresholds(graph, finest):
        free = without_small(graph, threshold)
        for form in tuple(forms):
            for k, fewer in enumerate(_FEWER):
                if control.stopping():
                    return
                if k == len(spines):
                    spines.append(finest.coarser(graph, MOST_LEVELS // fewer))
                levels = levels_of(free, spines[k], form)
                found = None if levels is None else bound_of(graph, levels, room, control)
                if found is not None:
                    yield found
                    if form is Form.APART:  # no small value makes its levels present, so other thresholds change little
                        forms.remove(form)
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
