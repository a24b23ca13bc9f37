"""Schedules with collectives: their time within a budget, and their annealing, compiled by numba.

A schedule is a sequence of nodes. Liveness follows from the sequence; what a collective uses is freed as late as there
is room (see ``plan/late_frees``). Collectives run one after another beside computations: each starts when what was
issued to the compute queue before it has ended, and a computation waits for those that make what it reads.

The checker of plans shares nothing with this module.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from remat_cli.graph.arrays import FixedBools, FixedFloats, FixedInts
from remat_cli.kernels.compiling import Record, entry, inner
from remat_cli.mip import Floats, Ints

DEAD = -1
"""The next read of a value that is not needed any more."""
_CHAIN = 24
"""Most steps that one move inserts. Untuned."""
_ISSUE, _GIVE_UP = 0.4, 0.75
"""Cumulative probabilities of moves: shift a collective or a recomputation, give up a value, else leave a step out."""


class Machine(NamedTuple):
    """A graph of n nodes and V values.

    Attributes:
        cost: float64[n], time of each node in its queue.
        collective: bool[n], nodes of the communication queue.
        free: bool[n], nodes whose first computation may be at any place.
        workspace: int64[n], bytes.
        fixed: bool[n], nodes that may be computed only once.
        first_value: int64[n + 1].
        input_start: int64[n + 2], into ``inputs``; the closing stage is not used.
        inputs: int64[E].
        size: int64[V], bytes.
        producer: int64[V].
        output: bool[V], graph outputs.
    """

    cost: FixedFloats
    collective: FixedBools
    free: FixedBools
    workspace: FixedInts
    fixed: FixedBools
    first_value: FixedInts
    input_start: FixedInts
    inputs: FixedInts
    size: FixedInts
    producer: FixedInts
    output: FixedBools


class Scratch(NamedTuple):
    """Working arrays, and what is known of the last evaluated sequence of L steps.

    Attributes:
        steps: int64[L], the current sequence.
        trial: int64[L], a sequence under consideration.
        best: int64[L], the best sequence within the room.
        kept: int64[L], for each step 1 if it serves anything, else 0.
        height: int64[L], bytes during each step if everything is freed at once.
        current_height: int64[L], the same of the current sequence.
        first: int64[n], the first step of each node.
        current_first: int64[n], the same of the current sequence.
        next_use: int64[V].
        start: int64[L], where the values that die after a step begin in ``dying``.
        stop: int64[L], where they end.
        dying: int64[D].
        end: float64[L + 1], when each collective ends, by its number from 1.
        writes: int64[V], the collective that wrote each value.
        uses: int64[V], the last collective that reads or wrote it.
        waits: int64[V], the collective after which a value can be freed; 0 for none.
        bucket: int64[L + 1], a value that waits for each collective; -1 for none.
        following: int64[V], the next value that waits for the same one.
        inserted: int64[chain], nodes of a move.
        mark: int64[V], working array.
    """

    steps: Ints
    trial: Ints
    best: Ints
    kept: Ints
    height: Ints
    current_height: Ints
    first: Ints
    current_first: Ints
    next_use: Ints
    start: Ints
    stop: Ints
    dying: Ints
    end: Floats
    writes: Ints
    uses: Ints
    waits: Ints
    bucket: Ints
    following: Ints
    inserted: Ints
    mark: Ints


class Now(Record):
    """The scalars.

    Attributes:
        length: Steps of the current sequence.
        best_length: Steps of the best one.
        excess: Bytes over the room, summed over the steps of the last evaluated sequence.
        peak: Most bytes that must be there.
        level: Bytes that are there between two steps.
        ended: Collectives that the compute queue has waited for.
        issued: Collectives that were issued.
        current_excess: ``excess`` of the current sequence.
        room: Bytes beside the fixed memory.
        random: State of the random generator.
        value: A value that was chosen for a move; -1 for none.
        place: The step for which it waits.
        waiting: Bytes of the values among which one is chosen.
        clock: When the compute queue is idle.
        link: When the communication queue is idle.
        time: Time of the last evaluated sequence.
        current_time: Time of the current sequence.
        best_time: Time of the best sequence within the room.
        price: Price of a room of excess, in units of time.
        unit: The time by which temperatures are measured.
    """

    length: int
    best_length: int
    excess: int
    peak: int
    level: int
    ended: int
    issued: int
    current_excess: int
    room: int
    random: int
    value: int
    place: int
    waiting: float
    clock: float
    link: float
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
def _begin(m: Machine, w: Scratch, now: Now, steps: Ints, length: int) -> bool:
    """Find the first step of each node, and what is there at the end; False if first computations are out of order."""
    n, highest = len(m.cost), -1
    for i in range(n):
        w.first[i] = -1
    for s in range(length):
        x = steps[s]
        w.kept[s] = 1
        if w.first[x] < 0:
            w.first[x] = s
            if not m.free[x]:
                if x < highest:
                    return False
                highest = x
    for i in range(n):
        if w.first[i] < 0:
            return False
    now.level = 0
    for v in range(len(m.size)):
        w.next_use[v] = DEAD
        if m.output[v]:
            w.next_use[v] = length
            now.level += m.size[v]
    now.excess, now.peak = max(0, now.level - now.room), now.level
    return True


@inner
def _serves(m: Machine, w: Scratch, x: int) -> bool:
    """Whether a value of node x is read later."""
    serves = False
    for v in range(m.first_value[x], m.first_value[x + 1]):
        serves = serves or w.next_use[v] >= 0
    return serves


@inner
def _look_back(m: Machine, w: Scratch, now: Now, steps: Ints, length: int) -> bool:
    """Liveness from the end to the beginning: heights, and what dies; False if something is read that was not made."""
    if not _begin(m, w, now, steps, length):
        return False
    dead, most = 0, len(w.dying)
    for s in range(length - 1, -1, -1):
        x = steps[s]
        made, end, first, last = m.first_value[x], m.first_value[x + 1], m.input_start[x], m.input_start[x + 1]
        w.start[s] = dead
        if dead + end - made + last - first > most:
            return False
        if w.first[x] != s and not _serves(m, w, x):
            w.kept[s], w.height[s], w.stop[s] = 0, 0, dead
            continue
        if w.first[x] != s and m.fixed[x]:
            return False
        height = now.level + m.workspace[x]
        for v in range(made, end):
            if w.next_use[v] >= 0:
                w.next_use[v] = DEAD
                now.level -= m.size[v]
            else:
                height += m.size[v]
                w.dying[dead] = v
                dead += 1
        for e in range(first, last):
            v = m.inputs[e]
            if w.next_use[v] < 0:
                now.level += m.size[v]
                height += m.size[v]
                w.dying[dead] = v
                dead += 1
            w.next_use[v] = s
        w.height[s], w.stop[s] = height, dead
        now.excess += max(0, height - now.room)
        now.peak = max(now.peak, height)
    open_ends = 0
    for v in range(len(m.size)):
        open_ends += w.next_use[v] >= 0
    return open_ends == 0


@inner
def _wait(m: Machine, w: Scratch, now: Now, collective: int) -> None:
    """Let the compute queue wait for a collective, and free what waited for it and for those before."""
    if collective <= now.ended:
        return
    now.clock = max(now.clock, w.end[collective])
    for c in range(now.ended + 1, collective + 1):
        v = w.bucket[c]
        while v >= 0:
            w.waits[v] = 0
            now.level -= m.size[v]
            v = w.following[v]
        w.bucket[c] = -1
    now.ended = collective


@inner
def _run(m: Machine, w: Scratch, now: Now, x: int) -> None:
    """Make room for node x, and run it in its queue."""
    made, end = m.first_value[x], m.first_value[x + 1]
    need = m.workspace[x]
    for v in range(made, end):
        need += m.size[v]
        if w.waits[v] > 0:  # a value has one register at a time
            _wait(m, w, now, w.waits[v])
    while now.level + need > now.room and now.ended < now.issued:
        c = now.ended + 1
        while c < now.issued and w.bucket[c] < 0:
            c += 1
        if w.bucket[c] < 0:
            break
        _wait(m, w, now, c)
    now.level += need - m.workspace[x]
    if m.collective[x]:
        now.link = max(now.link, now.clock) + m.cost[x]
        now.issued += 1
        w.end[now.issued], w.bucket[now.issued] = now.link, -1
        for e in range(m.input_start[x], m.input_start[x + 1]):
            w.uses[m.inputs[e]] = now.issued
        for v in range(made, end):
            w.writes[v] = w.uses[v] = now.issued
        return
    for e in range(m.input_start[x], m.input_start[x + 1]):
        _wait(m, w, now, w.writes[m.inputs[e]])
    now.clock += m.cost[x]
    for v in range(made, end):
        w.writes[v] = w.uses[v] = 0


@inner
def _look_ahead(m: Machine, w: Scratch, now: Now, steps: Ints, length: int) -> None:
    """The time of a sequence whose liveness is known."""
    now.level, now.clock, now.link, now.issued, now.ended = 0, 0.0, 0.0, 0, 0
    for v in range(len(m.size)):
        w.writes[v], w.uses[v], w.waits[v] = 0, 0, 0
    for s in range(length):
        if not w.kept[s]:
            continue
        _run(m, w, now, steps[s])
        for d in range(w.start[s], w.stop[s]):
            v = w.dying[d]
            c = w.uses[v]
            if c > now.ended:
                w.waits[v], w.following[v], w.bucket[c] = c, w.bucket[c], v
            else:
                now.level -= m.size[v]
    now.time = max(now.clock, now.link)


@inner
def _evaluate(m: Machine, w: Scratch, now: Now, steps: Ints, length: int) -> bool:
    """Liveness and timing; False if the sequence is none that may run."""
    if not _look_back(m, w, now, steps, length):
        return False
    _look_ahead(m, w, now, steps, length)
    return True


@entry
def evaluate(m: Machine, w: Scratch, now: Now) -> bool:
    """Liveness and timing of the sequence in ``steps``; False if it is none that may run."""
    return _evaluate(m, w, now, w.steps, now.length)


@inner
def _splice(w: Scratch, now: Now, at: int, drop: int, count: int) -> int:
    """Copy the current sequence to ``trial`` with ``inserted`` before step ``at``, and without step ``drop``."""
    length = 0
    if now.length + count >= len(w.trial):
        return 0
    for s in range(now.length + 1):
        if s == at:
            for q in range(count):
                w.trial[length] = w.inserted[q]
                length += 1
        if s != drop and s < now.length:
            w.trial[length] = w.steps[s]
            length += 1
    return length


@inner
def _shift(m: Machine, w: Scratch, now: Now) -> int:
    """A trial in which a collective that reads nothing, or a step that is not the first of its node, is shifted."""
    for _ in range(40):
        s = _below(now, now.length)
        x = w.steps[s]
        if not (m.free[x] or (w.current_first[x] != s and m.collective[x])):
            continue
        reach = int(float(now.length) ** _uniform(now)) + 1
        at = s - _below(now, reach) if _uniform(now) < 0.6 else s + 2 + _below(now, reach)
        w.inserted[0] = x
        return _splice(w, now, min(max(at, 0), now.length), s, 1)
    return 0


@inner
def _leave_out(m: Machine, w: Scratch, now: Now) -> int:
    """A trial without a step that could be left out; its length, 0 for none."""
    for _ in range(40):
        s = _below(now, now.length)
        x = w.steps[s]
        if m.free[x] or w.current_first[x] != s:
            return _splice(w, now, -1, s, 0)
    return 0


@inner
def _short(w: Scratch, now: Now) -> int:
    """A step of the current sequence, by chance one during which memory is short."""
    best, best_height = 0, -1
    for _ in range(6):
        s = _below(now, now.length)
        if w.current_height[s] > best_height:
            best, best_height = s, w.current_height[s]
    return best


@inner
def _chosen(m: Machine, w: Scratch, now: Now, v: int, s: int) -> None:
    """Perhaps choose value v, which waits for step s: each by its share of the bytes that wait."""
    if w.mark[v] == 0 and m.size[v] > 0 and not m.fixed[m.producer[v]]:
        now.waiting += m.size[v]
        if _uniform(now) * now.waiting < m.size[v]:
            now.value, now.place = v, s
    w.mark[v] = 1


@inner
def _choose(m: Machine, w: Scratch, now: Now, at: int) -> None:
    """Choose a value that waits during step ``at``, and the step for which it waits: ``value`` and ``place``."""
    now.waiting, now.value, now.place = 0.0, -1, -1
    for v in range(len(m.size)):
        w.mark[v] = 0
    x = w.steps[at]
    for v in range(m.first_value[x], m.first_value[x + 1]):
        w.mark[v] = 1
    # What is read later, and was not made in between, waits here.
    for s in range(at + 1, now.length):
        y = w.steps[s]
        for e in range(m.input_start[y], m.input_start[y + 1]):
            if w.current_first[m.producer[m.inputs[e]]] < at:
                _chosen(m, w, now, m.inputs[e], s)
        for v in range(m.first_value[y], m.first_value[y + 1]):
            w.mark[v] = 1
    for v in range(len(m.size)):
        if m.output[v] and w.current_first[m.producer[v]] < at:
            _chosen(m, w, now, v, now.length)


@inner
def _again(m: Machine, w: Scratch, now: Now, v: int) -> int:
    """Nodes that make value v anew, in document order, in ``inserted``; their number.

    An input of a node that is computed again may itself be made anew, by chance, with its own inputs. How likely that
    is differs from move to move, so that long chains come up too.
    """
    w.inserted[0] = m.producer[v]
    count, done = 1, 0
    deeper = 0.0 if _uniform(now) < 0.3 else 0.5 if _uniform(now) < 0.4 else _uniform(now) ** 0.3
    while done < count:
        x = w.inserted[done]
        done += 1
        for e in range(m.input_start[x], m.input_start[x + 1]):
            maker = m.producer[m.inputs[e]]
            if count >= _CHAIN or m.fixed[maker] or _uniform(now) >= deeper:
                continue
            known = False
            for q in range(count):
                known = known or w.inserted[q] == maker
            if not known:
                w.inserted[count] = maker
                count += 1
    for a in range(1, count):
        x, b = w.inserted[a], a
        while b > 0 and w.inserted[b - 1] > x:
            w.inserted[b] = w.inserted[b - 1]
            b -= 1
        w.inserted[b] = x
    return count


@inner
def _give_up(m: Machine, w: Scratch, now: Now) -> int:
    """A trial in which a value that waits where memory is short is made anew for its next reader; its length, or 0."""
    _choose(m, w, now, _short(w, now))
    if now.value < 0:
        return 0
    return _splice(w, now, now.place, -1, _again(m, w, now, now.value))


@inner
def _adopt(m: Machine, w: Scratch, now: Now, steps: Ints, length: int) -> None:
    """Make a sequence the current one, without the steps that serve nothing."""
    count = 0
    for s in range(length):
        if w.kept[s]:
            x = steps[s]
            w.current_height[count] = w.height[s]
            if w.first[x] == s:
                w.current_first[x] = count
            w.steps[count] = x
            count += 1
    now.length, now.current_time, now.current_excess = count, now.time, now.excess


@inner
def _passes(m: Machine, w: Scratch, now: Now, length: int, limit: float) -> bool:
    """Whether the trial is one whose energy, relative to the current sequence, is within ``limit``."""
    if not _look_back(m, w, now, w.trial, length):
        return False
    excess = now.price / max(1, now.room) * (now.excess - now.current_excess)
    least = 0.0
    if excess > limit:  # the time cannot fall below nothing
        least = -now.current_time / now.unit
        if excess + least > limit:
            return False
    _look_ahead(m, w, now, w.trial, length)
    return (now.time - now.current_time) / now.unit + excess <= limit


@entry
def anneal(m: Machine, w: Scratch, now: Now, moves: int, hot: float, cold: float) -> int:
    """Anneal the current sequence, whose temperature falls from ``hot`` to ``cold``; the number of accepted moves.

    Energy: time in units of ``unit``, and the price of what is over the room. The price rises while there is excess,
    and falls while there is none.
    """
    accepted = 0
    if not _evaluate(m, w, now, w.steps, now.length):
        return accepted
    _adopt(m, w, now, w.steps, now.length)
    for move in range(moves):
        heat = hot * math.exp(math.log(cold / hot) * move / moves)
        pick = _uniform(now)
        length = 0
        if pick < _ISSUE:
            length = _shift(m, w, now)
        elif pick < _GIVE_UP:
            length = _give_up(m, w, now)
        else:
            length = _leave_out(m, w, now)
        if length == 0:
            continue
        if _passes(m, w, now, length, -heat * math.log(1.0 - _uniform(now))):
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
