"""The inner loops of the search of states (``strategies/states``), compiled by numba: functions over tuples of arrays.

The search goes from the end of schedules to their beginning. A state is a set of bits: the nodes that are still to be
computed, for the first time, and the values that what follows needs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from remat_cli.graph.arrays import Arrays
from remat_cli.kernels.compiling import Square, entry, inner
from remat_cli.mip import Bools, Floats, Ints

WORD = 63
"""Bits in a word of a state: shifts of negative numbers keep their sign."""
PAUSED, FULL, EXHAUSTED = -1, -2, -3
"""Why :func:`search` came back without a schedule."""
_FACTORS = 0x2545F4914F6CDD1D, 0x1B873593CC9E2D51
"""Odd numbers that spread the bits of a hash."""
_TAG, _LOW = 0x7FFFFFFF << 32, 0xFFFFFFFF
"""The bits of an entry of a hash table: a part of the hash, and the number of a state."""


class States(NamedTuple):
    """The states of a graph of n nodes and V values: bit k is node k, bit n + v is value v, in words of 63 bits.

    Attributes:
        readers: int64[n, words], the nodes that come after each node: those that read what it makes, or all later ones.
        made: int64[n, words], the values that each node makes.
        read: int64[n, words], the values that it reads.
        key: int64[size, words], the bits of each state.
        cost: float64[size], the least cost of recomputation known from it to the end, in units of C0.
        ahead: float64[size], a bound on that of what comes before it; infinite if nothing can.
        held: int64[size], bytes of its values.
        left: int64[size], number of its nodes.
        following: int64[size], the state after it, -1 if it is the last.
        step: int64[size], the node computed between the two.
        done: bool[size], whether what may come before it has been looked at.
        table: int64[a power of 2], a hash table of the states by their bits (:func:`_entry`), -1 where there is none.
        queue: int64[entries], a heap: states by their price, with entries for earlier, higher prices of some.
        price: float64[entries], the price of each entry.
        level: int64[n], bytes needed before each node if it comes next, -1 if it cannot.
        totals: int64[3], numbers of states, of entries in the queue, and of states that are done.
    """

    readers: Square
    made: Square
    read: Square
    key: Square
    cost: Floats
    ahead: Floats
    held: Ints
    left: Ints
    following: Ints
    step: Ints
    done: Bools
    table: Ints
    queue: Ints
    price: Floats
    level: Ints
    totals: Ints


class Coarse(NamedTuple):
    """The listed states of a coarse graph, see :func:`explore`, whose values stand for those of another.

    Attributes:
        image: int64[V], the bit of each value's image among those of the coarse graph, -1 if it has none; empty if
            there is no coarse graph.
        key: int64[size, words], as in :class:`States`.
        ahead: float64[size], likewise.
        table: int64[a power of 2], likewise.
        nodes: int64[words], the bits of all nodes.
        scratch: int64[words].
    """

    image: Ints
    key: Square
    ahead: Floats
    table: Ints
    nodes: Ints
    scratch: Ints


@inner
def _has(key: Any, bit: int) -> bool:
    return bool((key[bit // WORD] >> np.int64(bit % WORD)) & 1)


@inner
def _meet(first: Any, second: Any) -> bool:
    """Whether two sets have a bit in common."""
    common = np.int64(0)
    for w in range(len(first)):
        common |= first[w] & second[w]
    return bool(common)


@inner
def _hash(key: Any) -> int:
    hashed = np.int64(0)
    for w in range(len(key)):
        hashed = (hashed ^ key[w]) * np.int64(_FACTORS[0])
        hashed ^= (hashed >> np.int64(32)) & np.int64(_LOW)
    hashed *= np.int64(_FACTORS[1])
    return int(hashed ^ ((hashed >> np.int64(29)) & np.int64(0x7FFFFFFFF)))


@inner
def _entry(hashed: int, state: int) -> int:
    """The entry for a state in a hash table: a part of its hash, which nearly all other states lack, and its number."""
    return int((np.int64(hashed) & np.int64(_TAG)) | np.int64(state))


@inner
def _place(table: Ints, keys: Any, key: Any, hashed: int) -> int:
    """The place of a state in a hash table of the states ``keys``, or the empty one for it."""
    mask = len(table) - 1
    place, tag = int(hashed) & mask, np.int64(hashed) & np.int64(_TAG)
    while table[place] >= 0:
        if table[place] & np.int64(_TAG) == tag:
            other, same = keys[table[place] & np.int64(_LOW)], True
            for w in range(len(key)):
                same = same and other[w] == key[w]
            if same:
                break
        place = (place + 1) & mask
    return place


@inner
def _known(table: Ints, keys: Any, key: Any) -> int:
    """The number of a state in a hash table, -1 if it is not there."""
    entry = table[_place(table, keys, key, _hash(key))]
    return int(entry & np.int64(_LOW)) if entry >= 0 else -1


@inner
def _push(s: States, price: float, state: int) -> None:
    """Put a state into the queue, before others of the same price: nearer to the beginning of schedules."""
    at = s.totals[1]
    s.totals[1] += 1
    while at > 0 and s.price[(at - 1) // 2] >= price:
        above = (at - 1) // 2
        s.price[at], s.queue[at] = s.price[above], s.queue[above]
        at = above
    s.price[at], s.queue[at] = price, state


@inner
def _pop(s: States) -> int:
    """Take the first state out of the queue."""
    first = int(s.queue[0])
    s.totals[1] -= 1
    size = s.totals[1]
    price, state = s.price[size], s.queue[size]
    at = 0
    while 2 * at + 1 < size:
        below = 2 * at + 1
        if below + 1 < size and s.price[below + 1] < s.price[below]:
            below += 1
        if s.price[below] >= price:
            break
        s.price[at], s.queue[at] = s.price[below], s.queue[below]
        at = below
    s.price[at], s.queue[at] = price, state
    return first


@inner
def _look(graph: Arrays, s: States, at: int, room: int, least_left: int, forced: bool) -> int:
    """Fill in the levels for state ``at``; a node that may be computed right before it at once, -1 if there is none."""
    n, key = len(graph.cost), s.key[at]
    for k in range(n):
        s.level[k] = -1
        if not _has(key, k):
            continue
        last = s.left[at] > least_left and not _meet(s.readers[k], key)
        if not (last or (not graph.fixed[k] and _meet(s.made[k], key))):
            continue
        level = s.held[at]
        for v in range(graph.first_value[k], graph.first_value[k + 1]):
            if _has(key, n + v):
                level -= graph.size[v]
        for e in range(graph.input_start[k], graph.input_start[k + 1]):
            if not _has(key, n + graph.inputs[e]):
                level += graph.size[graph.inputs[e]]
        if level + graph.own[k] <= room:
            s.level[k] = level
            if forced and last and level <= s.held[at]:
                return k
    return -1


@inner
def _before(graph: Arrays, s: States, at: int, k: int, least_left: int) -> bool:
    """Write the state before node ``k``, computed right before ``at``, behind the others; whether it is its first."""
    key = s.key[s.totals[0]]
    last = s.left[at] > least_left and not _meet(s.readers[k], s.key[at])
    for w in range(len(key)):
        key[w] = (s.key[at, w] & ~s.made[k, w]) | s.read[k, w]
    if last:
        key[k // WORD] &= ~(np.int64(1) << np.int64(k % WORD))
    return last


@inner
def _expected(graph: Arrays, s: States, at: int, k: int, last: bool, coarse: Coarse) -> float:
    """A bound on what comes before the state written by :func:`_before`: that of its image, or that of ``at``."""
    n, key, other = len(graph.cost), s.key[s.totals[0]], coarse.scratch
    after = float(s.ahead[at])
    expected = after if last else max(0.0, after - graph.cost[k])
    if len(coarse.image) == 0:
        return expected
    for w in range(len(other)):
        other[w] = key[w] & coarse.nodes[w]
    for v in range(len(coarse.image)):
        bit = coarse.image[v]
        if bit >= 0 and _has(key, n + v):
            other[bit // WORD] |= np.int64(1) << np.int64(bit % WORD)
    found = _known(coarse.table, coarse.key, other)
    if found >= 0:
        return max(expected, float(coarse.ahead[found]))
    # If the image of the state before has no value less, what comes before it costs no less than before ``at``.
    for v in range(graph.first_value[k], graph.first_value[k + 1]):
        if coarse.image[v] >= 0 and _has(s.key[at], n + v) and not _has(other, coarse.image[v]):
            return expected
    return after


@inner
def _reach(
    graph: Arrays, s: States, at: int, k: int, least_left: int, coarse: Coarse, ceiling: float, urge: float
) -> None:
    """Add the state before node ``k``, which is computed right before state ``at``."""
    fresh = s.totals[0]
    last = _before(graph, s, at, k, least_left)
    cost, left = s.cost[at], s.left[at]
    if last:
        left -= 1
    else:
        cost += graph.cost[k]
    if cost >= ceiling:
        return
    hashed = _hash(s.key[fresh])
    place = _place(s.table, s.key, s.key[fresh], hashed)
    state = int(s.table[place] & np.int64(_LOW)) if s.table[place] >= 0 else -1
    if state >= 0 and s.cost[state] <= cost:
        return
    ahead = _expected(graph, s, at, k, last, coarse)
    if state < 0:
        if cost + ahead >= ceiling:
            return
        state = fresh
        s.table[place] = _entry(hashed, fresh)
        s.totals[0] += 1
        s.held[state], s.left[state], s.ahead[state] = s.level[k], left, ahead
    s.ahead[state] = max(s.ahead[state], ahead)
    s.cost[state], s.following[state], s.step[state], s.done[state] = cost, at, k, False
    _push(s, cost + s.ahead[state] + urge * left, state)


@inner
def _needless(graph: Arrays, s: States, at: int) -> bool:
    """Whether a state with one value less than ``at`` is known, and costs no more."""
    n, fresh = len(graph.cost), s.totals[0]
    key = s.key[fresh]
    for w in range(len(key)):
        key[w] = s.key[at, w]
    for v in range(len(graph.size)):
        bit = n + v
        if _has(key, bit):
            key[bit // WORD] ^= np.int64(1) << np.int64(bit % WORD)
            other = _known(s.table, s.key, key)
            if other >= 0 and s.cost[other] <= s.cost[at]:
                return True
            key[bit // WORD] ^= np.int64(1) << np.int64(bit % WORD)
    return False


@entry
def enter(s: States, urge: float) -> None:
    """Put all states into the hash table, and those that wait into the queue, if there is one."""
    for state in range(s.totals[0]):
        hashed = _hash(s.key[state])
        s.table[_place(s.table, s.key, s.key[state], hashed)] = _entry(hashed, state)
        if not s.done[state] and len(s.queue):
            _push(s, s.cost[state] + s.ahead[state] + urge * s.left[state], state)


@entry
def search(
    graph: Arrays,
    s: States,
    coarse: Coarse,
    room: int,
    least_left: int,
    ceiling: float,
    urge: float,
    most: int,
) -> int:
    """Look at states in the order of their price: their cost, what is expected before them, and ``urge`` for each node.

    Args:
        graph: The graph.
        s: The states so far.
        coarse: Bounds on what comes before a state; all the better with them.
        room: Bytes without fixed memory.
        least_left: States with so many nodes left are searched for; what comes before them is free.
        ceiling: States whose schedules cost as much are left out.
        urge: With 0 the first schedule is a cheapest one; with more it is found sooner.
        most: States to look at in this call.

    Returns:
        The next state with so few nodes left, the beginning of a schedule if these are none; or one of :data:`PAUSED`,
        :data:`FULL`, :data:`EXHAUSTED`.
    """
    n = len(graph.cost)
    for _ in range(most):
        if s.totals[1] == 0:
            return EXHAUSTED
        if s.totals[0] + n >= len(s.cost) or s.totals[1] + n >= len(s.queue):
            return FULL
        at = _pop(s)
        if s.done[at]:
            continue
        s.done[at] = True
        s.totals[2] += 1
        if not _meet(s.key[at], s.key[at]):
            return at
        if _needless(graph, s, at):
            continue
        once = _look(graph, s, at, room, least_left, True)
        if once >= 0:
            _reach(graph, s, at, once, least_left, coarse, ceiling, urge)
            continue
        for k in range(n):
            if s.level[k] >= 0:
                _reach(graph, s, at, k, least_left, coarse, ceiling, urge)
        if s.left[at] == least_left:
            return at
    return PAUSED


@entry
def explore(graph: Arrays, s: States, room: int, least_left: int, starts: Ints, edges: Ints, most: int) -> int:
    """List all states from which the end can be reached, with the steps between them.

    Args:
        graph: The graph.
        s: The states so far; the first ``totals[2]`` have been looked at.
        room: Bytes without fixed memory.
        least_left: Nothing before states with so many nodes left is looked at; what comes before them is free.
        starts: int64[size + 1], where the edges of each state begin.
        edges: int64[entries], the state before each step times 2n, and its node, plus n for a first computation.
        most: States to look at in this call.

    Returns:
        :data:`PAUSED`, :data:`FULL` or :data:`EXHAUSTED`.
    """
    n = len(graph.cost)
    for _ in range(most):
        at = s.totals[2]
        if at == s.totals[0]:
            return EXHAUSTED
        if s.totals[0] + n >= len(s.held) or starts[at] + n >= len(edges):
            return FULL
        s.totals[2] += 1
        s.done[at] = True
        starts[at + 1] = starts[at]
        s.ahead[at] = np.inf
        if s.left[at] == least_left and (least_left or not _meet(s.key[at], s.key[at])):
            s.ahead[at] = 0.0
        _look(graph, s, at, room, least_left, False)
        for k in range(n):
            if s.level[k] >= 0:
                fresh = s.totals[0]
                last = _before(graph, s, at, k, least_left)
                hashed = _hash(s.key[fresh])
                place = _place(s.table, s.key, s.key[fresh], hashed)
                if s.table[place] < 0:
                    s.table[place] = _entry(hashed, fresh)
                    s.totals[0] += 1
                    s.held[fresh], s.left[fresh], s.done[fresh] = s.level[k], s.left[at] - last, False
                edges[starts[at + 1]] = (s.table[place] & np.int64(_LOW)) * 2 * n + k + n * last
                starts[at + 1] += 1
    return PAUSED


@entry
def settle(graph: Arrays, s: States, starts: Ints, edges: Ints) -> bool:
    """Lower ``ahead`` of the listed states to what their next steps say; whether any changed."""
    n, changed = len(graph.cost), False
    for at in range(s.totals[0] - 1, -1, -1):
        best = s.ahead[at]
        for e in range(starts[at], starts[at + 1]):
            before, k = edges[e] // (2 * n), edges[e] % (2 * n)
            best = min(best, s.ahead[before] + (0.0 if k >= n else graph.cost[k]))
        if best < s.ahead[at]:
            s.ahead[at], changed = best, True
    return changed
