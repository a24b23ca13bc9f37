"""The inner loop of annealing an order of nodes, compiled by numba: plain functions over tuples of arrays.

Every node runs once. A move takes a run of consecutive steps and moves its last node with its ancestors in the run to
the front (*pull*), or its first node with its descendants in the run to the back (*push*). The result is always a
topological order, and nothing changes outside the run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from remat_cli.graph.arrays import Arrays
from remat_cli.kernels.compiling import entry, inner
from remat_cli.mip import Ints

_STAGE_CUTS, _LOOKS = 0.8, 30
"""Probability that a move starts at a step over the target, and how many steps are sampled for one. Untuned."""
_PULLS = 0.5
"""Probability that a move pulls; else it pushes. Untuned."""
_LOWERING = 2000
"""A target that is reached is lowered by the peak divided by this. Untuned."""


class State(NamedTuple):
    """An order of n nodes, with V values.

    Attributes:
        seq: int64[n], node at a step.
        pos: int64[n], step of a node.
        before: int64[n + 1], bytes live right before a step.
        last: int64[V], step of a value's last reader.
        new: int64[n], a run of steps in its new order.
        level: int64[n + 1], bytes live right before each of these steps.
        stamp: int64[max(n, V)], marks of values and nodes.
        mark: int64[1], the latest mark.
        best: int64[n], the best order so far.
    """

    seq: Ints
    pos: Ints
    before: Ints
    last: Ints
    new: Ints
    level: Ints
    stamp: Ints
    mark: Ints
    best: Ints


@inner
def _start(graph: Arrays, kept: Any, s: State) -> None:
    """Fill in the fields that follow from the order ``s.seq``."""
    n = len(s.seq)
    s.last[:] = -1
    for p in range(n):
        k = s.seq[p]
        s.pos[k] = p
        for e in range(graph.input_start[k], graph.input_start[k + 1]):
            s.last[graph.inputs[e]] = p
    s.before[0] = 0
    for p in range(n):
        k = s.seq[p]
        level = s.before[p] + kept[k]
        for e in range(graph.input_start[k], graph.input_start[k + 1]):
            v = graph.inputs[e]
            if s.last[v] == p and not graph.output[v]:
                level -= graph.size[v]
        s.before[p + 1] = level


@inner
def _remember(s: State) -> None:
    """Remember the order as the best one so far."""
    for p in range(len(s.seq)):
        s.best[p] = s.seq[p]


@inner
def _excess(graph: Arrays, s: State, target: int) -> int:
    own, seq, before = graph.own, s.seq, s.before
    total = 0
    for p in range(len(seq)):
        total += max(0, before[p] + own[seq[p]] - target)
    return total


@inner
def _peak(graph: Arrays, s: State) -> int:
    own, seq, before = graph.own, s.seq, s.before
    highest = 0
    for p in range(len(seq)):
        highest = max(highest, before[p] + own[seq[p]])
    return highest


@inner
def _pull(graph: Arrays, s: State, i: int, j: int) -> int:
    """Move the last node of the run i .. j and its ancestors to the front; the number of nodes moved."""
    producer, input_start, inputs = graph.producer, graph.input_start, graph.inputs
    seq, new, stamp = s.seq, s.new, s.stamp
    s.mark[0] += 1
    mark = s.mark[0]
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
def _push(graph: Arrays, s: State, i: int, j: int) -> int:
    """Move the first node of the run i .. j and its descendants to the back; the number of nodes moved."""
    producer, input_start, inputs = graph.producer, graph.input_start, graph.inputs
    seq, new, stamp = s.seq, s.new, s.stamp
    s.mark[0] += 1
    mark = s.mark[0]
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
def _change(graph: Arrays, kept: Any, s: State, i: int, j: int, target: int) -> int:
    """The change of the excess by the new run i .. j; fills in the levels."""
    own, size, stays, input_start, inputs = graph.own, graph.size, graph.output, graph.input_start, graph.inputs
    seq, before, last, new, level, stamp = s.seq, s.before, s.last, s.new, s.level, s.stamp
    s.mark[0] += 1
    mark = s.mark[0]
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
def _accept(graph: Arrays, s: State, i: int, j: int) -> None:
    input_start, inputs = graph.input_start, graph.inputs
    seq, pos, before, last, new, level = s.seq, s.pos, s.before, s.last, s.new, s.level
    for q in range(j - i + 1):
        k = new[q]
        seq[i + q] = k
        pos[k] = i + q
        before[i + q] = level[q]
        for e in range(input_start[k], input_start[k + 1]):
            if last[inputs[e]] <= j:
                last[inputs[e]] = i + q


@inner
def _where(graph: Arrays, s: State, target: int) -> int:
    """A random step, mostly one over the target."""
    own, seq, before = graph.own, s.seq, s.before
    n = len(seq)
    if np.random.random() < _STAGE_CUTS:
        for _ in range(_LOOKS):
            p = np.random.randint(n)
            if before[p] + own[seq[p]] > target:
                return int(p)
    return int(np.random.randint(n))


@entry
def run(
    graph: Arrays,
    kept: Ints,
    s: State,
    target: int,
    floor: int,
    lower: bool,
    moves: int,
    hot: float,
    cold: float,
    seed: int,
) -> int:
    """Anneal the order ``s.seq``; ``s.best`` gets the best order, and its excess over the last target is returned."""
    np.random.seed(seed)
    _start(graph, kept, s)
    n = len(s.seq)
    excess = _excess(graph, s, target)
    best_excess = excess
    _remember(s)
    cooling = (cold / hot) ** (1.0 / max(1, moves))
    heat = hot * max(1, target)
    widest = np.log(max(2.0, float(n)))
    for _ in range(moves):
        if excess == 0:
            best_excess = 0
            _remember(s)
            peak = _peak(graph, s)
            if not lower or peak <= floor:
                break
            target = max(floor, peak - max(1, peak // _LOWERING))
            excess = _excess(graph, s, target)
            best_excess = excess
        heat *= cooling
        p = _where(graph, s, target)
        # The logarithm of the length is uniform: short runs are cheap to evaluate, long ones are needed now and then.
        length = int(np.exp(np.random.random() * widest))
        shift = np.random.randint(length + 1)
        i, j = max(0, p - shift), min(n - 1, p + length - shift)
        if i >= j:
            continue
        taken = _pull(graph, s, i, j) if np.random.random() < _PULLS else _push(graph, s, i, j)
        if taken > j - i:
            continue
        change = _change(graph, kept, s, i, j, target)
        if change <= 0 or np.random.random() < np.exp(-change / heat):
            _accept(graph, s, i, j)
            excess += change
            if excess < best_excess:
                best_excess = excess
                _remember(s)
    return best_excess
