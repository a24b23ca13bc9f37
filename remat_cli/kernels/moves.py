"""The moves of annealing, compiled by numba: what to change, and whether to keep the change."""

from __future__ import annotations

from typing import Any

import numpy as np

from remat_cli.kernels.compiling import entry, inner
from remat_cli.kernels.sequence import (
    BEST,
    BEST_COST,
    CAPACITY,
    CHEAPEST,
    COST,
    COSTS,
    COUNT,
    DEAREST,
    EVENTS,
    EXCESS,
    EXTRAS,
    FIRST_VALUE,
    FIXED,
    FOUND,
    INPUT_START,
    INPUTS,
    LEVEL,
    LOGGED,
    NODE,
    NODES,
    POS,
    PRICE,
    PRODUCER,
    RECOMPUTED,
    SEQ,
    SIZE,
    SLOTS,
    VALUES,
    after,
    below,
    delete,
    earlier,
    following,
    insert,
    read_next,
    take_back,
    uniform,
)
from remat_cli.mip import Floats, Ints

_TRIES = 60
_CHAIN = 32
"""Most nodes of a chain that is computed again in one move."""
_DEARER, _CHEAPER = 1 + 2e-4, 1 - 3e-4
"""How the price of excess changes with every move that leaves some, or none."""


@inner
def _relief(m: Any, first: int, last: int, size: int) -> int:
    """By how much excess falls if ``size`` bytes fewer are live in the slots first .. last."""
    if last < first:
        return 0
    levels = m[m[LEVEL] + first : m[LEVEL] + last + 1]
    sum_ = 0
    for q in range(len(levels)):
        sum_ += min(max(levels[q], 0), size)
    return sum_


@inner
def _somewhere(m: Any) -> int:
    """A slot: mostly one that is over the room, if there is one."""
    slots = m[SLOTS]
    start = below(m, slots)
    if m[EXCESS] > 0 and uniform(m) < 0.9:
        for q in range(start, slots):
            if m[m[LEVEL] + q] > 0:
                return q
        for q in range(start):
            if m[m[LEVEL] + q] > 0:
                return q
    return start


@inner
def _waiting(m: Any, f: Any, where: int) -> int:
    """A value that waits in slot ``where`` and may be computed again: the best of a few for its price, or -1."""
    chosen, most, left = -1, -np.inf, 1 + below(m, 5)
    for _ in range(_TRIES):
        v = below(m, m[VALUES])
        k = m[m[PRODUCER] + v]
        event = earlier(m, f, v, where + 1)
        if m[m[FIXED] + k] or event == 0 or not read_next(m, f, v, event):
            continue
        if m[m[POS] + m[m[EVENTS] + m[m[CAPACITY] + v] + event - 1]] == where:
            continue  # the step at hand makes or reads it
        left -= 1
        end = m[SLOTS] - 1
        if event < m[m[COUNT] + v]:
            end = m[m[POS] + m[m[EVENTS] + m[m[CAPACITY] + v] + event]]
        gain = f[PRICE] * _relief(m, after(m, f, v, event), end - 1, m[m[SIZE] + v])
        gain -= f[COSTS + k]
        if gain > most:
            chosen, most = v, gain
        if left == 0:
            break
    return chosen


@inner
def _before_use(m: Any, f: Any, v: int, where: int) -> int:
    """Where to compute v again, which waits in slot ``where``: the instance to come after it, or -1 for the end."""
    event = earlier(m, f, v, where + 1)
    reader, end = -1, m[SLOTS] - 1
    if event < m[m[COUNT] + v]:
        reader = m[m[EVENTS] + m[m[CAPACITY] + v] + event]
        end = m[m[POS] + reader]
    pick = uniform(m)
    if pick < 0.6:
        return reader
    k = m[m[PRODUCER] + v]
    inputs = m[m[INPUT_START] + k + 1] - m[m[INPUT_START] + k]
    if pick < 0.8 and inputs > 0:
        # Right after an input was used last.
        u = m[m[INPUTS] + m[m[INPUT_START] + k] + below(m, inputs)]
        p = after(m, f, u, earlier(m, f, u, end))
        if p > where:
            return following(m, p)
        return reader
    return following(m, where + 1 + below(m, end - where))


@inner
def _drop(m: Any, f: Any, where: int) -> bool:
    """Give up a value that waits in slot ``where`` and compute it again later, with the inputs it lacks."""
    v = _waiting(m, f, where)
    if v < 0:
        return False
    x = insert(m, f, m[m[PRODUCER] + v], _before_use(m, f, v, where))
    if x < 0:
        return False
    _chain(m, f, x)
    return True


@inner
def _chain(m: Any, f: Any, x: int) -> None:
    """Compute inputs of x again too, where that seems cheaper than keeping them, and so on for theirs."""
    longest = int(2.0 ** (5.0 * uniform(m)))  # at most _CHAIN
    queue = np.empty(_CHAIN, np.int64)
    queue[0] = x
    taken, done = 1, 0
    while done < taken < longest:
        x = queue[done]
        k = m[m[NODE] + x]
        for e in range(m[m[INPUT_START] + k], m[m[INPUT_START] + k + 1]):
            u = m[m[INPUTS] + e]
            p = m[m[POS] + x]
            event = earlier(m, f, u, p)
            i = m[m[PRODUCER] + u]
            if taken == longest or m[m[FIXED] + i] or read_next(m, f, u, event + 1):
                continue
            relief = _relief(m, after(m, f, u, event), p - 1, m[m[SIZE] + u])
            if relief > 0 and f[PRICE] * relief > f[COSTS + i] * (0.2 + 1.6 * uniform(m)):
                y = insert(m, f, i, x)
                if y >= 0:
                    queue[taken] = y
                    taken += 1
        done += 1


@inner
def _unread(m: Any, f: Any, x: int) -> bool:
    """Whether nothing reads what the recomputation x makes."""
    k, p = m[m[NODE] + x], m[m[POS] + x]
    for v in range(m[m[FIRST_VALUE] + k], m[m[FIRST_VALUE] + k + 1]):
        if read_next(m, f, v, earlier(m, f, v, p) + 1):
            return False
    return True


@inner
def _remove(m: Any, f: Any, x: int) -> None:
    """Drop the recomputation x, and those that served nothing else."""
    n = m[NODES]
    queue = np.empty(_CHAIN, np.int64)
    queue[0] = x
    taken, done = 1, 0
    while done < taken:
        x = queue[done]
        k, p = m[m[NODE] + x], m[m[POS] + x]
        if not delete(m, f, x):
            return
        for e in range(m[m[INPUT_START] + k], m[m[INPUT_START] + k + 1]):
            u = m[m[INPUTS] + e]
            event = earlier(m, f, u, p)
            y = m[m[EVENTS] + m[m[CAPACITY] + u] + event - 1]
            if y >= n and m[m[NODE] + y] == m[m[PRODUCER] + u] and taken < _CHAIN and _unread(m, f, y):
                known = False
                for i in range(done, taken):
                    known |= queue[i] == y
                if not known:
                    queue[taken] = y
                    taken += 1
        done += 1


@inner
def _shifted(m: Any, f: Any, k: int, p: int) -> int:
    """Where else to put the recomputation of node k that was in slot p: the instance to come after it; -2 nowhere."""
    first, last = m[m[POS] + k] + 1, m[SLOTS] - 1
    pick = uniform(m)
    made = m[m[FIRST_VALUE] + k + 1] - m[m[FIRST_VALUE] + k]
    inputs = m[m[INPUT_START] + k + 1] - m[m[INPUT_START] + k]
    if pick < 0.35 and made > 0:
        v = m[m[FIRST_VALUE] + k] + below(m, made)
        if m[m[COUNT] + v] < 2:
            return -2
        return int(m[m[EVENTS] + m[m[CAPACITY] + v] + 1 + below(m, m[m[COUNT] + v] - 1)])
    if pick < 0.5 and inputs > 0:
        u = m[m[INPUTS] + m[m[INPUT_START] + k] + below(m, inputs)]
        q = after(m, f, u, 1 + below(m, m[m[COUNT] + u]))
    else:
        reach = 8 if pick < 0.8 else 64
        q = p + below(m, 2 * reach + 1) - reach
    return following(m, min(max(q, first), last))


@inner
def _shift_one(m: Any, f: Any) -> None:
    """Put a recomputation elsewhere."""
    x = m[m[RECOMPUTED] + below(m, m[EXTRAS])]
    k, p = m[m[NODE] + x], m[m[POS] + x]
    if not delete(m, f, x):
        return
    anchor = _shifted(m, f, k, p)
    if anchor == -2:
        return
    x = insert(m, f, k, anchor)
    if x >= 0 and uniform(m) < 0.5:
        _chain(m, f, x)


@inner
def _exchange(m: Any, f: Any) -> None:
    """Drop recomputations near one another, and make up for the room that this takes."""
    x = m[m[RECOMPUTED] + below(m, m[EXTRAS])]
    p = m[m[POS] + x]
    _remove(m, f, x)
    dropped = 1
    while uniform(m) < 0.4 and m[EXTRAS] > 0 and dropped < 5:
        # The nearest of some others.
        nearest, least = m[m[RECOMPUTED]], m[SLOTS]
        for _ in range(3):
            y = m[m[RECOMPUTED] + below(m, m[EXTRAS])]
            if abs(m[m[POS] + y] - p) < least:
                nearest, least = y, abs(m[m[POS] + y] - p)
        _remove(m, f, nearest)
        dropped += 1
    for _ in range(dropped + 2):
        if m[EXCESS] == 0 or not _drop(m, f, _somewhere(m)) or uniform(m) < 0.1:
            break


@inner
def _move(m: Any, f: Any) -> None:
    pick = uniform(m)
    adding = 0.45 if m[EXCESS] > 0 else 0.1
    if m[EXTRAS] == 0 or pick < adding:
        _drop(m, f, _somewhere(m))
        return
    pick = (pick - adding) / (1 - adding)
    if pick < 0.3:
        _remove(m, f, m[m[RECOMPUTED] + below(m, m[EXTRAS])])
    elif pick < 0.6:
        _shift_one(m, f)
    else:
        _exchange(m, f)


@inner
def _save(m: Any, f: Any) -> None:
    """Remember the sequence as the best one so far."""
    f[BEST_COST] = f[COST]
    length = 0
    for q in range(m[SLOTS]):
        x = m[m[SEQ] + q]
        if x >= 0:
            m[m[FOUND] + length] = m[m[NODE] + x]
            length += 1
    m[BEST] = length


@entry
def advance(m: Ints, f: Floats, moves: int, heat: float, cooling: float) -> None:
    """Try ``moves`` moves, at temperature ``heat`` that falls by the factor ``cooling`` with each."""
    for _ in range(moves):
        heat *= cooling
        cost, over = f[COST], m[EXCESS]
        m[LOGGED] = 0
        _move(m, f)
        change = f[COST] - cost + f[PRICE] * (m[EXCESS] - over)
        if change > 0 and uniform(m) >= np.exp(-change / heat):
            take_back(m, f)
            f[COST] = cost
        elif m[EXCESS] == 0 and f[COST] < f[BEST_COST] - 1e-12:
            _save(m, f)
        if m[EXCESS] > 0:
            f[PRICE] = min(f[PRICE] * _DEARER, f[DEAREST])
        else:
            f[PRICE] = max(f[PRICE] * _CHEAPER, f[CHEAPEST])
