"""The dynamic programme over the segments of a chain with choices for every stage, compiled by numba."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

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
        smallest: int64[N], the fewest units of values by which a level is present.
        spare: int64[N], units that may be reserved beside the visits to a level.
        begin: int64[N + 1], the first choice of each level.
        apart: bool[N], whether what is kept of a level takes units beside those by which a level is present.
        keep: int64[choices], units that are kept at least.
        pay: float64[choices], cost of what is computed again at least.
        kind: int64[N], the row of ``due`` of each level.
        due: float64[kinds, width, prices], flat, cost of what is computed again at least because m units are reserved.
        price: float64[prices], prices of a byte of partial values, ascending.
        worth: The price at which no partial value is worth its bytes.
        spared: float64[prices, N + 1], flat, what partial values of the levels before each spare beyond each price.
        restored: float64[prices, N], flat, cost of making the values again by which a level is present, at each price.
        own: float64[kinds, width, prices], flat, as ``due``, less the spare units beside the visit, at the price.
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
    apart: Bools
    keep: Ints
    pay: Floats
    kind: Ints
    due: Floats
    price: Floats
    worth: float
    spared: Floats
    restored: Floats
    own: Floats


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
def fill_served(
    of: Served,
    nothing: Floats,
    best: Floats,
    priced: Floats,
    left: Floats,
    beside: Floats,
    hold: Ints,
    start: int,
    stop: int,
) -> None:
    """Least cost of serving the levels of a segment from the top down.

    Args:
        of: The levels.
        nothing: float64[width * prices] of zeros; a row has ``width`` numbers, for 0 .. width - 1 reserved units, for
            each price.
        best: float64[width]; gets the least costs of the last row.
        priced: float64[rows, width, prices], flat, infinite from row ``start`` on; gets the least costs where spare
            units beside the last visit are paid at the price.
        left: As ``priced``; gets the least costs where partial values at first are paid at the price.
        beside: As ``left``, if units are taken by the values by which some level of the segment is present.
        hold: int64[stop - start], room for the smallest units by which a level of each row is present.
        start: The first row to fill.
        stop: The row after the last one to fill.
    """
    size, prices = len(nothing), len(of.price)
    while start < stop:
        end, length = start, of.last[start] - of.first[start]
        while end < stop and of.last[end] - of.first[end] == length:
            hold[end - start] = of.smallest[of.first[end]]
            end += 1
        # Rows of one length read neighbouring rows, so they go together: most time goes into waiting for memory.
        for offset in range(length + 1):
            for index in range(start, end):
                hold[index - start] = min(hold[index - start], of.smallest[of.first[index] + offset])
                _serve(of, nothing, priced, left, beside, index, of.first[index] + offset, hold[index - start])
        for index in range(start, end):
            row = priced[index * size : (index + 1) * size]
            for m in range(size // prices):
                best[m] = 0.0
                for a in range(prices):
                    best[m] = max(best[m], row[m * prices + a])
            at, to = index * size, (index + 1) * size
            _pay(of, best, left[at:to], beside[at:to], of.first[index], of.last[index])
        start = end


@inner
def _serve(of: Served, nothing: Any, priced: Any, left: Any, beside: Any, index: int, k: int, hold: int) -> None:
    """Lower a row by the schedules of which k is the highest level that is ever the lowest present one."""
    size, prices = len(nothing), len(of.price)
    s, r, width = of.first[index], of.last[index], size // prices
    row = priced[index * size : (index + 1) * size]
    limit, due = width - 1, nothing
    if of.top[k] == k:
        limit, due = min(limit, of.spare[k]), of.due[of.kind[k] * size : (of.kind[k] + 1) * size]
    before = of.top[k - 1] if k > s else -1
    other = of.row_of[s, before] * size if before >= s else -1
    once = of.prefix[k + 1] - of.prefix[s]
    if k == r:
        own = of.own[of.kind[r] * size : (of.kind[r] + 1) * size]
        lower = left[other : other + size] if other >= 0 else nothing
        _lower(row, once - of.tail[r], own, lower, nothing, 0, (limit + 1) * prices)
        return
    lower = beside[other : other + size] if other >= 0 else nothing
    at = of.row_of[k + 1, r] * size
    right = priced[at : at + size]
    for o in range(of.begin[k], of.begin[k + 1]):
        shift = hold + of.keep[o] if of.apart[k] else max(hold, of.keep[o])
        if of.apart[k] or o + 1 == of.begin[k + 1] or of.keep[o + 1] > hold:  # else the next choice takes no more
            end = min(limit, width - 1 - shift) + 1
            _lower(row, once + of.pay[o], due, lower, right, shift * prices, end * prices)


@inner
def _pay(of: Served, best: Any, left: Any, beside: Any, s: int, r: int) -> None:
    """What is spent on the levels s .. r at least, where partial values cost their price; ``best`` without any.

    If they spare c, they take at least (c - spared) / b bytes, with what is spared at any price b; and c / worth.
    """
    prices, n = len(of.price), len(of.top)
    for a in range(prices):
        restored = 0.0
        for j in range(s, r + 1):
            restored = max(restored, of.restored[a * n + j])
        for m in range(len(best)):
            cost = np.inf
            if best[m] < np.inf:
                cost = best[m] * (of.price[a] / of.worth)
                for b in range(a, prices):
                    ratio = of.price[a] / of.price[b] if b > a else 1.0
                    cost = max(cost, ratio * (best[m] - of.spared[b * (n + 1) + r + 1] + of.spared[b * (n + 1) + s]))
            left[m * prices + a] = cost
            beside[m * prices + a] = cost - restored
