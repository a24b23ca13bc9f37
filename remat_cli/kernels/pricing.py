"""The inner loops of the price method (see ``strategies/openers/prices``), compiled by numba.

There are n nodes; stage n is the closing stage, which reads the graph outputs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from remat_cli.graph.arrays import Arrays
from remat_cli.kernels.compiling import entry, inner
from remat_cli.mip import Bools, Floats, Ints

_DEEPEST = 60
"""Length of the longest chain of recomputation to estimate. Untuned."""
_MOST_VISITS = 100
"""Nodes to visit for one estimate; this bounds its time. Untuned."""
_NEAR, _PER_ROOM = 0.2, 20.0
"""The rise of a price, as a share of a step: for a stage just over the room, and per room of excess. Untuned."""
FRAMES = 128
"""Size of the stack for an estimate; larger than ``_DEEPEST``."""


class Plan(NamedTuple):
    """The decisions of a pass, and its working arrays.

    Attributes:
        last: int64[V], the last stage at which a value is known to be resident.
        memo: float64[V], the last estimate of the cost of having a value, ...
        memo_stage: int64[V], ... and the stage that it is for.
        chosen: int64[n + 1], the nodes recomputed in a stage.
        stack: int64[E + 1], values still to be provided.
        ahead: int64[V], the number of readers in earlier stages.
        values: int64[FRAMES], the stack of a depth-first search along inputs: the value, ...
        edges: int64[FRAMES], ... the next input of its node, ...
        totals: float64[FRAMES], ... and the cost so far.
        prefix: float64[n + 2], prefix sums of prices.
        live: bool[V].
        seq: int64, the nodes in the order in which they run.
        stage: int64, the stage of each.
        highest: int64[n + 1], the peak of each stage, without fixed memory.
    """

    last: Ints
    memo: Floats
    memo_stage: Ints
    chosen: Ints
    stack: Ints
    ahead: Ints
    values: Ints
    edges: Ints
    totals: Floats
    prefix: Floats
    live: Bools
    seq: Ints
    stage: Ints
    highest: Ints


@inner
def _waiting(graph: Arrays, plan: Plan, v: int, t: int) -> float:
    """The price of keeping v from where it was last resident to stage t."""
    return float(graph.size[v] * (plan.prefix[t] - plan.prefix[plan.last[v] + 1]))


@inner
def _later(graph: Arrays, plan: Plan, v: int, t: int) -> float:
    """The price of keeping v from stage t to its next reader; infinity if it has none."""
    size, reader_start, readers, ahead = graph.size, graph.reader_start, graph.readers, plan.ahead
    k = reader_start[v] + ahead[v]
    while k < reader_start[v + 1] and readers[k] <= t:
        k += 1
    ahead[v] = k - reader_start[v]
    if k == reader_start[v + 1]:
        return np.inf
    return float(size[v] * (plan.prefix[readers[k]] - plan.prefix[t + 1]))


@inner
def _known(graph: Arrays, plan: Plan, v: int, t: int, depth: int, visits: int) -> float:
    """The cost of having v in stage t if that is known without its inputs; else -1."""
    if plan.last[v] == t:
        return 0.0
    least = _waiting(graph, plan, v, t)
    k = graph.producer[v]
    if graph.fixed[k] or graph.cost[k] >= least or depth >= _DEEPEST or visits > _MOST_VISITS:
        return least
    return float(plan.memo[v]) if plan.memo_stage[v] == t else -1.0


@inner
def _estimate(graph: Arrays, plan: Plan, root: int, t: int, credit: float) -> float:
    """An estimate of the cost of having ``root`` in stage t: kept, or recomputed with the inputs that it needs.

    A depth-first search along inputs with a stack of its own, because numba does not cache recursive functions. Inputs
    shared by two recomputations are counted twice: exact sharing would take a minimum cut for every value.
    """
    cost, producer, input_start, inputs = graph.cost, graph.producer, graph.input_start, graph.inputs
    memo, memo_stage, values, edges, totals = plan.memo, plan.memo_stage, plan.values, plan.edges, plan.totals
    depth, visits = 0, 0
    part = _known(graph, plan, root, t, depth, visits)
    if part >= 0.0:
        return float(part)
    visits += 1
    values[0], edges[0], totals[0] = root, input_start[producer[root]], cost[producer[root]]
    while depth >= 0:
        v = values[depth]
        k = producer[v]
        least = _waiting(graph, plan, v, t)
        if edges[depth] < input_start[k + 1] and totals[depth] < least:
            u = inputs[edges[depth]]
            visits += 1
            part = _known(graph, plan, u, t, depth + 1, visits)
            if part < 0.0:
                depth += 1
                values[depth], edges[depth], totals[depth] = u, input_start[producer[u]], cost[producer[u]]
                continue
        else:
            part = min(least, totals[depth])
            memo[v], memo_stage[v] = part, t
            depth -= 1
            if depth < 0:
                return float(part)
            u = v
        if credit > 0.0 and part > 0.0:
            # An input that is read again later must be provided for that reader anyway.
            part = (1.0 - credit) * part + credit * min(part, _later(graph, plan, u, t))
        if plan.last[u] != t:  # an input of a recomputation is resident during the stage, which has its price too
            part += graph.size[u] * (plan.prefix[t + 1] - plan.prefix[t])
        totals[depth] += part
        edges[depth] += 1
    return 0.0  # never reached: the root returns


@inner
def _provide(graph: Arrays, plan: Plan, v: int, t: int, credit: float, taken: int) -> int:
    """Decide how v, and all that its recomputation needs, gets to stage t; the number of nodes recomputed in t."""
    first_value, producer, input_start, inputs = graph.first_value, graph.producer, graph.input_start, graph.inputs
    last, chosen, stack = plan.last, plan.chosen, plan.stack
    stack[0] = v
    waiting = 1
    while waiting > 0:
        waiting -= 1
        u = stack[waiting]
        if last[u] == t:
            continue
        keep = _waiting(graph, plan, u, t)
        if keep <= 0.0 or _estimate(graph, plan, u, t, credit) >= keep:
            last[u] = t
            continue
        k = producer[u]
        chosen[taken] = k
        taken += 1
        for x in range(first_value[k], first_value[k + 1]):
            last[x] = t
        for e in range(input_start[k], input_start[k + 1]):
            if last[inputs[e]] != t:
                stack[waiting] = inputs[e]
                waiting += 1
    return taken


@inner
def _sort(numbers: Any, count: int) -> None:
    """Sort the first ``count`` of some integers by Shell's method: NumPy's own takes numba a second to compile."""
    gap = 1
    while gap < count:
        gap = 3 * gap + 1
    while gap > 0:
        for at in range(gap, count):
            number, to = numbers[at], at
            while to >= gap and numbers[to - gap] > number:
                numbers[to] = numbers[to - gap]
                to -= gap
            numbers[to] = number
        gap //= 3


@inner
def _decide(graph: Arrays, plan: Plan, prices: Any, credit: float) -> int:
    """One pass: keep or recompute, by the cheaper estimate at ``prices``; the number of computes, 0 for too many."""
    chosen, seq, stage, inputs = plan.chosen, plan.seq, plan.stage, graph.inputs
    n = len(graph.cost)
    plan.prefix[0] = 0.0
    for t in range(n + 1):
        plan.prefix[t + 1] = plan.prefix[t] + prices[t]
    plan.last[:] = -1
    plan.memo_stage[:] = -1
    plan.ahead[:] = 0
    length = 0
    for t in range(n + 1):
        taken = 0
        for e in range(graph.input_start[t], graph.input_start[t + 1]):
            taken = _provide(graph, plan, inputs[e], t, credit, taken)
        if length + taken + 1 > len(seq):
            return 0
        _sort(chosen, taken)
        for k in range(taken):
            seq[length] = chosen[k]
            stage[length] = t
            length += 1
        if t < n:
            seq[length] = stage[length] = t
            length += 1
            for x in range(graph.first_value[t], graph.first_value[t + 1]):
                plan.last[x] = t
    return length


@inner
def _profile(graph: Arrays, plan: Plan, length: int) -> None:
    """Find the peak of each stage, backwards: a value dies at the last step that reads it."""
    size, first_value, input_start, inputs = graph.size, graph.first_value, graph.input_start, graph.inputs
    live, highest = plan.live, plan.highest
    n = len(graph.cost)
    live[:] = False
    highest[:] = 0
    level = 0
    for e in range(input_start[n], input_start[n + 1]):
        live[inputs[e]] = True
        level += size[inputs[e]]
    highest[n] = level
    for p in range(length - 1, -1, -1):
        k = plan.seq[p]
        here = level + graph.workspace[k]
        for v in range(first_value[k], first_value[k + 1]):
            if live[v]:
                live[v] = False
                level -= size[v]
            else:
                here += size[v]
        for e in range(input_start[k], input_start[k + 1]):
            u = inputs[e]
            if not live[u]:
                live[u] = True
                level += size[u]
                here += size[u]
        t = plan.stage[p]
        highest[t] = max(highest[t], here)


@inner
def _adjust(prices: Any, highest: Any, room: int, least: float, step: float, slow: float) -> int:
    """Raise the prices of stages over ``room`` and lower the others; the excess of the worst stage, in bytes."""
    worst = 0
    for t in range(len(prices)):
        over = highest[t] - room
        worst = max(worst, over)
        if over > 0:
            prices[t] = max(least, prices[t]) * np.exp(step * min(1.0, _NEAR + _PER_ROOM * over / room))
        elif prices[t] > 0.0:
            prices[t] = max(least, prices[t] * np.exp(step * slow * max(-1.0, _PER_ROOM * over / room)))
    return worst


@entry
def run(
    graph: Arrays, plan: Plan, prices: Floats, room: int, least: float, credit: float, step: float, slow: float
) -> tuple[int, int]:
    """Decide at the prices, find the memory that this takes, and adjust the prices.

    Args:
        graph: The graph.
        plan: Overwritten.
        prices: float64[n + 1], price of a byte that waits through a stage; changed. Zero for a stage never over.
        room: Bytes for values, at least 1.
        least: Price of a stage when it is first over the room; no price falls below it.
        credit: From 0 to 1, the share of an input's cost that a recomputation is spared if the input is read later.
        step: Logarithm of the factor by which a price rises if its stage is over by 4 % of the room or more.
        slow: How far a price falls if 5 % of the room or more is free, relative to ``step``.

    Returns:
        The number of computes, 0 if they are more than ``plan.seq`` holds; and the excess of the worst stage in bytes.
    """
    length = _decide(graph, plan, prices, credit)
    if length == 0:
        return 0, 0
    _profile(graph, plan, length)
    return length, _adjust(prices, plan.highest, room, least, step, slow)
