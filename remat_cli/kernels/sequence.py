"""The state of an annealed sequence and its two elementary changes, compiled by numba.

The sequence lies in slots with holes among them, so that a computation finds a place without moving the rest. For every
value the events that concern it (computations and reads) are kept in order of their slots. The level of a slot is what
is over the room (or, if negative, left of it) while the slot runs. A change alters the life of a few values over a
range of slots each, and only those are walked over, by loops that compilers vectorise. A value is live
between two consecutive events exactly when the second is a read, and after the last event when it is a graph output.

Every change is put down in a log, so that a move of many changes can be taken back.

Everything lies in two arrays, ``m`` of int64 and ``f`` of float64: passing a structure of many arrays costs numba more
than most of the functions here do. ``m`` begins with the numbers and the starts of the tables that are listed below.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from remat_cli.kernels.compiling import entry, inner
from remat_cli.mip import Floats, Ints

HOLE = -(2**61)
"""Own bytes of a hole: never over the room, whatever is live."""
_FAR = 48
"""With no hole within so many slots, the holes are spread evenly again."""
LOG_SIZE = 512

# Numbers at the start of ``m``: nodes, values, instances that there is room for (0 .. n-1 are the first computations),
# slots in use, recomputations, instances not in use, changes in the log, length of the best sequence so far, state of
# the random generator, and bytes over the room, summed over the slots.
NODES, VALUES, INSTANCES, SLOTS, EXTRAS, FREE, LOGGED, BEST, RANDOM, EXCESS = range(10)

# Where the tables of ``m`` start.
#   OWN[n]          bytes of outputs and workspace, less the room
#   SIZE[V]         bytes                           PRODUCER[V]     node
#   FIRST_VALUE[n + 1], INPUT_START[n + 1] (into INPUTS)
#   OUTPUT[V]       whether it is a graph output    FIXED[n]        whether it may be computed only once
#   CAPACITY[V + 1] where its events start          EVENTS          instances by value, in order of their slots
#   COUNT[V]        events of each value            NODE[x], POS[x] node and slot of an instance
#   SEQ[slot]       the instance there, -1 for a hole; the last slot in use stays one
#   LEVEL[slot]     bytes live while it runs, less the room
#   RECOMPUTED      recomputations in use           PLACE[x]        where x is among them
#   SPARE           instances not in use            FOUND           nodes of the best sequence so far
#   LOG[change, 3]  an inserted instance; or -1, the node that was deleted, and the instance that came after it
OWN, SIZE, PRODUCER, FIRST_VALUE, INPUT_START, INPUTS, OUTPUT, FIXED, CAPACITY, EVENTS = range(10, 20)
COUNT, NODE, POS, SEQ, LEVEL, RECOMPUTED, PLACE, SPARE, FOUND, LOG = range(20, 30)
HEADER = 30

# What ``f`` holds: cost of the sequence, price of a byte of excess and its limits, cost of the best sequence, and costs
# of the nodes.
COST, PRICE, CHEAPEST, DEAREST, BEST_COST, COSTS = range(6)


@inner
def uniform(m: Any) -> float:
    """A number in [0, 1), by xorshift64*."""
    x = np.uint64(m[RANDOM])
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    m[RANDOM] = np.int64(x)
    return float((x * np.uint64(0x2545F4914F6CDD1D)) >> np.uint64(11)) * 2.0**-53


@inner
def below(m: Any, n: int) -> int:
    """A whole number in [0, n)."""
    return int(uniform(m) * n)


@inner
def earlier(m: Any, f: Any, v: int, p: int) -> int:
    """Number of events of v in slots before p."""
    start = m[m[CAPACITY] + v]
    low, high = 0, m[m[COUNT] + v]
    while low < high:
        middle = (low + high) // 2
        if m[m[POS] + m[m[EVENTS] + start + middle]] < p:
            low = middle + 1
        else:
            high = middle
    return low


@inner
def read_next(m: Any, f: Any, v: int, event: int) -> bool:
    """Whether an event of v is a read, or v stays to the end after its last event."""
    if event >= m[m[COUNT] + v]:
        return bool(m[m[OUTPUT] + v])
    return bool(m[m[NODE] + m[m[EVENTS] + m[m[CAPACITY] + v] + event]] != m[m[PRODUCER] + v])


@inner
def after(m: Any, f: Any, v: int, event: int) -> int:
    """The slot after that of the event before ``event``: the first one in which v waits for it."""
    return int(m[m[POS] + m[m[EVENTS] + m[m[CAPACITY] + v] + event - 1]]) + 1


@inner
def _shift(m: Any, first: int, last: int, amount: int) -> None:
    """Add ``amount`` to what is live in each of the slots first .. last."""
    if last < first:
        return
    levels = m[m[LEVEL] + first : m[LEVEL] + last + 1]
    change = 0
    for q in range(len(levels)):
        was = levels[q]
        now = was + amount
        change += max(now, 0) - max(was, 0)
        levels[q] = now
    m[EXCESS] += change


@inner
def _add_event(m: Any, f: Any, v: int, event: int, x: int) -> None:
    start = m[m[CAPACITY] + v]
    for k in range(m[m[COUNT] + v], event, -1):
        m[m[EVENTS] + start + k] = m[m[EVENTS] + start + k - 1]
    m[m[EVENTS] + start + event] = x
    m[m[COUNT] + v] += 1


@inner
def _drop_event(m: Any, f: Any, v: int, event: int) -> None:
    start = m[m[CAPACITY] + v]
    for k in range(event, m[m[COUNT] + v] - 1):
        m[m[EVENTS] + start + k] = m[m[EVENTS] + start + k + 1]
    m[m[COUNT] + v] -= 1


@inner
def _has_room(m: Any, f: Any, k: int) -> bool:
    """Whether the tables can take another computation of node k."""
    if m[FREE] == 0:
        return False
    for v in range(m[m[FIRST_VALUE] + k], m[m[FIRST_VALUE] + k + 1]):
        if m[m[COUNT] + v] >= m[m[CAPACITY] + v + 1] - m[m[CAPACITY] + v]:
            return False
    for e in range(m[m[INPUT_START] + k], m[m[INPUT_START] + k + 1]):
        u = m[m[INPUTS] + e]
        if m[m[COUNT] + u] >= m[m[CAPACITY] + u + 1] - m[m[CAPACITY] + u]:
            return False
    return True


@inner
def _own(m: Any, f: Any, p: int) -> int:
    x = m[m[SEQ] + p]
    return m[m[OWN] + m[m[NODE] + x]] if x >= 0 else HOLE


@inner
def _open(m: Any, p: int) -> int:
    """Move the nearest hole to right before what is in slot p; the hole's slot, or -1 if none is near."""
    seq, level, pos = m[SEQ], m[LEVEL], m[POS]
    left, right, last = p - 1, p, m[SLOTS] - 1
    for _ in range(_FAR):
        if left >= 0:
            if m[seq + left] < 0:
                for q in range(left, p - 1):
                    m[seq + q], m[level + q] = m[seq + q + 1], m[level + q + 1]
                    m[pos + m[seq + q]] = q
                return p - 1
            left -= 1
        if right < last:
            if m[seq + right] < 0:
                for q in range(right, p, -1):
                    m[seq + q], m[level + q] = m[seq + q - 1], m[level + q - 1]
                    m[pos + m[seq + q]] = q
                return p
            right += 1
    return -1


@inner
def _spread(m: Any, f: Any) -> None:
    """Put one hole after every second instance."""
    seq, level = m[SEQ], m[LEVEL]
    used = m[INSTANCES] - m[FREE]
    was, held = m[seq : seq + m[SLOTS]].copy(), m[level : level + m[SLOTS]].copy()
    slots = used + used // 2 + 64
    m[SLOTS] = slots
    q, i = slots - 1, used
    m[seq + q], m[level + q] = -1, held[-1]
    for p in range(len(was) - 2, -1, -1):
        x = was[p]
        if x < 0:
            continue
        i -= 1
        target = i * (slots - 1) // used
        waiting = m[level + q] - _own(m, f, q)
        while q > target + 1:
            q -= 1
            m[seq + q], m[level + q] = -1, waiting + HOLE
        q = target
        m[seq + q], m[level + q] = x, held[p]
        m[m[POS] + x] = q


@inner
def _insert(m: Any, f: Any, k: int, anchor: int) -> int:
    """Compute node k again right before the instance ``anchor`` (-1: at the end); the new instance."""
    p = _open(m, m[m[POS] + anchor] if anchor >= 0 else m[SLOTS] - 1)
    if p < 0:
        _spread(m, f)
        p = _open(m, m[m[POS] + anchor] if anchor >= 0 else m[SLOTS] - 1)
    m[FREE] -= 1
    x = m[m[SPARE] + m[FREE]]
    m[m[LEVEL] + p] = m[m[LEVEL] + p + 1] - _own(m, f, p + 1) + m[m[OWN] + k]
    m[m[SEQ] + p], m[m[NODE] + x], m[m[POS] + x] = x, k, p
    m[EXCESS] += max(m[m[LEVEL] + p], 0)
    f[COST] += f[COSTS + k]
    for v in range(m[m[FIRST_VALUE] + k], m[m[FIRST_VALUE] + k + 1]):
        event = earlier(m, f, v, p)
        if read_next(m, f, v, event):
            _shift(m, after(m, f, v, event), p, -m[m[SIZE] + v])
        _add_event(m, f, v, event, x)
    for e in range(m[m[INPUT_START] + k], m[m[INPUT_START] + k + 1]):
        u = m[m[INPUTS] + e]
        event = earlier(m, f, u, p)
        if not read_next(m, f, u, event):
            _shift(m, after(m, f, u, event), p, m[m[SIZE] + u])
        _add_event(m, f, u, event, x)
    m[m[RECOMPUTED] + m[EXTRAS]] = x
    m[m[PLACE] + x] = m[EXTRAS]
    m[EXTRAS] += 1
    return int(x)


@inner
def _delete(m: Any, f: Any, x: int) -> None:
    """Drop the recomputation x."""
    k, p = m[m[NODE] + x], m[m[POS] + x]
    for e in range(m[m[INPUT_START] + k], m[m[INPUT_START] + k + 1]):
        u = m[m[INPUTS] + e]
        event = earlier(m, f, u, p)
        if not read_next(m, f, u, event + 1):
            _shift(m, after(m, f, u, event), p, -m[m[SIZE] + u])
        _drop_event(m, f, u, event)
    for v in range(m[m[FIRST_VALUE] + k], m[m[FIRST_VALUE] + k + 1]):
        event = earlier(m, f, v, p)
        if read_next(m, f, v, event + 1):
            _shift(m, after(m, f, v, event), p, m[m[SIZE] + v])
        _drop_event(m, f, v, event)
    m[EXCESS] -= max(m[m[LEVEL] + p], 0)
    m[m[LEVEL] + p] += HOLE - m[m[OWN] + k]
    m[m[SEQ] + p] = -1
    f[COST] -= f[COSTS + k]
    m[EXTRAS] -= 1
    moved = m[m[RECOMPUTED] + m[EXTRAS]]
    m[m[RECOMPUTED] + m[m[PLACE] + x]] = moved
    m[m[PLACE] + moved] = m[m[PLACE] + x]
    m[m[SPARE] + m[FREE]] = x
    m[FREE] += 1


@inner
def following(m: Any, p: int) -> int:
    """The first instance in slot p or after it; -1 if there is none."""
    for q in range(p, m[SLOTS]):
        if m[m[SEQ] + q] >= 0:
            return int(m[m[SEQ] + q])
    return -1


@inner
def insert(m: Any, f: Any, k: int, anchor: int) -> int:
    """Compute node k again right before ``anchor`` (-1: at the end); the instance, or -1 if the tables are full."""
    logged = m[LOGGED]
    if logged >= LOG_SIZE or not _has_room(m, f, k):
        return -1
    x = _insert(m, f, k, anchor)
    m[m[LOG] + 3 * logged + 0] = x
    m[LOGGED] += 1
    return x


@inner
def delete(m: Any, f: Any, x: int) -> bool:
    """Drop the recomputation x; False if the log is full."""
    logged = m[LOGGED]
    if logged >= LOG_SIZE:
        return False
    m[m[LOG] + 3 * logged + 0] = -1
    m[m[LOG] + 3 * logged + 1] = m[m[NODE] + x]
    m[m[LOG] + 3 * logged + 2] = following(m, m[m[POS] + x] + 1)
    m[LOGGED] += 1
    _delete(m, f, x)
    return True


@inner
def take_back(m: Any, f: Any) -> None:
    """Undo all that is logged. Instances get their numbers back, because spare ones are taken last in, first out."""
    while m[LOGGED] > 0:
        m[LOGGED] -= 1
        row = m[LOG] + 3 * m[LOGGED]
        if m[row] >= 0:
            _delete(m, f, m[row])
        else:
            _insert(m, f, m[row + 1], m[row + 2])


@inner
def _no_remat(m: Any, f: Any) -> None:
    """Fill a fresh state with the sequence in which everything is computed once."""
    n = m[NODES]
    level = m[LEVEL]
    m[level : level + n + 1] = 0
    for k in range(n):
        m[m[SEQ] + k] = m[m[NODE] + k] = m[m[POS] + k] = k
        f[COST] += f[COSTS + k]
        for e in range(m[m[INPUT_START] + k], m[m[INPUT_START] + k + 1]):
            u = m[m[INPUTS] + e]
            m[m[EVENTS] + m[m[CAPACITY] + u] + m[m[COUNT] + u]] = k
            m[m[COUNT] + u] += 1
        for v in range(m[m[FIRST_VALUE] + k], m[m[FIRST_VALUE] + k + 1]):
            m[m[EVENTS] + m[m[CAPACITY] + v]] = k
            m[m[COUNT] + v] = 1
    for v in range(m[VALUES]):
        last = n if m[m[OUTPUT] + v] else after(m, f, v, m[m[COUNT] + v]) - 1
        for p in range(m[m[PRODUCER] + v] + 1, last + 1):
            m[level + p] += m[m[SIZE] + v]
    m[level + n] += HOLE
    for k in range(n):
        m[level + k] += m[m[OWN] + k]
        m[EXCESS] += max(m[level + k], 0)


@entry
def load(m: Ints, f: Floats, start: Ints) -> None:
    """Fill a fresh state with the sequence ``start``."""
    _no_remat(m, f)
    ahead = 0  # the next first computation
    for p in range(len(start)):
        k = start[p]
        if k == ahead:
            ahead += 1
        elif _has_room(m, f, k):
            _insert(m, f, k, ahead if ahead < m[NODES] else -1)
