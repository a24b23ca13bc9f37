"""The inner loops of starts by prices, compiled by numba.

There are n nodes; stage n is the closing stage, which reads the graph outputs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from remat_cli.graph.arrays import Arrays
from remat_cli.kernels.compiling import entry, inner
from remat_cli.mip import Bools, Floats, Ints

_DEEPEST = 60
"""Chains of recomputation are looked at up to this length."""
_MOST_VISITS = 100
"""Nodes looked at to decide on one value."""
_NEAR, _PER_ROOM = 0.2, 20.0
"""How far a price is raised, as a share of a step, for a stage that is hardly over the room, and in addition per room
that it is over; untuned."""
FRAMES = 128
"""Room for chains of recomputation, longer than any that is looked at."""


class Plan(NamedTuple):
    """What is decided, and room to work in.

    Attributes:
        last: int64[V], the last stage at which a value is known to be resident.
        memo: float64[V], what it costs to have it in a stage, ...
        memo_stage: int64[V], ... and in which.
        chosen: int64[n + 1], the nodes computed again in a stage.
        stack: int64[E + 1], values to be provided.
        ahead: int64[V], how many of its readers are behind.
        values: int64[FRAMES], for going up the inputs in depth: the value, ...
        edges: int64[FRAMES], ... the next input of its node, ...
        totals: float64[FRAMES], ... and the cost so far.
        prefix: float64[n + 2], sums of prices.
        live: bool[V].
        seq: int64, the nodes in the order in which they run.
        stage: int64, the stage of each.
        highest: int64[n + 1], the most memory in use in each stage, fixed memory left out.
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
    """What keeping v from where it was last resident to stage t costs."""
    return float(graph.size[v] * (plan.prefix[t] - plan.prefix[plan.last[v] + 1]))


@inner
def _later(graph: Arrays, plan: Plan, v: int, t: int) -> float:
    """What keeping v from stage t to its next reader costs; infinity if it has none."""
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
    """What it costs to have v in stage t as far as that needs no further look; -1 if it does."""
    if plan.last[v] == t:
        return 0.0
    least = _waiting(graph, plan, v, t)
    k = graph.producer[v]
    if graph.fixed[k] or graph.cost[k] >= least or depth >= _DEEPEST or visits > _MOST_VISITS:
        return least
    return float(plan.memo[v]) if plan.memo_stage[v] == t else -1.0


@inner
def _estimate(graph: Arrays, plan: Plan, root: int, t: int, credit: float) -> float:
    """About what it costs to have ``root`` in stage t: keeping it, or computing it again with what that needs.

    Goes up the inputs in depth, with frames of its own: numba keeps no functions that call themselves.
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
            # What is read again soon has to be made available anyway.
            part = (1.0 - credit) * part + credit * min(part, _later(graph, plan, u, t))
        if plan.last[u] != t:  # while the stage runs it is there, which only what the stage reads itself has to be
            part += graph.size[u] * (plan.prefix[t + 1] - plan.prefix[t])
        totals[depth] += part
        edges[depth] += 1
    return 0.0  # never reached: the root returns


@inner
def _provide(graph: Arrays, plan: Plan, v: int, t: int, credit: float, taken: int) -> int:
    """Decide how v comes to stage t, with all that needs; the number of nodes computed again in t so far."""
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
    """Go through the stages once and keep or compute again whatever is cheaper at ``prices``; how many run, or 0."""
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
    """Work out the most memory in use in each stage."""
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
    """Raise the prices of stages over ``room`` and lower the others'; bytes by which the worst is over."""
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
    """Decide at the prices, work out the memory that this takes, and adjust the prices.

    Args:
        graph: The graph.
        plan: Overwritten.
        prices: float64[n + 1], cost of a byte that waits through a stage; changed. Zero where nothing was ever over.
        room: Bytes there are, at least 1.
        least: Price of a stage that is over for the first time; none falls below it.
        credit: From 0 to 1, how much of what an input of a recomputation costs is taken off if it is read again later.
        step: How far a stage that is over by a twentieth of the room or more is raised, as a logarithm.
        slow: How far, relative to that, one with as much to spare is lowered.

    Returns:
        The number of nodes that run, 0 if they are more than there is room for; and the bytes by which the worst stage
        is over the room.
    """
    length = _decide(graph, plan, prices, credit)
    if length == 0:
        return 0, 0
    _profile(graph, plan, length)
    return length, _adjust(prices, plan.highest, room, least, step, slow)
