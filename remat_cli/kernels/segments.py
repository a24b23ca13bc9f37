"""The dynamic programmes over segments of a chain, compiled by numba: plain functions over arrays."""

from __future__ import annotations

from typing import Any

from remat_cli.kernels.compiling import Cube, Square, entry, inner
from remat_cli.mip import Bools, Floats, Ints


@inner
def _admit(row: Any, once: float, left: Any, right: Any, shift: int, end: int) -> None:
    """Lower row[m], m < end, to ``once`` + left[m] + right[m + shift] if that is less.

    Slices of equal length and a plain choice between two numbers let the compiler vectorise the loop.
    """
    if end <= 0:
        return
    target, first, second = row[:end], left[:end], right[shift : shift + end]
    for m in range(end):
        cost = once + first[m] + second[m]
        target[m] = cost if cost < target[m] else target[m]


@entry
def fill_visits(
    prefix: Floats,
    tail: Floats,
    top: Ints,
    hold: Square,
    sweep: Square,
    pending: Ints,
    visit: Ints,
    nothing: Floats,
    value: Cube,
) -> None:
    """Least cost of visiting the levels of a segment from the top down (see ``visits``).

    Args:
        prefix: float64[N + 1], cost of computing the levels 1 .. k once.
        tail: float64[N + 1], the part of the cost of level k that only level k + 1 needs.
        top: int64[N + 1], the highest level <= k that is visited, 0 if there is none.
        hold: int64[N + 1, N + 1], units that a value kept in (l, k] takes.
        sweep: int64[N + 1, N + 1], units that may be reserved while the levels l + 1 .. k are computed.
        pending: int64[N + 1], units to subtract from ``sweep`` while the next visit is to r.
        visit: int64[N + 1], units that may be reserved beside a visit to k.
        nothing: float64[width] of zeros; 0 .. width - 1 units may be reserved.
        value: float64[N + 1, N + 1, width], all infinite; gets the cost for the levels l + 1 .. r with m units
            reserved.
    """
    n, width = len(prefix) - 1, len(nothing)
    for low in range(n, -1, -1):
        for r in range(low + 1, n + 1):
            if top[r] != r:
                continue
            row = value[low, r]
            for k in range(low + 1, r + 1):
                shift = hold[low, k] if k < r else 0
                limit = min(sweep[low, k] - pending[r], width - 1 - shift)
                if top[k] == k:
                    limit = min(limit, visit[k])
                once = prefix[k] - prefix[low] - (tail[r] if k == r else 0.0)
                left = value[low, top[k - 1]] if top[k - 1] > low else nothing
                right = value[k, r] if k < r else nothing
                _admit(row, once, left, right, shift, limit + 1)


@entry
def fill_persistent(
    prefix: Floats,
    back: Floats,
    top: Ints,
    taped: Bools,
    output: Ints,
    tape: Ints,
    sweep: Square,
    record: Ints,
    rest: Ints,
    waiting: Ints,
    again: Ints,
    nothing: Floats,
    value: Cube,
    early: bool,
) -> None:
    """Rotor's dynamic programme (Beaumont et al., RR-9302, theorem 1), see ``rotor``.

    Args:
        prefix: float64[L + 1], cost of running the blocks 0 .. s - 1 once.
        back: float64[L + 1], cost of the rest of each stage.
        top: int64[L + 1], the highest stage <= t that has a rest or is the last, -1 if there is none.
        taped: bool[L + 1], whether the rest of a stage needs its block to have run right before.
        output: int64[L + 1], units of a_s.
        tape: int64[L], units of abar_(s+1).
        sweep: int64[L + 1, L + 1], units besides a_s and waiting gradients while the blocks s .. j - 1 run.
        record: int64[L], units besides a_s and waiting gradients while block s runs and leaves its tape.
        rest: int64[L + 1], units besides a_s while the rest of a stage runs.
        waiting: int64[L + 1], units of gradients before the rest of a stage runs.
        again: int64[L + 1], the first stage with which a segment that ends at stage t may start if it runs again.
        nothing: float64[width] of zeros; the budget is width - 1 units.
        value: float64[L + 1, L + 1, width], all infinite; gets the least cost for the stages s .. t with m units, a_s
            not counted.
        early: Whether a block may leave its tape before the stages after it have run.
    """
    n, width = len(prefix) - 1, len(nothing)
    for s in range(n, -1, -1):
        block = prefix[s + 1] - prefix[s] if taped[s] else 0.0
        need = max(rest[s], waiting[s] + record[s] if taped[s] else 0)
        alone = value[s, s]
        for m in range(need, width):
            alone[m] = block + back[s]
        for t in range(s + 1, n + 1):
            if top[t] != t:
                continue
            row = value[s, t]
            for j in range(s + 1, t + 1):
                before = top[j - 1]
                if before >= s and s < again[before]:
                    continue
                left = value[s, before] if before >= s else nothing
                need = max(output[j], waiting[t] + sweep[s, j])
                # With m units, m - output[j] are left for (j, t).
                _admit(row[need:], prefix[j] - prefix[s], left[need:], value[j, t], need - output[j], width - need)
            if early and taped[s]:
                need = max(tape[s], waiting[t] + record[s], rest[s])
                _admit(row[need:], block + back[s], nothing[need:], value[s + 1, t], need - tape[s], width - need)
