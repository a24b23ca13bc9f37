"""Schedules that compute again and copy to the host and back: their timing and their annealing, compiled by numba.

A schedule is a sequence of steps: node i is computed (step i), or value v comes back from the host (step n + v). A
value is made by either kind of step, and liveness follows from the sequence as it does without copies. From a sequence
alone follows when each value leaves and comes back: a copy out is issued before the queue to the host becomes idle, and
at the latest when the value is not needed any more; the value is freed when its copy has ended, or when its memory is
needed; it comes back as early as there is room until it is read.

The checker of plans shares nothing with this module.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from remat_cli.graph.arrays import FixedBools, FixedFloats, FixedInts
from remat_cli.kernels.compiling import Record, entry, inner
from remat_cli.mip import Bools, Floats, Ints

DEAD = -1
"""The next read of a value that is not needed any more."""
NEVER = 2**62
_CHAIN = 24
"""Most steps that one move inserts. Untuned."""


class Machine(NamedTuple):
    """A graph of n nodes and V values, and the times of its copies.

    Attributes:
        cost: float64[n], time of each node.
        workspace: int64[n], bytes.
        fixed: bool[n], nodes that may be computed only once.
        first_value: int64[n + 1].
        input_start: int64[n + 2], into ``inputs``; the closing stage is not used.
        inputs: int64[E].
        size: int64[V], bytes.
        producer: int64[V].
        output: bool[V], graph outputs.
        out_time: float64[V], time of a copy to the host.
        in_time: float64[V], time of a copy back.
        pinned: bool[V], values that may not be copied.
    """

    cost: FixedFloats
    workspace: FixedInts
    fixed: FixedBools
    first_value: FixedInts
    input_start: FixedInts
    inputs: FixedInts
    size: FixedInts
    producer: FixedInts
    output: FixedBools
    out_time: Floats
    in_time: Floats
    pinned: Bools


class Scratch(NamedTuple):
    """Working arrays, and the timing of the last evaluated sequence: L steps, of which K are computes.

    Attributes:
        steps: int64[L], the current sequence.
        trial: int64[L], a sequence under consideration.
        best: int64[L], the best sequence within the room.
        kept: int64[L], for each step 1 if it serves anything, else 0.
        current_height: int64[L], ``height`` of the current sequence.
        current_first: int64[n], ``first`` of the current sequence.
        first: int64[n], the first step that computes each node.
        node: int64[L], the node of each compute.
        height: int64[L], bytes that must be there during each compute.
        early: int64[L], bytes that come back before they have to, during each compute.
        next_use: int64[V].
        ends: int64[V], the compute after which the first instance of a value is not needed any more.
        wanted: int64[V], the trips of each value that are still to come.
        trip: int64[V], a trip whose departure is not known yet, by step.
        departure: int64[L], for each step that brings a value back the compute after which that value may leave.
        deadline: int64[L], the compute before which it must be back; K for the end.
        trips: int64[L], the steps that bring values back, by deadline.
        back: int64[L], the compute before which each comes back.
        ready: float64[V], when the last copy back of a value ends.
        issued: int64[V], the compute after which its copy out is issued, ``NEVER`` before.
        ranked: int64[V], the values by the order of their copies out.
        leaves: int64[V], the compute before which the first instance is freed after its copy.
        staying: int64[V], values that are needed for their copy alone.
        out_end: float64[V], when the copy out ends.
        waiting: int64[V], values whose copy out is not issued yet.
        inserted: int64[chain], steps of a move, the last first.
        mark: int64[V], working array.
    """

    steps: Ints
    trial: Ints
    best: Ints
    kept: Ints
    current_height: Ints
    current_first: Ints
    first: Ints
    node: Ints
    height: Ints
    early: Ints
    next_use: Ints
    ends: Ints
    wanted: Ints
    trip: Ints
    departure: Ints
    deadline: Ints
    trips: Ints
    back: Ints
    ready: Floats
    issued: Ints
    ranked: Ints
    leaves: Ints
    staying: Ints
    out_end: Floats
    waiting: Ints
    inserted: Ints
    mark: Ints


class Now(Record):
    """The scalars.

    Attributes:
        length: Steps of the current sequence.
        best_length: Steps of the best one.
        computes: Computes of the last evaluated sequence.
        current_computes: Computes of the current sequence.
        work: Time of the computes of the last evaluated sequence alone.
        limit: Energy, relative to the current sequence, above which a trial is refused.
        copy_share: How often the next move rather copies than computes, where it may do both.
        trips: Trips of the last evaluated sequence.
        copied: Copies out of the last evaluated sequence.
        excess: Bytes over the room, summed over its computes, and over the host memory.
        peak: Most bytes that must be there.
        host: Most bytes of host memory in use.
        used: Bytes of host memory in use now.
        staying: Number of values that stay for their copies alone now.
        staying_bytes: Their bytes.
        level: Bytes that are there between two steps.
        value: A value that was chosen for a move; -1 for none.
        place: The step for which it waits.
        stuck: A compute up to which the next trip cannot come back early.
        current_excess: The same as ``excess`` of the current sequence.
        room: Bytes beside the fixed memory.
        host_room: Bytes of host memory.
        random: State of the random generator.
        copying: Whether moves may copy.
        computing: Whether moves may compute again.
        waiting: Bytes of the values among which one is chosen.
        clock: When the compute queue is idle.
        to_host: When the queue to the host is idle.
        from_host: When the queue from the host is idle.
        time: Time of the last evaluated sequence.
        current_time: Time of the current sequence.
        best_time: Time of the best sequence within the room.
        price: Price of a room of excess, in units of time.
        unit: The time by which temperatures are measured.
    """

    length: int
    best_length: int
    computes: int
    current_computes: int
    trips: int
    copied: int
    excess: int
    peak: int
    host: int
    used: int
    staying: int
    staying_bytes: int
    level: int
    value: int
    place: int
    stuck: int
    current_excess: int
    room: int
    host_room: int
    random: int
    copying: int
    computing: int
    waiting: float
    work: float
    limit: float
    copy_share: float
    clock: float
    to_host: float
    from_host: float
    time: float
    current_time: float
    best_time: float
    price: float
    unit: float


@inner
def _uniform(now: Now) -> float:
    """A random number in [0, 1), by a 31-bit linear congruential generator with two draws.

    Constants: MINSTD (Park and Miller, Communications of the ACM 31, 1988).
    """
    now.random = now.random * 48271 % 2147483647
    return float(now.random) / 2147483647.0


@inner
def _below(now: Now, n: int) -> int:
    return min(n - 1, int(_uniform(now) * n))


@inner
def _begin(m: Machine, w: Scratch, now: Now, steps: Ints, length: int) -> None:
    """Find the first step of each node, and what is there at the end."""
    n = len(m.cost)
    for i in range(n):
        w.first[i] = -1
    now.computes, now.trips, now.level, now.work = 0, 0, 0, 0.0
    for s in range(length):
        x = steps[s]
        w.kept[s] = 1
        if x < n:
            now.computes += 1
            if w.first[x] < 0:
                w.first[x] = s
    for v in range(len(m.size)):
        w.trip[v], w.wanted[v], w.ends[v], w.next_use[v] = DEAD, 0, DEAD, DEAD
        if m.output[v]:
            w.next_use[v] = w.ends[v] = now.computes
            now.level += m.size[v]
    now.excess, now.peak = max(0, now.level - now.room), now.level


@inner
def _came_back(m: Machine, w: Scratch, now: Now, s: int, v: int) -> None:
    """Before step s, which brings value v back."""
    if w.next_use[v] < 0:
        w.kept[s] = 0
        return
    w.deadline[s], w.trip[v], w.next_use[v] = w.next_use[v], s, DEAD
    now.level -= m.size[v]
    w.wanted[v] += 1
    now.trips += 1


@inner
def _ended(w: Scratch, v: int, k: int) -> None:
    """An instance of v is not needed after compute k."""
    w.ends[v] = k
    if w.trip[v] >= 0:
        w.departure[w.trip[v]], w.trip[v] = k, DEAD


@inner
def _serves(m: Machine, w: Scratch, x: int) -> bool:
    """Whether a value of node x is read later."""
    serves = False
    for v in range(m.first_value[x], m.first_value[x + 1]):
        serves = serves or w.next_use[v] >= 0
    return serves


@inner
def _was_computed(m: Machine, w: Scratch, now: Now, x: int, k: int) -> None:
    """Before compute k, of node x: the memory during it."""
    height = now.level + m.workspace[x]
    for v in range(m.first_value[x], m.first_value[x + 1]):
        if w.next_use[v] >= 0:
            w.next_use[v] = DEAD
            now.level -= m.size[v]
        else:
            height += m.size[v]
            _ended(w, v, k)
    for e in range(m.input_start[x], m.input_start[x + 1]):
        v = m.inputs[e]
        if w.next_use[v] < 0:
            now.level += m.size[v]
            height += m.size[v]
            _ended(w, v, k)
        w.next_use[v] = k
    w.node[k], w.height[k] = x, height
    now.excess += max(0, height - now.room)
    now.peak = max(now.peak, height)


@inner
def _look_back(m: Machine, w: Scratch, now: Now, steps: Ints, length: int) -> bool:
    """Liveness from the end to the beginning: heights, deadlines and departures; False if something is never made."""
    n = len(m.cost)
    _begin(m, w, now, steps, length)
    k = now.computes
    for s in range(length - 1, -1, -1):
        x = steps[s]
        if x >= n:
            _came_back(m, w, now, s, x - n)
            continue
        k -= 1
        if w.first[x] != s and not _serves(m, w, x):
            w.kept[s], w.node[k], w.height[k] = 0, -1, 0
        else:
            now.work += m.cost[x]
            _was_computed(m, w, now, x, k)
    open_ends = 0
    for v in range(len(m.size)):
        open_ends += w.next_use[v] >= 0 or w.trip[v] >= 0
    return open_ends == 0


@inner
def _sort_trips(m: Machine, w: Scratch, steps: Ints, length: int) -> None:
    """The trips by deadline; they nearly are in the order of their steps."""
    n, count = len(m.cost), 0
    for s in range(length):
        if steps[s] >= n and w.kept[s]:
            k = count
            while k > 0 and w.deadline[w.trips[k - 1]] > w.deadline[s]:
                w.trips[k] = w.trips[k - 1]
                k -= 1
            w.trips[k] = s
            count += 1


@inner
def _issue(m: Machine, w: Scratch, now: Now, v: int, k: int) -> None:
    """Issue the copy out of v after compute k."""
    now.to_host = max(now.clock, now.to_host) + m.out_time[v]
    w.issued[v], w.out_end[v] = k, now.to_host
    w.ranked[now.copied] = v
    now.copied += 1
    now.used += m.size[v]
    now.host = max(now.host, now.used)


@inner
def _free(m: Machine, w: Scratch, now: Now, place: int, k: int) -> None:
    """Free a value that stays for its copy alone before compute k, and wait for the copy if it has not ended."""
    v = w.staying[place]
    now.clock = max(now.clock, w.out_end[v])
    w.leaves[v] = k
    now.staying_bytes -= m.size[v]
    now.staying -= 1
    w.staying[place] = w.staying[now.staying]


@inner
def _free_value(m: Machine, w: Scratch, now: Now, v: int, k: int) -> None:
    """Free value v before compute k, if it stays for its copy alone."""
    if w.issued[v] == NEVER or w.leaves[v] != NEVER:
        return
    for place in range(now.staying):
        if w.staying[place] == v:
            _free(m, w, now, place, k)
            return


@inner
def _depart(m: Machine, w: Scratch, now: Now, v: int, k: int) -> None:
    """The first instance of v is not needed after compute k: it is freed as soon as its copy has ended."""
    if w.wanted[v] == 0 or w.ends[v] != k or w.leaves[v] != NEVER:
        return
    if w.issued[v] == NEVER:
        _issue(m, w, now, v, k)
    if w.out_end[v] <= now.clock:
        w.leaves[v] = k + 1
    else:
        w.staying[now.staying] = v
        now.staying += 1
        now.staying_bytes += m.size[v]


@inner
def _make_room(m: Machine, w: Scratch, now: Now, steps: Ints, left: int, k: int) -> None:
    """Before compute k, free what has been copied, and wait for as many copies as it takes to have room."""
    place = 0
    while place < now.staying:
        if w.out_end[w.staying[place]] <= now.clock:
            _free(m, w, now, place, k)
        else:
            place += 1
    while now.staying > 0 and now.staying_bytes + w.early[k] + w.height[k] > now.room:
        first = 0
        for place in range(1, now.staying):
            if w.out_end[w.staying[place]] < w.out_end[w.staying[first]]:
                first = place
        _free(m, w, now, first, k)
    # A value has one register at a time: what is made or comes back now must be gone.
    if now.staying > 0:
        x = w.node[k]
        for v in range(m.first_value[x], m.first_value[x + 1]):
            _free_value(m, w, now, v, k)
        q = left
        while q < now.trips and w.deadline[w.trips[q]] <= k:
            _free_value(m, w, now, steps[w.trips[q]] - len(m.cost), k)
            q += 1


@inner
def _comes_early(m: Machine, w: Scratch, now: Now, s: int, v: int, k: int) -> bool:
    """Whether there is room for value v from compute k to its trip's deadline; if so, it is taken."""
    if w.departure[s] >= k or w.leaves[v] == NEVER or w.leaves[v] > k or k <= now.stuck:
        return False
    if now.staying_bytes + w.early[k] + w.height[k] + m.size[v] > now.room:
        return False
    for q in range(k + 1, w.deadline[s]):
        if w.early[q] + w.height[q] + m.size[v] > now.room:
            now.stuck = q
            return False
    for q in range(k, w.deadline[s]):
        w.early[q] += m.size[v]
    return True


@inner
def _bring_back(m: Machine, w: Scratch, now: Now, steps: Ints, left: int, k: int) -> int:
    """Issue the copies back that have to come before compute k, and those for which there is room; the next trip."""
    while left < now.trips:
        s = w.trips[left]
        v = steps[s] - len(m.cost)
        if w.deadline[s] > k and not _comes_early(m, w, now, s, v, k):
            break
        now.from_host = max(now.clock, now.from_host, w.out_end[v]) + m.in_time[v]
        w.ready[v] = now.from_host
        w.back[s] = k
        left += 1
    return left


@inner
def _send(m: Machine, w: Scratch, now: Now, x: int, k: int, waiting: int) -> int:
    """After compute k of node x, issue copies out: of what is not needed any more, and while the queue would be idle.

    That is, idle before the next compute has ended, after which copies can be issued again.
    """
    for v in range(m.first_value[x], m.first_value[x + 1]):
        if w.wanted[v] > 0 and w.mark[v] == 0:
            w.mark[v] = 1
            if w.ends[v] > k:
                w.waiting[waiting] = v
                waiting += 1
        _depart(m, w, now, v, k)
    for e in range(m.input_start[x], m.input_start[x + 1]):
        _depart(m, w, now, m.inputs[e], k)
    soon, after = now.clock, k + 1
    while after < now.computes and w.node[after] < 0:
        after += 1
    if after < now.computes:
        soon += m.cost[w.node[after]]
    while True:
        place, first = 0, -1
        while place < waiting:
            v = w.waiting[place]
            if w.issued[v] != NEVER:
                waiting -= 1
                w.waiting[place] = w.waiting[waiting]
                continue
            if first < 0 or w.ends[v] < w.ends[w.waiting[first]]:
                first = place
            place += 1
        idle = now.to_host <= now.clock or now.to_host < soon
        if first < 0 or not idle or now.used + m.size[w.waiting[first]] > now.host_room:
            return waiting
        _issue(m, w, now, w.waiting[first], k)


@inner
def _look_ahead(m: Machine, w: Scratch, now: Now, steps: Ints) -> None:
    """The clock, from the beginning to the end: when values leave and come back, and how long it takes."""
    n, computes = len(m.cost), now.computes
    for v in range(len(m.size)):
        w.issued[v], w.leaves[v], w.ready[v] = NEVER, NEVER, 0.0
        w.trip[v], w.mark[v] = w.wanted[v], 0
    for k in range(computes):
        w.early[k] = 0
    now.clock, now.to_host, now.from_host = 0.0, 0.0, 0.0
    now.copied, now.host, now.used, now.staying, now.staying_bytes, now.stuck = 0, 0, 0, 0, 0, -1
    left, over, waiting = 0, 0, 0
    for k in range(computes):
        x = w.node[k]
        if x < 0:
            continue
        _make_room(m, w, now, steps, left, k)
        left = _bring_back(m, w, now, steps, left, k)
        for e in range(m.input_start[x], m.input_start[x + 1]):
            now.clock = max(now.clock, w.ready[m.inputs[e]])
        now.clock += m.cost[x]
        while over < now.trips and w.deadline[w.trips[over]] <= k:
            v = steps[w.trips[over]] - n
            w.trip[v] -= 1
            if w.trip[v] == 0:
                now.used -= m.size[v]
            over += 1
        waiting = _send(m, w, now, x, k, waiting)
    while now.staying > 0:
        _free(m, w, now, 0, computes)
    _bring_back(m, w, now, steps, left, computes)
    now.time = max(now.clock, now.to_host, now.from_host)


@inner
def _evaluate(m: Machine, w: Scratch, now: Now, steps: Ints, length: int) -> bool:
    """Liveness and timing of a sequence; False if it is none. The time is exact if there is no excess."""
    if not _look_back(m, w, now, steps, length):
        return False
    _sort_trips(m, w, steps, length)
    _look_ahead(m, w, now, steps)
    now.excess += max(0, now.host - now.host_room)
    return True


@entry
def evaluate(m: Machine, w: Scratch, now: Now) -> bool:
    """Liveness and timing of the sequence in ``steps``; False if it reads what was never made."""
    return _evaluate(m, w, now, w.steps, now.length)


@inner
def _may(m: Machine, now: Now, x: int, copy: bool) -> bool:
    """Whether a move may bring value x back, or compute node x again."""
    if copy:
        return now.copying > 0 and not m.pinned[x]
    return now.computing > 0 and not m.fixed[x]


@inner
def _either(m: Machine, now: Now, v: int) -> int:
    """A step that makes value v anew, by chance; -1 if there is none."""
    n, maker = len(m.cost), m.producer[v]
    copy, compute = _may(m, now, v, True), _may(m, now, maker, False)
    if copy and compute:
        copy = _uniform(now) < now.copy_share
        compute = not copy
    return n + v if copy else maker if compute else -1


@inner
def _again(m: Machine, w: Scratch, now: Now, v: int) -> int:
    """Steps that make value v anew, the last first, in ``inserted``; their number, 0 if there is none.

    An input of a node that is computed again may itself be made anew, by chance, with its own inputs. How likely that
    is differs from move to move, so that long chains come up too; so does whether they come from the host.
    """
    n = len(m.cost)
    now.copy_share = 0.5 if _uniform(now) < 0.5 else _uniform(now)
    step = _either(m, now, v)
    if step < 0:
        return 0
    w.inserted[0] = step
    count, done = 1, 0
    deeper = 0.0 if _uniform(now) < 0.4 else 0.5 if _uniform(now) < 0.5 else _uniform(now)
    while done < count:
        x = w.inserted[done]
        done += 1
        if x >= n:
            continue
        for e in range(m.input_start[x], m.input_start[x + 1]):
            if count >= _CHAIN or _uniform(now) >= deeper:
                continue
            step = _either(m, now, m.inputs[e])
            known = step < 0
            for q in range(count):
                known = known or w.inserted[q] == step
            if not known:
                w.inserted[count] = step
                count += 1
    # Producers come before readers: nodes by their numbers, and what comes back from the host right before them.
    for a in range(1, count):
        x, b = w.inserted[a], a
        key = m.producer[x - n] * 2 if x >= n else x * 2 + 1
        while b > 0:
            y = w.inserted[b - 1]
            if (m.producer[y - n] * 2 if y >= n else y * 2 + 1) >= key:
                break
            w.inserted[b] = y
            b -= 1
        w.inserted[b] = x
    return count


@inner
def _splice(w: Scratch, now: Now, at: int, drop: int, count: int) -> int:
    """Copy the current sequence to ``trial`` with ``inserted`` before step ``at``, and without step ``drop``."""
    length = 0
    for s in range(now.length + 1):
        if s == at:
            for q in range(count - 1, -1, -1):
                w.trial[length] = w.inserted[q]
                length += 1
        if s != drop and s < now.length:
            w.trial[length] = w.steps[s]
            length += 1
    return length


@inner
def _step_over_budget(w: Scratch, now: Now) -> int:
    """A compute of the current sequence, by chance one during which memory is short."""
    best, best_height = 0, -1
    for _ in range(6):
        k = _below(now, now.current_computes)
        if w.current_height[k] > best_height:
            best, best_height = k, w.current_height[k]
    return best


@inner
def _step_of(m: Machine, w: Scratch, now: Now, target: int) -> int:
    """The step of a compute of the current sequence."""
    k = -1
    for s in range(now.length):
        if w.steps[s] < len(m.cost):
            k += 1
            if k == target:
                return s
    return now.length


@inner
def _chosen(m: Machine, w: Scratch, now: Now, v: int, s: int) -> None:
    """Perhaps choose value v, which waits for step s: each by its share of the bytes that wait."""
    if w.mark[v] == 0 and m.size[v] > 0:
        now.waiting += m.size[v]
        if _uniform(now) * now.waiting < m.size[v]:
            now.value, now.place = v, s
    w.mark[v] = 1


@inner
def _choose(m: Machine, w: Scratch, now: Now, at: int) -> None:
    """Choose a value that waits during step ``at``, and the step for which it waits: ``value`` and ``place``."""
    n = len(m.cost)
    now.waiting, now.value, now.place = 0.0, -1, -1
    for v in range(len(m.size)):
        w.mark[v] = 0
    x = w.steps[at]
    for v in range(m.first_value[x], m.first_value[x + 1]):
        w.mark[v] = 1
    # What is read later, and was not made in between, waits here.
    for s in range(at + 1, now.length):
        y = w.steps[s]
        if y >= n:
            w.mark[y - n] = 1
            continue
        for e in range(m.input_start[y], m.input_start[y + 1]):
            _chosen(m, w, now, m.inputs[e], s)
        for v in range(m.first_value[y], m.first_value[y + 1]):
            w.mark[v] = 1
    for v in range(len(m.size)):
        if m.output[v] and w.current_first[m.producer[v]] < at:
            _chosen(m, w, now, v, now.length)


@inner
def _give_up(m: Machine, w: Scratch, now: Now) -> int:
    """A trial in which a value that waits where memory is short is made anew for its next reader; its length, or 0.

    What it reads may be made anew with it.
    """
    at = _step_of(m, w, now, _step_over_budget(w, now))
    if at == now.length:
        return 0
    _choose(m, w, now, at)
    place = now.place
    if now.value < 0:
        return 0
    count = _again(m, w, now, now.value)
    if count == 0 or now.length + count >= len(w.trial):
        return 0
    # A compute goes before what comes back for the same reader, which need not be there yet.
    while place > 0 and w.steps[place - 1] >= len(m.cost) and w.inserted[0] < len(m.cost):
        place -= 1
    return _splice(w, now, place, -1, count)


@inner
def _extra(m: Machine, w: Scratch, now: Now) -> int:
    """A step that could be left out, by chance; -1 if none is found."""
    n = len(m.cost)
    for _ in range(40):
        s = _below(now, now.length)
        x = w.steps[s]
        if x >= n or w.current_first[x] != s:
            return s
    return -1


@inner
def _leave_out(m: Machine, w: Scratch, now: Now) -> int:
    """A trial without a step that could be left out, or with another in its place; its length, 0 for none."""
    n, s = len(m.cost), _extra(m, w, now)
    if s < 0:
        return 0
    if _uniform(now) < 0.6:
        return _splice(w, now, -1, s, 0)
    x = w.steps[s]
    if x >= n:
        maker = m.producer[x - n]
        if not _may(m, now, maker, False):
            return 0
        w.inserted[0] = maker
        return _splice(w, now, s, s, 1)
    count = 0
    for v in range(m.first_value[x], m.first_value[x + 1]):
        if _may(m, now, v, True) and count < _CHAIN:
            w.inserted[count] = n + v
            count += 1
    return 0 if count == 0 or now.length + count >= len(w.trial) else _splice(w, now, s, s, count)


@inner
def _adopt(m: Machine, w: Scratch, now: Now, steps: Ints, length: int) -> None:
    """Make a sequence the current one, without the steps that serve nothing."""
    count = 0
    for s in range(length):
        if w.kept[s]:
            w.steps[count] = steps[s]
            count += 1
    now.length, now.current_time, now.current_excess = count, now.time, now.excess
    if count < length:
        _look_back(m, w, now, w.steps, count)
    now.current_computes = now.computes
    for k in range(now.computes):
        w.current_height[k] = w.height[k]
    for i in range(len(m.cost)):
        w.current_first[i] = w.first[i]


@inner
def _passes(m: Machine, w: Scratch, now: Now, length: int) -> bool:
    """Whether the trial is one whose energy is within the limit; most are refused before they are timed."""
    if not _look_back(m, w, now, w.trial, length):
        return False
    priced = now.price / max(1, now.room)
    if (now.work - now.current_time) / now.unit + priced * (now.excess - now.current_excess) > now.limit:
        return False
    _sort_trips(m, w, w.trial, length)
    _look_ahead(m, w, now, w.trial)
    now.excess += max(0, now.host - now.host_room)
    return (now.time - now.current_time) / now.unit + priced * (now.excess - now.current_excess) <= now.limit


@entry
def anneal(m: Machine, w: Scratch, now: Now, moves: int, hot: float, cold: float) -> int:
    """Anneal the current sequence, whose temperature falls from ``hot`` to ``cold``; the number of accepted moves.

    Energy: time in units of ``unit``, and the price of what is over the room. The price rises while there is excess,
    and falls while there is none.
    """
    accepted = 0
    _evaluate(m, w, now, w.steps, now.length)
    _adopt(m, w, now, w.steps, now.length)
    for move in range(moves):
        heat = hot * math.exp(math.log(cold / hot) * move / moves)
        length = _give_up(m, w, now) if _uniform(now) < 0.5 else _leave_out(m, w, now)
        if length == 0:
            continue
        now.limit = -heat * math.log(1.0 - _uniform(now))
        if _passes(m, w, now, length):
            accepted += 1
            _adopt(m, w, now, w.trial, length)
            if now.current_excess == 0 and now.current_time < now.best_time:
                now.best_time, now.best_length = now.current_time, now.length
                for s in range(now.length):
                    w.best[s] = w.steps[s]
        if now.current_excess > 0:
            now.price = min(now.price * 1.02, 100.0)
        else:
            now.price = max(now.price * 0.99, 0.02)
    return accepted
