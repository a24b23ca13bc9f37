"""The state of an annealed sequence and its two elementary changes, compiled by numba.

The sequence is stored in slots with holes between them, so that an insertion does not move all later steps. For every
value its events (computations and reads) are kept in the order of their slots. The level of a slot is the number of
bytes over the room while the slot runs, or, if negative, of free bytes. A change alters the lifetimes of a few values,
each over a range of slots; only those are updated, by loops that compilers vectorise. A value is live between two
consecutive events exactly if the second is a read, and after the last event if it is a graph output. Every change is
recorded in a log, so that a move of many changes can be undone.
"""

from __future__ import annotations

import numpy as np

from remat_cli.kernels.compiling import inner
from remat_cli.kernels.state import State
from remat_cli.mip import Ints

HOLE = -(2**61)
"""Own bytes of a hole: so negative that its level never exceeds the room."""
_FAR = 48
"""If no hole is within this many slots, the holes are spread evenly. Untuned."""
LOG_SIZE = 512
"""Most changes in one move. Untuned."""
CHAIN = 32
"""Most nodes that one move recomputes, or removes, as a chain. Untuned."""


@inner
def uniform(s: State) -> float:
    """A random number in [0, 1), by xorshift64* (Marsaglia, "Xorshift RNGs", 2003; Vigna's multiplier)."""
    x = np.uint64(s.now.random)
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    s.now.random = int(np.int64(x))
    return float((x * np.uint64(0x2545F4914F6CDD1D)) >> np.uint64(11)) * 2.0**-53


@inner
def below(s: State, n: int) -> int:
    """A random integer in [0, n)."""
    return int(uniform(s) * n)


@inner
def earlier(s: State, v: int, p: int) -> int:
    """Number of events of v in slots before p."""
    start = s.capacity[v]
    low, high = 0, s.used[v]
    while low < high:
        middle = (low + high) // 2
        if s.pos[s.events[start + middle]] < p:
            low = middle + 1
        else:
            high = middle
    return low


@inner
def read_next(s: State, v: int, event: int) -> bool:
    """Whether an event of v is a read, or v stays to the end after its last event."""
    if event >= s.used[v]:
        return bool(s.output[v])
    return bool(s.node[s.events[s.capacity[v] + event]] != s.producer[v])


@inner
def after(s: State, v: int, event: int) -> int:
    """The slot after that of the event before ``event``: the first one in which v waits for it."""
    return int(s.pos[s.events[s.capacity[v] + event - 1]]) + 1


@inner
def _shift(s: State, first: int, last: int, amount: int) -> None:
    """Add ``amount`` bytes to the level of each of the slots first .. last, and update the excess."""
    if last < first:
        return
    levels = s.level[first : last + 1]
    change = 0
    for q in range(len(levels)):
        was = levels[q]
        now = was + amount
        change += max(now, 0) - max(was, 0)
        levels[q] = now
    s.now.excess += change


@inner
def _add_event(s: State, v: int, event: int, x: int) -> None:
    start = s.capacity[v]
    for k in range(s.used[v], event, -1):
        s.events[start + k] = s.events[start + k - 1]
    s.events[start + event] = x
    s.used[v] += 1


@inner
def _drop_event(s: State, v: int, event: int) -> None:
    start = s.capacity[v]
    for k in range(event, s.used[v] - 1):
        s.events[start + k] = s.events[start + k + 1]
    s.used[v] -= 1


@inner
def _has_room(s: State, k: int) -> bool:
    """Whether the arrays can hold another computation of node k."""
    if s.now.free == 0:
        return False
    for v in range(s.first_value[k], s.first_value[k + 1]):
        if s.used[v] >= s.capacity[v + 1] - s.capacity[v]:
            return False
    for e in range(s.input_start[k], s.input_start[k + 1]):
        u = s.inputs[e]
        if s.used[u] >= s.capacity[u + 1] - s.capacity[u]:
            return False
    return True


@inner
def _own(s: State, p: int) -> int:
    x = s.seq[p]
    return s.own[s.node[x]] if x >= 0 else HOLE


@inner
def _open(s: State, p: int) -> int:
    """Move the nearest hole to right before the instance in slot p; the hole's slot, or -1 if none is near."""
    left, right, last = p - 1, p, s.now.slots - 1
    for _ in range(_FAR):
        if left >= 0:
            if s.seq[left] < 0:
                for q in range(left, p - 1):
                    s.seq[q], s.level[q] = s.seq[q + 1], s.level[q + 1]
                    s.pos[s.seq[q]] = q
                return p - 1
            left -= 1
        if right < last:
            if s.seq[right] < 0:
                for q in range(right, p, -1):
                    s.seq[q], s.level[q] = s.seq[q - 1], s.level[q - 1]
                    s.pos[s.seq[q]] = q
                return p
            right += 1
    return -1


@inner
def _spread(s: State) -> None:
    """Spread the holes evenly, with about one for every two instances.

    Growing or renumbering on every insertion would cost a pass over the sequence each; this pass is rare.
    """
    used, last = len(s.node) - s.now.free, s.now.slots - 1
    for p in range(last + 1):
        s.seq_before[p], s.level_before[p] = s.seq[p], s.level[p]
    slots = used + used // 2 + 64
    s.now.slots = slots
    q, i = slots - 1, used
    s.seq[q], s.level[q] = -1, s.level_before[last]
    for p in range(last - 1, -1, -1):
        x = s.seq_before[p]
        if x < 0:
            continue
        i -= 1
        target = i * (slots - 1) // used
        waiting = s.level[q] - _own(s, q)
        while q > target + 1:
            q -= 1
            s.seq[q], s.level[q] = -1, waiting + HOLE
        q = target
        s.seq[q], s.level[q] = x, s.level_before[p]
        s.pos[x] = q


@inner
def _insert(s: State, k: int, anchor: int) -> int:
    """Recompute node k right before the instance ``anchor`` (-1: at the end); the new instance."""
    p = _open(s, s.pos[anchor] if anchor >= 0 else s.now.slots - 1)
    if p < 0:
        _spread(s)
        p = _open(s, s.pos[anchor] if anchor >= 0 else s.now.slots - 1)
    s.now.free -= 1
    x = s.spare[s.now.free]
    s.level[p] = s.level[p + 1] - _own(s, p + 1) + s.own[k]
    s.seq[p], s.node[x], s.pos[x] = x, k, p
    s.now.excess += max(s.level[p], 0)
    s.now.cost += s.cost[k]
    for v in range(s.first_value[k], s.first_value[k + 1]):
        event = earlier(s, v, p)
        if read_next(s, v, event):
            _shift(s, after(s, v, event), p, -s.size[v])
        _add_event(s, v, event, x)
    for e in range(s.input_start[k], s.input_start[k + 1]):
        u = s.inputs[e]
        event = earlier(s, u, p)
        if not read_next(s, u, event):
            _shift(s, after(s, u, event), p, s.size[u])
        _add_event(s, u, event, x)
    s.recomputed[s.now.extras] = x
    s.place[x] = s.now.extras
    s.now.extras += 1
    return int(x)


@inner
def _delete(s: State, x: int) -> None:
    """Remove the recomputation x."""
    k, p = s.node[x], s.pos[x]
    for e in range(s.input_start[k], s.input_start[k + 1]):
        u = s.inputs[e]
        event = earlier(s, u, p)
        if not read_next(s, u, event + 1):
            _shift(s, after(s, u, event), p, -s.size[u])
        _drop_event(s, u, event)
    for v in range(s.first_value[k], s.first_value[k + 1]):
        event = earlier(s, v, p)
        if read_next(s, v, event + 1):
            _shift(s, after(s, v, event), p, s.size[v])
        _drop_event(s, v, event)
    s.now.excess -= max(s.level[p], 0)
    s.level[p] += HOLE - s.own[k]
    s.seq[p] = -1
    s.now.cost -= s.cost[k]
    s.now.extras -= 1
    moved = s.recomputed[s.now.extras]
    s.recomputed[s.place[x]] = moved
    s.place[moved] = s.place[x]
    s.spare[s.now.free] = x
    s.now.free += 1


@inner
def following(s: State, p: int) -> int:
    """The first instance in slot p or after it; -1 if there is none."""
    for q in range(p, s.now.slots):
        if s.seq[q] >= 0:
            return int(s.seq[q])
    return -1


@inner
def insert(s: State, k: int, anchor: int) -> int:
    """Recompute node k right before ``anchor`` (-1: at the end); the instance, or -1 if arrays or log are full."""
    logged = s.now.logged
    if logged >= LOG_SIZE or not _has_room(s, k):
        return -1
    x = _insert(s, k, anchor)
    s.log[logged, 0] = x
    s.now.logged += 1
    return x


@inner
def delete(s: State, x: int) -> bool:
    """Remove the recomputation x; False if the log is full."""
    logged = s.now.logged
    if logged >= LOG_SIZE:
        return False
    s.log[logged, 0] = -1
    s.log[logged, 1] = s.node[x]
    s.log[logged, 2] = following(s, s.pos[x] + 1)
    s.now.logged += 1
    _delete(s, x)
    return True


@inner
def take_back(s: State) -> None:
    """Undo all logged changes. Instances get their old numbers because the spare ones form a stack."""
    while s.now.logged > 0:
        s.now.logged -= 1
        inserted = s.log[s.now.logged, 0]
        if inserted >= 0:
            _delete(s, inserted)
        else:
            _insert(s, s.log[s.now.logged, 1], s.log[s.now.logged, 2])


@inner
def _no_remat(s: State) -> None:
    """Fill a fresh state with the no-remat sequence."""
    n = len(s.own)
    s.level[: n + 1] = 0
    for k in range(n):
        s.seq[k] = s.node[k] = s.pos[k] = k
        s.now.cost += s.cost[k]
        for e in range(s.input_start[k], s.input_start[k + 1]):
            u = s.inputs[e]
            s.events[s.capacity[u] + s.used[u]] = k
            s.used[u] += 1
        for v in range(s.first_value[k], s.first_value[k + 1]):
            s.events[s.capacity[v]] = k
            s.used[v] = 1
    for v in range(len(s.size)):
        last = n if s.output[v] else after(s, v, s.used[v]) - 1
        for p in range(s.producer[v] + 1, last + 1):
            s.level[p] += s.size[v]
    s.level[n] += HOLE
    for k in range(n):
        s.level[k] += s.own[k]
        s.now.excess += max(s.level[k], 0)


@inner
def load(s: State, start: Ints) -> None:
    """Fill a fresh state with the sequence ``start``."""
    _no_remat(s)
    ahead = 0  # the next first computation
    for p in range(len(start)):
        k = start[p]
        if k == ahead:
            ahead += 1
        elif _has_room(s, k):
            _insert(s, k, ahead if ahead < len(s.own) else -1)
