"""The inner loop of annealing, compiled by numba: plain functions over tuples of arrays.

For every value the events that concern it (computations and reads) are kept in order of position. ``between[p]`` is the
bytes live just before step p. A move changes the life of a few values over a range of positions each, and only those
are walked over. A value is live between two consecutive events exactly when the second is a read, and after the last
event when it is a graph output.

``problem`` is (cost, own, size, first_value, producer, input_start, inputs, output, fixed, capacity), the fields of
``_sequence.Problem``. ``state`` is what is listed below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit

_F = TypeVar("_F", bound=Callable[..., Any])
_compiled: Callable[[_F], _F] = njit(cache=True, nogil=True)
_SHORT_WAIT = 4
"""A value that waits for no more steps than this is kept rather than computed again."""

# The state of a run, a tuple of arrays, which is what numba compiles best:
#   seq[p]      instance at position p          node[x]   node of instance x       pos[x]  position of instance x
#   between[p]  bytes live just before p        events    instances by value, in order of position
#   count[v]    events of value v               numbers   0 length, 1 instances in use, 2 extras, 3 free instances
#   extras      instances that may be dropped   spare     instances not in use     totals  0 cost, 1 excess
# Instances 0 .. n-1 are the first computations.


@_compiled
def _slot(problem: Any, state: Any, v: int, p: int) -> int:
    """Number of events of v at positions below p."""
    start = problem[9][v]
    events, count, pos = state[4], state[5], state[2]
    low, high = 0, count[v]
    while low < high:
        middle = (low + high) // 2
        if pos[events[start + middle]] < p:
            low = middle + 1
        else:
            high = middle
    return low


@_compiled
def _read_next(problem: Any, state: Any, v: int, slot: int) -> bool:
    """Whether event ``slot`` of v is a read, or v stays to the end after its last event."""
    if slot >= state[5][v]:
        return bool(problem[7][v])
    return bool(state[1][state[4][problem[9][v] + slot]] != problem[4][v])


@_compiled
def _shift_range(problem: Any, state: Any, first: int, last: int, amount: int) -> None:
    """Add ``amount`` to what is live before each of the steps first .. last."""
    seq, node, between, excess, own = state[0], state[1], state[3], state[12], problem[1]
    for p in range(first, last + 1):
        level = between[p] + own[node[seq[p]]]
        if level > 0:
            excess[0] -= level
        level += amount
        if level > 0:
            excess[0] += level
        between[p] += amount


@_compiled
def _add_event(problem: Any, state: Any, v: int, slot: int, x: int) -> None:
    events, count, start = state[4], state[5], problem[9][v]
    for k in range(count[v], slot, -1):
        events[start + k] = events[start + k - 1]
    events[start + slot] = x
    count[v] += 1


@_compiled
def _drop_event(problem: Any, state: Any, v: int, slot: int) -> None:
    events, count, start = state[4], state[5], problem[9][v]
    for k in range(slot, count[v] - 1):
        events[start + k] = events[start + k + 1]
    count[v] -= 1


@_compiled
def _has_room(problem: Any, count: Any, k: int) -> bool:
    """Whether the event table can take another computation of node k."""
    first_value, input_start, inputs, capacity = problem[3], problem[5], problem[6], problem[9]
    for v in range(first_value[k], first_value[k + 1]):
        if count[v] >= capacity[v + 1] - capacity[v]:
            return False
    for e in range(input_start[k], input_start[k + 1]):
        if count[inputs[e]] >= capacity[inputs[e] + 1] - capacity[inputs[e]]:
            return False
    return True


@_compiled
def _insert(problem: Any, state: Any, k: int, p: int) -> int:
    """Compute node k again right before position p; the new instance, or -1 if there is no room for it."""
    cost, own, size, first_value, _, input_start, inputs, _, _, capacity = problem
    seq, node, pos, between, events, count, numbers, extras, spare, total, end_live, place, excess = state
    length = numbers[0]
    if length >= len(seq) or not _has_room(problem, count, k):
        return -1
    numbers[3] -= 1
    x = spare[numbers[3]]
    for q in range(length, p, -1):
        seq[q] = seq[q - 1]
        pos[seq[q]] = q
        between[q] = between[q - 1]
    if p == length:  # nothing comes after: what is live there are the outputs that are made by now
        between[p] = end_live[0]
    seq[p] = x
    node[x] = k
    pos[x] = p
    numbers[0] += 1
    level = between[p] + own[k]
    if level > 0:
        excess[0] += level
    total[0] += cost[k]
    for v in range(first_value[k], first_value[k + 1]):
        slot = _slot(problem, state, v, p)
        if _read_next(problem, state, v, slot):
            _shift_range(problem, state, pos[events[capacity[v] + slot - 1]] + 1, p, -size[v])
        _add_event(problem, state, v, slot, x)
    for e in range(input_start[k], input_start[k + 1]):
        u = inputs[e]
        slot = _slot(problem, state, u, p)
        if not _read_next(problem, state, u, slot):
            _shift_range(problem, state, pos[events[capacity[u] + slot - 1]] + 1, p, size[u])
        _add_event(problem, state, u, slot, x)
    extras[numbers[2]] = x
    place[x] = numbers[2]
    numbers[2] += 1
    return int(x)


@_compiled
def _delete(problem: Any, state: Any, x: int) -> None:
    """Drop the recomputation x."""
    cost, own, size, first_value, _, input_start, inputs, _, _, capacity = problem
    seq, node, pos, between, events, _, numbers, extras, spare, total, _, place, excess = state
    k, p = node[x], pos[x]
    for e in range(input_start[k], input_start[k + 1]):
        u = inputs[e]
        slot = _slot(problem, state, u, p)
        if not _read_next(problem, state, u, slot + 1):
            _shift_range(problem, state, pos[events[capacity[u] + slot - 1]] + 1, p, -size[u])
        _drop_event(problem, state, u, slot)
    for v in range(first_value[k], first_value[k + 1]):
        slot = _slot(problem, state, v, p)
        if _read_next(problem, state, v, slot + 1):
            _shift_range(problem, state, pos[events[capacity[v] + slot - 1]] + 1, p, size[v])
        _drop_event(problem, state, v, slot)
    level = between[p] + own[k]
    if level > 0:
        excess[0] -= level
    total[0] -= cost[k]
    numbers[0] -= 1
    for q in range(p, numbers[0]):
        seq[q] = seq[q + 1]
        pos[seq[q]] = q
        between[q] = between[q + 1]
    numbers[2] -= 1
    moved = extras[numbers[2]]
    extras[place[x]] = moved
    place[moved] = place[x]
    spare[numbers[3]] = x
    numbers[3] += 1


@_compiled
def _no_remat(problem: Any, longest: int) -> Any:
    """The state in which everything is computed once."""
    cost, own, size, first_value, producer, input_start, inputs, output, _, capacity = problem
    n, values = len(cost), len(size)
    seq, node, pos = np.zeros(longest, np.int64), np.zeros(longest, np.int64), np.zeros(longest, np.int64)
    between, extras = np.zeros(longest + 1, np.int64), np.zeros(longest, np.int64)
    events, count = np.zeros(capacity[values], np.int64), np.zeros(values, np.int64)
    place, spare = np.zeros(longest, np.int64), np.zeros(longest, np.int64)
    for k in range(n):
        seq[k] = node[k] = pos[k] = k
    for x in range(longest - n):
        spare[x] = longest - 1 - x
    for k in range(n):
        for e in range(input_start[k], input_start[k + 1]):
            u = inputs[e]
            events[capacity[u] + count[u]] = k
            count[u] += 1
        for v in range(first_value[k], first_value[k + 1]):
            events[capacity[v]] = k
            count[v] = 1
    end_live = np.zeros(1, np.int64)
    for v in range(values):
        last = n - 1 if output[v] else events[capacity[v] + count[v] - 1]
        for p in range(producer[v] + 1, last + 1):
            between[p] += size[v]
        if output[v]:
            end_live[0] += size[v]
    total, excess = np.zeros(1, np.float64), np.zeros(1, np.int64)
    for k in range(n):
        total[0] += cost[k]
        excess[0] += max(0, between[k] + own[k])
    numbers = np.array([n, n, 0, longest - n])
    return (seq, node, pos, between, events, count, numbers, extras, spare, total, end_live, place, excess)


@_compiled
def _somewhere(problem: Any, state: Any) -> int:
    """A position, mostly one that is over the budget if there is one."""
    own, seq, node, between, numbers = problem[1], state[0], state[1], state[3], state[6]
    if state[12][0] > 0 and np.random.random() < 0.8:
        for _ in range(40):
            q = np.random.randint(numbers[0])
            if between[q] + own[node[seq[q]]] > 0:
                return int(q)
    return int(np.random.randint(numbers[0]))


@_compiled
def _propose_insert(problem: Any, state: Any, added: Any) -> int:
    """Give up a value that waits somewhere and compute it again for its next reader; how many instances that took."""
    producer, fixed, capacity = problem[4], problem[8], problem[9]
    pos, events, count, numbers = state[2], state[4], state[5], state[6]
    where = _somewhere(problem, state)
    for _ in range(40):
        v = np.random.randint(len(count))
        s = _slot(problem, state, v, where)
        if fixed[producer[v]] or s == 0 or not _read_next(problem, state, v, s):
            continue
        p = pos[events[capacity[v] + s]] if s < count[v] else numbers[0]
        if p <= where:
            continue  # the step at hand reads it
        added[0] = _insert(problem, state, producer[v], p)
        return _chain(problem, state, added) if added[0] >= 0 else 0
    return 0


@_compiled
def _chain(problem: Any, state: Any, added: Any) -> int:
    """Also compute again, half of the time, inputs that would have to live longer for ``added[0]``; how many in all."""
    producer, input_start, inputs, fixed, capacity = problem[4], problem[5], problem[6], problem[8], problem[9]
    node, pos, events = state[1], state[2], state[4]
    taken, done = 1, 0
    while done < taken:
        x = added[done]
        k = node[x]
        for e in range(input_start[k], input_start[k + 1]):
            u = inputs[e]
            s = _slot(problem, state, u, pos[x])
            waits = pos[x] - pos[events[capacity[u] + s - 1]]
            longer = waits > _SHORT_WAIT and not fixed[producer[u]] and not _read_next(problem, state, u, s + 1)
            if longer and taken < len(added) and np.random.random() < 0.5:
                y = _insert(problem, state, producer[u], pos[x])
                if y >= 0:
                    added[taken] = y
                    taken += 1
        done += 1
    return taken


@_compiled
def _new_position(problem: Any, state: Any, k: int) -> int:
    """A position right before some reader of node k, after its first computation; -1 if there is none."""
    first_value, capacity = problem[3], problem[9]
    pos, events, count = state[2], state[4], state[5]
    made = first_value[k + 1] - first_value[k]
    if made == 0:
        return -1
    v = first_value[k] + np.random.randint(made)
    if count[v] < 2:
        return -1
    return int(pos[events[capacity[v] + 1 + np.random.randint(count[v] - 1)]])


@_compiled
def run(problem: Any, start: Any, longest: int, moves: int, hot: float, cold: float, price: float, seed: int) -> Any:
    np.random.seed(seed)
    state = _no_remat(problem, longest)
    seq, node, pos, numbers, extras = state[0], state[1], state[2], state[6], state[7]
    total, excess = state[9], state[12]
    seen = np.zeros(len(problem[0]), np.bool_)
    for p in range(len(start)):
        if seen[start[p]]:
            _insert(problem, state, start[p], min(p, numbers[0]))
        seen[start[p]] = True
    best = np.zeros(0, np.int64)
    best_cost = np.inf
    added = np.zeros(24, np.int64)
    cooling = (cold / hot) ** (1.0 / max(1, moves))
    heat = hot
    for _ in range(moves):
        heat *= cooling
        cost_before, excess_before = total[0], excess[0]
        taken, dropped_node, dropped_at = 0, -1, 0
        pick = np.random.random()
        if numbers[2] > 0 and pick > 0.4:
            x = extras[np.random.randint(numbers[2])]
            dropped_node, dropped_at = node[x], pos[x]
            _delete(problem, state, x)
            if pick > 0.85:
                taken = _propose_insert(problem, state, added)
            elif pick > 0.65:
                p = _new_position(problem, state, dropped_node)
                if p > pos[dropped_node]:
                    added[0] = _insert(problem, state, dropped_node, p)
                    taken = 1 if added[0] >= 0 else 0
        else:
            taken = _propose_insert(problem, state, added)
        change = total[0] - cost_before + price * (excess[0] - excess_before)
        if change > 0 and np.random.random() >= np.exp(-change / heat):
            for y in range(taken - 1, -1, -1):
                _delete(problem, state, added[y])
            if dropped_node >= 0:
                _insert(problem, state, dropped_node, dropped_at)
            total[0] = cost_before
        elif excess[0] == 0 and total[0] < best_cost - 1e-12:
            best_cost = total[0]
            best = node[seq[: numbers[0]]].copy()
    return best, node[seq[: numbers[0]]].copy(), excess[0]
