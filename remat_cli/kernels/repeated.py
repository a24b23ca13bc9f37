"""The dynamic programme over the segments of a chain with choices for every stage, compiled by numba."""

from __future__ import annotations

from typing import Any, NamedTuple

from remat_cli.kernels.compiling import Square, entry, inner
from remat_cli.mip import Bools, Floats, Ints


@inner
def _better(row: Any, base: float, left: Any, right: Any, shift: int, need: int, width: int) -> None:
    """Lower row[m], m >= need, to ``base`` + left[m] + right[m - shift] if that is less.

    Slices of equal length and a plain choice between two numbers let the compiler vectorise the loop.
    """
    if need >= width:
        return
    target, first, second = row[need:width], left[need:width], right[need - shift : width - shift]
    for k in range(len(target)):
        cost = base + first[k] + second[k]
        target[k] = cost if cost < target[k] else target[k]


class Stages(NamedTuple):
    """The stages 0 .. L of a chain, their choices, and the different segments; one of several equal ones is solved.

    In state q > 0 of a segment, the partial checkpoints q of all its blocks are in memory; in state 0, nothing is.
    Arrays with ``states`` in their shape are flat.

    Attributes:
        first: int64[rows], the first stage of each segment to solve, by growing length.
        last: int64[rows], its last stage.
        row_of: int64[L + 1, L + 1], the row of every segment.
        prefix: float64[states, L + 1], cost of running the blocks 0 .. s - 1 once.
        back: float64[L + 1], cost of the rest of a stage that does not read its block.
        top: int64[L + 1], the highest stage <= t that has a rest or is the last, -1 if there is none.
        taped: bool[L + 1], whether the rest of a stage reads values of its block.
        output: int64[L + 1], units of a_s.
        plain: int64[states, L + 1], units besides a_s, waiting gradients and partial checkpoints while block s runs and
            leaves its output alone.
        held: int64[states, L + 2], units of the partial checkpoints of the blocks 0 .. s - 1.
        again: int64[L + 1], the first stage with which a segment that ends at stage t may start if it runs again.
        waiting: int64[L + 1], units of gradients before the rest of a stage runs.
        rest: int64[L + 1], units while the rest of a stage runs that does not read its block.
        begin: int64[states (L + 1) + 1], the first choice of each stage.
        cost: float64[choices], cost of block and rest.
        kept: int64[choices], units kept between them.
        record: int64[choices], units besides a_s, waiting gradients and partial checkpoints while the block runs.
        serve: int64[choices], units besides a_s while the rest runs.
    """

    first: Ints
    last: Ints
    row_of: Square
    prefix: Floats
    back: Floats
    top: Ints
    taped: Bools
    output: Ints
    plain: Ints
    held: Ints
    again: Ints
    waiting: Ints
    rest: Ints
    begin: Ints
    cost: Floats
    kept: Ints
    record: Ints
    serve: Ints


@entry
def fill_chosen(of: Stages, nothing: Floats, value: Floats, start: int, stop: int) -> None:
    """Rotor's programme (Beaumont et al., RR-9302) with several choices per stage (Zhao et al., Rockmate, ICML 2023).

    Of a segment in a state, m units include the partial checkpoints that are in memory.

    Args:
        of: The chain.
        nothing: float64[width] of zeros; a row has ``width`` numbers, for 0 .. width - 1 units.
        value: float64[states * rows * width], infinite from row ``start`` of each state on; gets the least costs.
        start: The first row to fill.
        stop: The row after the last one to fill.
    """
    width, count, rows = len(nothing), len(of.top), len(of.first)
    for index in range(start, stop):
        for state in range(len(of.plain) // count):
            at = (state * rows + index) * width
            row = value[at : at + width]
            if state > 0:  # what is in memory may go
                below = at - rows * width
                _better(row, 0.0, value[below : below + width], nothing, 0, 0, width)
            _fill(of, nothing, value, row, of.first[index], of.last[index], state)


@inner
def _fill(of: Stages, nothing: Any, value: Any, row: Any, s: int, t: int, state: int) -> None:
    """Lower the row of the segment (s, t) in a state."""
    width, count = len(nothing), len(of.top)
    table, begin = state * len(of.first), state * count + s
    own = state * (count + 1)
    there = of.held[own + t + 1] - of.held[own + s]
    if s == t:
        if of.taped[s]:
            for o in range(of.begin[begin], of.begin[begin + 1]):
                need = max(of.serve[o], of.waiting[s] + of.record[o] + there)
                _better(row, of.cost[o], nothing, nothing, 0, need, width)
        else:
            _better(row, of.back[s], nothing, nothing, 0, of.rest[s], width)
        return
    for left in range(len(of.plain) // count if state == 0 else state + 1):
        sweep, leaving = 0, left * (count + 1)
        for j in range(s + 1, t + 1):
            # While block j - 1 runs, its input is there too, unless that is a_s.
            beside = there if state > 0 else of.held[leaving + j] - of.held[leaving + s]
            sweep = max(sweep, of.plain[state * count + j - 1] + beside + (of.output[j - 1] if j - 1 > s else 0))
            before = of.top[j - 1]
            if before >= s and s < of.again[before]:
                continue
            staying = of.output[j]
            if before >= s:
                staying += of.held[leaving + before + 1] - of.held[leaving + s]
            need = max(staying, of.waiting[t] + sweep)
            at = (table + of.row_of[j, t]) * width
            once, right = of.prefix[state * count + j] - of.prefix[state * count + s], value[at : at + width]
            if before >= s:
                other = (left * len(of.first) + of.row_of[s, before]) * width
                _better(row, once, value[other : other + width], right, staying, need, width)
            elif left == 0:
                _better(row, once, nothing, right, staying, need, width)
    if of.taped[s]:
        at = (table + of.row_of[s + 1, t]) * width
        for o in range(of.begin[begin], of.begin[begin + 1]):
            need = max(of.kept[o], of.waiting[t] + of.record[o] + there, of.serve[o])
            _better(row, of.cost[o], nothing, value[at : at + width], of.kept[o], need, width)


class Served(NamedTuple):
    """The levels 0 .. N - 1 of a training step (see ``strategies/repeated/bound``), and the different segments.

    Attributes:
        first: int64[rows], the first level of each segment to solve, by growing length.
        last: int64[rows], its last level, which is visited.
        row_of: int64[N, N], the row of every segment.
        prefix: float64[N + 1], cost of computing the levels before each once.
        tail: float64[N], the part of the cost that only the next level needs.
        top: int64[N], the highest visited level up to each, -1 if there is none.
        smallest: int64[N], units of the smallest value that counts.
        spare: int64[N], units that may be reserved beside the visits to a level.
        begin: int64[N + 1], the first choice of each level.
        keep: int64[choices], units that are kept at least.
        pay: float64[choices], cost of what is computed again at least.
        kind: int64[N], the row of ``due`` of each level.
        due: float64[kinds * width], cost of what is computed again at least because m units are reserved.
    """

    first: Ints
    last: Ints
    row_of: Square
    prefix: Floats
    tail: Floats
    top: Ints
    smallest: Ints
    spare: Ints
    begin: Ints
    keep: Ints
    pay: Floats
    kind: Ints
    due: Floats


@inner
def _lower(row: Any, base: float, due: Any, left: Any, right: Any, shift: int, end: int) -> None:
    """Lower row[m], m < end, to ``base`` + due[m] + left[m] + right[m + shift] if that is less."""
    if end <= 0:
        return
    target, here, first, second = row[:end], due[:end], left[:end], right[shift : shift + end]
    for m in range(end):
        cost = base + here[m] + first[m] + second[m]
        target[m] = cost if cost < target[m] else target[m]


@entry
def fill_served(of: Served, nothing: Floats, value: Floats, start: int, stop: int) -> None:
    """Least cost of serving the levels of a segment from the top down.

    Args:
        of: The levels.
        nothing: float64[width] of zeros; a row has ``width`` numbers, for 0 .. width - 1 reserved units.
        value: float64[rows * width], infinite from row ``start`` on; gets the least costs.
        start: The first row to fill.
        stop: The row after the last one to fill.
    """
    width = len(nothing)
    for index in range(start, stop):
        s, r = of.first[index], of.last[index]
        row = value[index * width : (index + 1) * width]
        hold = of.smallest[s]
        for k in range(s, r + 1):
            hold = min(hold, of.smallest[k])
            limit, due = width - 1, nothing
            if of.top[k] == k:
                limit, due = min(limit, of.spare[k]), of.due[of.kind[k] * width : (of.kind[k] + 1) * width]
            before = of.top[k - 1] if k > s else -1
            left = nothing
            if before >= s:
                other = of.row_of[s, before] * width
                left = value[other : other + width]
            once = of.prefix[k + 1] - of.prefix[s]
            if k == r:
                _lower(row, once - of.tail[r], due, left, nothing, 0, limit + 1)
                continue
            at = of.row_of[k + 1, r] * width
            right = value[at : at + width]
            for o in range(of.begin[k], of.begin[k + 1]):
                shift = max(hold, of.keep[o])
                _lower(row, once + of.pay[o], due, left, right, shift, min(limit, width - 1 - shift) + 1)
