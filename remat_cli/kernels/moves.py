"""The moves of simulated annealing, compiled by numba: what to change, and whether to accept the change.

Acceptance is that of Kirkpatrick, Gelatt, Vecchi, "Optimization by simulated annealing", Science 220, 1983. Moves
mostly start where memory is short, and prefer values with a high gain: uniform moves would mostly be refused.
"""

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

# The parameters of the moves; the benchmark ``ablation`` halves and doubles them with those of the other kernels.
_TRIES, _FEW = 60, 5
"""Values to sample when one is dropped, and the most candidates among them to compare."""
_STAGE_CUTS = 0.9
"""Probability that a move starts at a slot over the room, if there is one."""
_AT_READER, _AT_INPUT = 0.6, 0.8
"""Cumulative probabilities of where a value is recomputed: right before its reader, right after the last use of an
input, else anywhere in between."""
_LEAST_WORTH, _WORTH_RANGE = 0.2, 1.6
"""An input is recomputed too if the excess that this removes is worth this share of its cost: the smallest share, and
the range of the random share above it."""
_BEFORE_READER, _AFTER_INPUT, _NEAR_BY = 0.35, 0.5, 0.8
"""Cumulative probabilities of where a recomputation is shifted: before a reader of its values, after a use of an input,
nearby, else far away."""
_NEAR, _FAR = 8, 64
"""Slots that count as nearby, and as far away."""
_CHAIN_AFTER_SHIFT = 0.5
"""Probability that inputs of a shifted recomputation are recomputed too."""
_ANOTHER, _MOST_DROPPED, _NEAREST_OF, _ENOUGH = 0.4, 5, 3, 0.1
"""An exchange: the probability of removing another recomputation, the most to remove, the number of samples of which
the nearest is removed, and the probability of stopping after each value that is dropped to make up for them."""
_ADDING_OVER, _ADDING = 0.45, 0.1
"""Probability that a move drops a value: with bytes over the room, and without."""
_REMOVING, _SHIFTING = 0.3, 0.6
"""Cumulative probabilities among the other moves: remove a recomputation, shift one, else exchange some."""
_RISE, _FALL = 1 + 2e-4, 1 - 3e-4
"""Factors of the price of excess after every move with bytes over the room, and without."""


@inner
def _relief(s: State, first: int, last: int, size: int) -> int:
    """By how much the excess falls if ``size`` fewer bytes are live in the slots first .. last."""
    if last < first:
        return 0
    levels = s.level[first : last + 1]
    sum_ = 0
    for q in range(len(levels)):
        sum_ += min(max(levels[q], 0), size)
    return sum_


@inner
def _somewhere(s: State) -> int:
    """A random slot: mostly one over the room, if there is one."""
    slots = s.now.slots
    start = below(s, slots)
    if s.now.excess > 0 and uniform(s) < _STAGE_CUTS:
        for q in range(start, slots):
            if s.level[q] > 0:
                return q
        for q in range(start):
            if s.level[q] > 0:
                return q
    return start


@inner
def _waiting(s: State, where: int) -> int:
    """A value that waits in slot ``where`` and may be recomputed: the one with the highest gain of a sample, or -1.

    A sample, because comparing all values takes time linear in V, and always taking the best would repeat one move.
    """
    chosen, most, left = -1, -np.inf, 1 + below(s, _FEW)
    for _ in range(_TRIES):
        v = below(s, len(s.size))
        k = s.producer[v]
        event = earlier(s, v, where + 1)
        if s.fixed[k] or event == 0 or not read_next(s, v, event):
            continue
        if s.pos[s.events[s.capacity[v] + event - 1]] == where:
            continue  # the node in this slot makes or reads it
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
    """Where to recompute v, which waits in slot ``where``: the instance that follows, or -1 for the end."""
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
        # Right after the last use of an input: then the input need not wait.
        u = s.inputs[s.input_start[k] + below(s, inputs)]
        p = after(s, u, earlier(s, u, end))
        if p > where:
            return following(s, p)
        return reader
    return following(s, where + 1 + below(s, end - where))


@inner
def _drop(s: State, where: int) -> bool:
    """Drop a value that waits in slot ``where`` and recompute it later, with some of its inputs."""
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
    """Recompute inputs of x too if that seems cheaper than keeping them, and their inputs, breadth first."""
    # Short chains are mostly enough, but a step to a better schedule may need a long one: the logarithm of the length
    # is uniform, up to CHAIN.
    longest = int(float(CHAIN) ** uniform(s))
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
            # A random threshold, so that chains which pay off only at their end are tried too.
            relief = _relief(s, after(s, u, event), p - 1, s.size[u])
            if relief > 0 and s.now.price * relief > s.cost[i] * (_LEAST_WORTH + _WORTH_RANGE * uniform(s)):
                y = insert(s, i, x)
                if y >= 0:
                    queue[taken] = y
                    taken += 1
        done += 1


@inner
def _unread(s: State, x: int) -> bool:
    """Whether nothing reads the values of the recomputation x."""
    k, p = s.node[x], s.pos[x]
    for v in range(s.first_value[k], s.first_value[k + 1]):  # noqa: SIM110 - numba takes no generators
        if read_next(s, v, earlier(s, v, p) + 1):
            return False
    return True


@inner
def _remove(s: State, x: int) -> None:
    """Remove the recomputation x and those that then have no reader."""
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
    """A new place for the recomputation of node k from slot p: the instance that follows, or -2 for none."""
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
    """Shift a recomputation to another place."""
    x = s.recomputed[below(s, s.now.extras)]
    k, p = s.node[x], s.pos[x]
    if not delete(s, x):
        return
    anchor = _shifted(s, k, p)
    if anchor == -2:
        return  # it stays removed, which is a move as well
    x = insert(s, k, anchor)
    if x >= 0 and uniform(s) < _CHAIN_AFTER_SHIFT:
        _chain(s, x)


@inner
def _exchange(s: State) -> None:
    """Remove recomputations near each other, and drop values to make up for the room that this takes.

    Neighbours, because the values that they make wait through the same slots: others can then take their place.
    """
    x = s.recomputed[below(s, s.now.extras)]
    p = s.pos[x]
    _remove(s, x)
    dropped = 1
    while uniform(s) < _ANOTHER and s.now.extras > 0 and dropped < _MOST_DROPPED:
        # The nearest of a sample: finding the nearest of all takes a pass over all recomputations.
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
    """Fill a fresh state, or try moves. One entry for both, because numba would compile their shared parts twice.

    Args:
        s: The state.
        start: The sequence to fill it with; empty if the state is filled already.
        moves: Number of moves.
        heat: First temperature, in the unit of costs.
        cooling: Factor of the temperature after each move.
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
            s.now.cost = cost  # exactly: undoing in floats would leave rounding errors that add up
        elif s.now.excess == 0 and s.now.cost < s.now.best_cost - 1e-12:
            _save(s)
        if s.now.excess > 0:
            s.now.price = min(s.now.price * _RISE, s.now.highest)
        else:
            s.now.price = max(s.now.price * _FALL, s.now.lowest)
