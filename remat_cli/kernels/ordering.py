"""The inner loop of annealing an order of nodes, compiled by numba: plain functions over tuples of arrays.

Everything is computed once. A move takes a run of consecutive steps and pulls its last node with all that it needs of
the run to the front, or pushes its first node with all that needs it to the back. The result is always a topological
order, and nothing changes outside the run.

``problem`` is (own, kept, size, stays, producer, input_start, inputs), the fields of ``anneal.Problem``. ``state``
is what is listed below.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from remat_cli.kernels.compiling import entry, inner
from remat_cli.mip import Bools, Ints

# The state of a run, a tuple of arrays:
#   seq[p]     node at step p          before[p]  bytes live just before step p     last[v]  step of v's last reader
#   pos[k]     step of node k          new        the run in its new order          stamp    marks of values and nodes
#   level      bytes just before each step of the new run                           numbers  0 the latest mark

_Problem = tuple[Ints, Ints, Ints, Bools, Ints, Ints, Ints]


@inner
def _start(problem: Any, order: Any) -> Any:
    """The state for ``order``."""
    own, kept, size, stays, _, input_start, inputs = problem
    n, values = len(own), len(size)
    seq, pos = order.copy(), np.zeros(n, np.int64)
    last = np.full(values, -1, np.int64)
    for p in range(n):
        pos[seq[p]] = p
        for e in range(input_start[seq[p]], input_start[seq[p] + 1]):
            last[inputs[e]] = p
    before = np.zeros(n + 1, np.int64)
    for p in range(n):
        k = seq[p]
        before[p + 1] = before[p] + kept[k]
        for e in range(input_start[k], input_start[k + 1]):
            v = inputs[e]
            if last[v] == p and not stays[v]:
                before[p + 1] -= size[v]
    new, level = np.zeros(n, np.int64), np.zeros(n + 1, np.int64)
    stamp, numbers = np.zeros(max(n, values), np.int64), np.zeros(1, np.int64)
    return seq, pos, before, last, new, level, stamp, numbers


@inner
def _excess(problem: Any, state: Any, target: int) -> int:
    own, seq, before = problem[0], state[0], state[2]
    total = 0
    for p in range(len(seq)):
        total += max(0, before[p] + own[seq[p]] - target)
    return total


@inner
def _peak(problem: Any, state: Any) -> int:
    own, seq, before = problem[0], state[0], state[2]
    highest = 0
    for p in range(len(seq)):
        highest = max(highest, before[p] + own[seq[p]])
    return highest


@inner
def _pull(problem: Any, state: Any, i: int, j: int) -> int:
    """Put the last node of the run i .. j and what it needs first; how many nodes that is."""
    producer, input_start, inputs = problem[4], problem[5], problem[6]
    seq, new, stamp, numbers = state[0], state[4], state[6], state[7]
    numbers[0] += 1
    mark = numbers[0]
    stamp[seq[j]] = mark
    taken = 0
    for p in range(j, i - 1, -1):
        k = seq[p]
        if stamp[k] == mark:
            taken += 1
            for e in range(input_start[k], input_start[k + 1]):
                stamp[producer[inputs[e]]] = mark
    front, back = 0, taken
    for p in range(i, j + 1):
        k = seq[p]
        if stamp[k] == mark:
            new[front] = k
            front += 1
        else:
            new[back] = k
            back += 1
    return taken


@inner
def _push(problem: Any, state: Any, i: int, j: int) -> int:
    """Put the first node of the run i .. j and what needs it last; how many nodes that is."""
    producer, input_start, inputs = problem[4], problem[5], problem[6]
    seq, new, stamp, numbers = state[0], state[4], state[6], state[7]
    numbers[0] += 1
    mark = numbers[0]
    stamp[seq[i]] = mark
    taken = 1
    for p in range(i + 1, j + 1):
        k = seq[p]
        for e in range(input_start[k], input_start[k + 1]):
            if stamp[producer[inputs[e]]] == mark:
                stamp[k] = mark
                taken += 1
                break
    front, back = 0, j + 1 - i - taken
    for p in range(i, j + 1):
        k = seq[p]
        if stamp[k] == mark:
            new[back] = k
            back += 1
        else:
            new[front] = k
            front += 1
    return taken


@inner
def _change(problem: Any, state: Any, i: int, j: int, target: int) -> int:
    """By how much the new run i .. j changes the excess; fills in the levels."""
    own, kept, size, stays, _, input_start, inputs = problem
    seq, before, last, new, level, stamp, numbers = (
        state[0],
        state[2],
        state[3],
        state[4],
        state[5],
        state[6],
        state[7],
    )
    numbers[0] += 1
    mark = numbers[0]
    for q in range(j - i, -1, -1):
        k = new[q]
        dead = 0
        for e in range(input_start[k], input_start[k + 1]):
            v = inputs[e]
            if last[v] <= j and stamp[v] != mark:
                stamp[v] = mark
                if not stays[v]:
                    dead += size[v]
        level[q + 1] = kept[k] - dead
    level[0] = before[i]
    change = 0
    for q in range(j - i + 1):
        change += max(0, level[q] + own[new[q]] - target) - max(0, before[i + q] + own[seq[i + q]] - target)
        level[q + 1] += level[q]
    return change


@inner
def _accept(problem: Any, state: Any, i: int, j: int) -> None:
    input_start, inputs = problem[5], problem[6]
    seq, pos, before, last, new, level = state[0], state[1], state[2], state[3], state[4], state[5]
    for q in range(j - i + 1):
        k = new[q]
        seq[i + q] = k
        pos[k] = i + q
        before[i + q] = level[q]
        for e in range(input_start[k], input_start[k + 1]):
            if last[inputs[e]] <= j:
                last[inputs[e]] = i + q


@inner
def _where(problem: Any, state: Any, target: int) -> int:
    """A step, mostly one that is over the target."""
    own, seq, before = problem[0], state[0], state[2]
    n = len(seq)
    if np.random.random() < 0.8:
        for _ in range(30):
            p = np.random.randint(n)
            if before[p] + own[seq[p]] > target:
                return int(p)
    return int(np.random.randint(n))


@entry
def run(
    problem: _Problem,
    order: Ints,
    target: int,
    floor: int,
    lower: bool,
    moves: int,
    hot: float,
    cold: float,
    seed: int,
) -> Any:
    """Anneal ``order``; the best one, and its bytes over the last target."""
    np.random.seed(seed)
    state = _start(problem, order)
    n = len(order)
    seq = state[0]
    excess = _excess(problem, state, target)
    best, best_excess = seq.copy(), excess
    cooling = (cold / hot) ** (1.0 / max(1, moves))
    heat = hot * max(1, target)
    widest = np.log(max(2.0, float(n)))
    for _ in range(moves):
        if excess == 0:
            best, best_excess = seq.copy(), 0
            peak = _peak(problem, state)
            if not lower or peak <= floor:
                break
            target = max(floor, peak - max(1, peak // 2000))
            excess = _excess(problem, state, target)
            best_excess = excess
        heat *= cooling
        p = _where(problem, state, target)
        length = int(np.exp(np.random.random() * widest))
        shift = np.random.randint(length + 1)
        i, j = max(0, p - shift), min(n - 1, p + length - shift)
        if i >= j:
            continue
        taken = _pull(problem, state, i, j) if np.random.random() < 0.5 else _push(problem, state, i, j)
        if taken > j - i:
            continue
        change = _change(problem, state, i, j, target)
        if change <= 0 or np.random.random() < np.exp(-change / heat):
            _accept(problem, state, i, j)
            excess += change
            if excess < best_excess:
                best_excess = excess
                best[:] = seq
    return best, best_excess
