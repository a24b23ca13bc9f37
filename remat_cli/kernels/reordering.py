"""The inner loop of the search of all schedules in any order, compiled by numba: plain functions over tuples of arrays.

The search goes from the end of schedules to their beginning (``strategies/ordering/any_order``). A state is a set of
bits: the nodes that are still to be computed, for the first time, and the values that what follows needs.
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


class States(NamedTuple):
    """The states of a graph of n nodes and V values: bit k is node k, bit n + v is value v, in words of 63 bits.

    Attributes:
        readers: int64[n, words], the nodes that read what each node makes.
        made: int64[n, words], the values that each node makes.
        read: int64[n, words], the values that it reads.
        key: int64[size, words], the bits of each state.
        cost: float64[size], the least cost of recomputation known from it to the end, in units of C0.
        held: int64[size], bytes of its values.
        left: int64[size], number of its nodes.
        following: int64[size], the state after it, -1 if it is the last.
        step: int64[size], the node computed between the two.
        done: bool[size], whether what may come before it has been looked at.
        table: int64[a power of 2], a hash table: states by their bits, -1 where there is none.
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
def _place(s: States, key: Any) -> int:
    """The place of a state in the hash table, or the empty one for it."""
    hashed = np.int64(0)
    for w in range(len(key)):
        hashed = (hashed ^ key[w]) * np.int64(_FACTORS[0])
        hashed ^= (hashed >> np.int64(32)) & np.int64(0xFFFFFFFF)
    hashed *= np.int64(_FACTORS[1])
    hashed ^= (hashed >> np.int64(29)) & np.int64(0x7FFFFFFFF)
    mask = len(s.table) - 1
    place = int(hashed) & mask
    while s.table[place] >= 0:
        other, same = s.key[s.table[place]], True
        for w in range(len(key)):
            same = same and other[w] == key[w]
        if same:
            break
        place = (place + 1) & mask
    return place


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
def _look(graph: Arrays, s: States, at: int, room: int) -> int:
    """Fill in the levels for state ``at``; a node that may be computed right before it at once, -1 if there is none."""
    n, key = len(graph.cost), s.key[at]
    for k in range(n):
        s.level[k] = -1
        last = not _meet(s.readers[k], key)
        if not _has(key, k) or not (last or (not graph.fixed[k] and _meet(s.made[k], key))):
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
            if last and level <= s.held[at]:
                return k
    return -1


@inner
def _reach(graph: Arrays, s: States, at: int, k: int, ceiling: float, urge: float) -> None:
    """Add the state before node ``k``, which is computed right before state ``at``."""
    fresh = s.totals[0]
    key, last = s.key[fresh], not _meet(s.readers[k], s.key[at])
    for w in range(len(key)):
        key[w] = (s.key[at, w] & ~s.made[k, w]) | s.read[k, w]
    cost, left = s.cost[at], s.left[at]
    if last:
        left -= 1
        key[k // WORD] &= ~(np.int64(1) << np.int64(k % WORD))
    else:
        cost += graph.cost[k]
    if cost >= ceiling:
        return
    place = _place(s, key)
    state = s.table[place]
    if state < 0:
        state = s.table[place] = fresh
        s.totals[0] += 1
        s.held[state], s.left[state] = s.level[k], left
    elif s.cost[state] <= cost:
        return
    s.cost[state], s.following[state], s.step[state], s.done[state] = cost, at, k, False
    _push(s, cost + urge * left, state)


@entry
def enter(s: States, urge: float) -> None:
    """Put all states into the hash table, and those that wait into the queue."""
    for state in range(s.totals[0]):
        s.table[_place(s, s.key[state])] = state
        if not s.done[state]:
            _push(s, s.cost[state] + urge * s.left[state], state)


@entry
def search(graph: Arrays, s: States, room: int, ceiling: float, urge: float, most: int) -> int:
    """Look at states in the order of their price: their cost, and ``urge`` for each node that is still to be computed.

    Args:
        graph: The graph.
        s: The states so far.
        room: Bytes without fixed memory.
        ceiling: States that cost as much are left out.
        urge: With 0 the first schedule is a cheapest one; with more it is found sooner.
        most: States to look at in this call.

    Returns:
        The state at the beginning of a schedule, or one of :data:`PAUSED`, :data:`FULL`, :data:`EXHAUSTED`.
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
        once = _look(graph, s, at, room)
        if once >= 0:
            _reach(graph, s, at, once, ceiling, urge)
            continue
        for k in range(n):
            if s.level[k] >= 0:
                _reach(graph, s, at, k, ceiling, urge)
    return PAUSED
