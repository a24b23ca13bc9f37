"""The moves of annealing, compiled by numba: what to change, and whether to keep the change."""

from __future__ import annotations

import numpy as np

from remat_cli.kernels.compiling import entry, inner
from remat_cli.kernels.sequence import (
    CHAIN,
    after,
    below,
    delete,
    earlier,
    following,
    insert,
    load,
    read_next,
    take_back,
    uniform,
)
from remat_cli.kernels.state import State
from remat_cli.mip import Ints

# What steers the moves. All of it is untuned: it stands as it was first written.
_TRIES, _FEW = 60, 5
"""Values looked at for one to give up, and how many of those that can be are compared at most."""
_CROWDED = 0.9
"""How often a move starts where memory is short, if it is anywhere."""
_AT_READER, _AT_INPUT = 0.6, 0.8
"""A value is computed again right before its reader, or (up to the second) right after an input was used last, or
anywhere in between."""
_LEAST_WORTH, _WORTH_RANGE = 0.2, 1.6
"""An input is computed again, too, if what it frees is worth so much of its cost: a factor from the first up."""
_BEFORE_READER, _AFTER_INPUT, _NEAR_BY = 0.35, 0.5, 0.8
"""A recomputation is put before a reader of what it makes, or after a use of an input, or near by, or else far off."""
_NEAR, _FAR = 8, 64
"""Slots: near by, and far off."""
_CHAIN_AFTER_SHIFT = 0.5
"""How often the inputs of a recomputation that was put elsewhere are computed again, too."""
_ANOTHER, _MOST_DROPPED, _NEAREST_OF, _ENOUGH = 0.4, 5, 3, 0.1
"""An exchange drops another recomputation so often, so many at most, each the nearest of so many; and each time that it
has made up for some of it, ends so often."""
_ADDING_OVER, _ADDING = 0.45, 0.1
"""How often a move gives up a value: with bytes over the room, and without."""
_REMOVING, _SHIFTING = 0.3, 0.6
"""Of the other moves, the share that drop a recomputation, and up to which they put one elsewhere; the rest exchange
some."""
_DEARER, _CHEAPER = 1 + 2e-4, 1 - 3e-4
"""How the price of excess changes with every move that leaves some, or none."""


@inner
def _relief(s: State, first: int, last: int, size: int) -> int:
    """By how much excess falls if ``size`` bytes fewer are live in the slots first .. last."""
    if last < first:
        return 0
    levels = s.level[first : last + 1]
    sum_ = 0
    for q in range(len(levels)):
        sum_ += min(max(levels[q], 0), size)
    return sum_


@inner
def _somewhere(s: State) -> int:
    """A slot: mostly one that is over the room, if there is one."""
    slots = s.now.slots
    start = below(s, slots)
    if s.now.excess > 0 and uniform(s) < _CROWDED:
        for q in range(start, slots):
            if s.level[q] > 0:
                return q
        for q in range(start):
            if s.level[q] > 0:
                return q
    return start


@inner
def _waiting(s: State, where: int) -> int:
    """A value that waits in slot ``where`` and may be computed again: the best of a few for its price, or -1."""
    chosen, most, left = -1, -np.inf, 1 + below(s, _FEW)
    for _ in range(_TRIES):
        v = below(s, len(s.size))
        k = s.producer[v]
        event = earlier(s, v, where + 1)
        if s.fixed[k] or event == 0 or not read_next(s, v, event):
            continue
        if s.pos[s.events[s.capacity[v] + event - 1]] == where:
            continue  # the step at hand makes or reads it
        left -= 1
        end = s.now.slots - 1
        if event < s.used[v]:
            end = s.pos[s.events[s.capacity[v] + event]]
        gain = s.now.price * _relief(s, after(s, v, event), end - 1, s.size[v])
        gain -= s.cost[k]
        if gain > most:
            chosen, most = v, gain
        if left == 0:
            break
    return chosen


@inner
def _before_use(s: State, v: int, where: int) -> int:
    """Where to compute v again, which waits in slot ``where``: the instance to come after it, or -1 for the end."""
    event = earlier(s, v, where + 1)
    reader, end = -1, s.now.slots - 1
    if event < s.used[v]:
        reader = s.events[s.capacity[v] + event]
        end = s.pos[reader]
    pick = uniform(s)
    if pick < _AT_READER:
        return reader
    k = s.producer[v]
    inputs = s.input_start[k + 1] - s.input_start[k]
    if pick < _AT_INPUT and inputs > 0:
        # Right after an input was used last.
        u = s.inputs[s.input_start[k] + below(s, inputs)]
        p = after(s, u, earlier(s, u, end))
        if p > where:
            return following(s, p)
        return reader
    return following(s, where + 1 + below(s, end - where))


@inner
def _drop(s: State, where: int) -> bool:
    """Give up a value that waits in slot ``where`` and compute it again later, with the inputs it lacks."""
    v = _waiting(s, where)
    if v < 0:
        return False
    x = insert(s, s.producer[v], _before_use(s, v, where))
    if x < 0:
        return False
    _chain(s, x)
    return True


@inner
def _chain(s: State, x: int) -> None:
    """Compute inputs of x again too, where that seems cheaper than keeping them, and so on for theirs."""
    longest = int(2.0 ** (5.0 * uniform(s)))  # at most CHAIN
    queue = s.queue
    queue[0] = x
    taken, done = 1, 0
    while done < taken < longest:
        x = queue[done]
        k = s.node[x]
        for e in range(s.input_start[k], s.input_start[k + 1]):
            u = s.inputs[e]
            p = s.pos[x]
            event = earlier(s, u, p)
            i = s.producer[u]
            if taken == longest or s.fixed[i] or read_next(s, u, event + 1):
                continue
            relief = _relief(s, after(s, u, event), p - 1, s.size[u])
            if relief > 0 and s.now.price * relief > s.cost[i] * (_LEAST_WORTH + _WORTH_RANGE * uniform(s)):
                y = insert(s, i, x)
                if y >= 0:
                    queue[taken] = y
                    taken += 1
        done += 1


@inner
def _unread(s: State, x: int) -> bool:
    """Whether nothing reads what the recomputation x makes."""
    k, p = s.node[x], s.pos[x]
    for v in range(s.first_value[k], s.first_value[k + 1]):  # noqa: SIM110 - numba takes no generators
        if read_next(s, v, earlier(s, v, p) + 1):
            return False
    return True


@inner
def _remove(s: State, x: int) -> None:
    """Drop the recomputation x, and those that served nothing else."""
    n = len(s.own)
    queue = s.queue
    queue[0] = x
    taken, done = 1, 0
    while done < taken:
        x = queue[done]
        k, p = s.node[x], s.pos[x]
        if not delete(s, x):
            return
        for e in range(s.input_start[k], s.input_start[k + 1]):
            u = s.inputs[e]
            event = earlier(s, u, p)
            y = s.events[s.capacity[u] + event - 1]
            if y >= n and s.node[y] == s.producer[u] and taken < CHAIN and _unread(s, y):
                known = False
                for i in range(done, taken):
                    known |= queue[i] == y
                if not known:
                    queue[taken] = y
                    taken += 1
        done += 1


@inner
def _shifted(s: State, k: int, p: int) -> int:
    """Where else to put the recomputation of node k that was in slot p: the instance to come after it; -2 nowhere."""
    first, last = s.pos[k] + 1, s.now.slots - 1
    pick = uniform(s)
    made = s.first_value[k + 1] - s.first_value[k]
    inputs = s.input_start[k + 1] - s.input_start[k]
    if pick < _BEFORE_READER and made > 0:
        v = s.first_value[k] + below(s, made)
        if s.used[v] < 2:
            return -2
        return int(s.events[s.capacity[v] + 1 + below(s, s.used[v] - 1)])
    if pick < _AFTER_INPUT and inputs > 0:
        u = s.inputs[s.input_start[k] + below(s, inputs)]
        q = after(s, u, 1 + below(s, s.used[u]))
    else:
        reach = _NEAR if pick < _NEAR_BY else _FAR
        q = p + below(s, 2 * reach + 1) - reach
    return following(s, min(max(q, first), last))


@inner
def _shift_one(s: State) -> None:
    """Put a recomputation elsewhere."""
    x = s.recomputed[below(s, s.now.extras)]
    k, p = s.node[x], s.pos[x]
    if not delete(s, x):
        return
    anchor = _shifted(s, k, p)
    if anchor == -2:
        return
    x = insert(s, k, anchor)
    if x >= 0 and uniform(s) < _CHAIN_AFTER_SHIFT:
        _chain(s, x)


@inner
def _exchange(s: State) -> None:
    """Drop recomputations near one another, and make up for the room that this takes."""
    x = s.recomputed[below(s, s.now.extras)]
    p = s.pos[x]
    _remove(s, x)
    dropped = 1
    while uniform(s) < _ANOTHER and s.now.extras > 0 and dropped < _MOST_DROPPED:
        # The nearest of some others.
        nearest, least = s.recomputed[0], s.now.slots
        for _ in range(_NEAREST_OF):
            y = s.recomputed[below(s, s.now.extras)]
            if abs(s.pos[y] - p) < least:
                nearest, least = y, abs(s.pos[y] - p)
        _remove(s, nearest)
        dropped += 1
    for _ in range(dropped + 2):
        if s.now.excess == 0 or not _drop(s, _somewhere(s)) or uniform(s) < _ENOUGH:
            break


@inner
def _move(s: State) -> None:
    pick = uniform(s)
    adding = _ADDING_OVER if s.now.excess > 0 else _ADDING
    if s.now.extras == 0 or pick < adding:
        _drop(s, _somewhere(s))
        return
    pick = (pick - adding) / (1 - adding)
    if pick < _REMOVING:
        _remove(s, s.recomputed[below(s, s.now.extras)])
    elif pick < _SHIFTING:
        _shift_one(s)
    else:
        _exchange(s)


@inner
def _save(s: State) -> None:
    """Remember the sequence as the best one so far."""
    s.now.best_cost = s.now.cost
    length = 0
    for q in range(s.now.slots):
        x = s.seq[q]
        if x >= 0:
            s.found[length] = s.node[x]
            length += 1
    s.now.best = length


@entry
def advance(s: State, start: Ints, moves: int, heat: float, cooling: float) -> None:
    """Fill a fresh state, or try moves. One entry for both, for numba would compile what they share twice.

    Args:
        s: The state.
        start: The sequence to fill it with; empty for a state that is filled.
        moves: Their number.
        heat: First temperature, in the unit of costs.
        cooling: By what factor it falls with each move.
    """
    if len(start) > 0:
        load(s, start)
    for _ in range(moves):
        heat *= cooling
        cost, over = s.now.cost, s.now.excess
        s.now.logged = 0
        _move(s)
        change = s.now.cost - cost + s.now.price * (s.now.excess - over)
        if change > 0 and uniform(s) >= np.exp(-change / heat):
            take_back(s)
            s.now.cost = cost
        elif s.now.excess == 0 and s.now.cost < s.now.best_cost - 1e-12:
            _save(s)
        if s.now.excess > 0:
            s.now.price = min(s.now.price * _DEARER, s.now.dearest)
        else:
            s.now.price = max(s.now.price * _CHEAPER, s.now.cheapest)
