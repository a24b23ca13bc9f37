"""The inner loops of starts by prices, compiled by numba: plain functions over tuples of arrays.

``problem`` is (cost, size, first_value, producer, input_start, inputs, reader_start, readers, fixed, workspace), the
arrays that ``openers.prices.Arrays`` holds. There are n nodes; stage n is the closing stage, which reads the graph
outputs.
``plan`` is (last, memo, memo_stage, chosen, stack, ahead, values, edges, totals): for every value the last stage at
which it is known to be resident, what it costs to have it in the stage at hand (and for which stage that was worked
out), room for the nodes computed again in a stage and for work to be done, for every value how many of its readers are
behind, and three columns of frames for going up the inputs in depth.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from remat_cli.kernels.compiling import entry, inner
from remat_cli.mip import Bools, Floats, Ints

_Problem = tuple[Floats, Ints, Ints, Ints, Ints, Ints, Ints, Ints, Bools, Ints]
_Plan = tuple[Ints, Floats, Ints, Ints, Ints, Ints, Ints, Ints, Floats]
_DEEPEST = 60
"""Chains of recomputation are looked at up to this length."""
_MOST_VISITS = 100
"""Nodes looked at to decide on one value."""


@inner
def _waiting(problem: Any, plan: Any, prefix: Any, v: int, t: int) -> float:
    """What keeping v from where it was last resident to stage t costs."""
    return float(problem[1][v] * (prefix[t] - prefix[plan[0][v] + 1]))


@inner
def _later(problem: Any, plan: Any, prefix: Any, v: int, t: int) -> float:
    """What keeping v from stage t to its next reader costs; infinity if it has none."""
    size, reader_start, readers, ahead = problem[1], problem[6], problem[7], plan[5]
    k = reader_start[v] + ahead[v]
    while k < reader_start[v + 1] and readers[k] <= t:
        k += 1
    ahead[v] = k - reader_start[v]
    if k == reader_start[v + 1]:
        return np.inf
    return float(size[v] * (prefix[readers[k]] - prefix[t + 1]))


@inner
def _known(problem: Any, plan: Any, prefix: Any, v: int, t: int, depth: int, visits: int) -> float:
    """What it costs to have v in stage t as far as that needs no further look; -1 if it does."""
    if plan[0][v] == t:
        return 0.0
    least = _waiting(problem, plan, prefix, v, t)
    k = problem[3][v]
    if problem[8][k] or problem[0][k] >= least or depth >= _DEEPEST or visits > _MOST_VISITS:
        return least
    return float(plan[1][v]) if plan[2][v] == t else -1.0


@inner
def _estimate(problem: Any, plan: Any, prefix: Any, root: int, t: int, credit: float) -> float:
    """About what it costs to have ``root`` in stage t: keeping it, or computing it again with what that needs.

    Goes up the inputs in depth, with frames of its own: numba keeps no functions that call themselves.
    """
    cost, producer, input_start, inputs = problem[0], problem[3], problem[4], problem[5]
    memo, memo_stage, values, edges, totals = plan[1], plan[2], plan[6], plan[7], plan[8]
    depth, visits = 0, 0
    part = _known(problem, plan, prefix, root, t, depth, visits)
    if part >= 0.0:
        return float(part)
    visits += 1
    values[0], edges[0], totals[0] = root, input_start[producer[root]], cost[producer[root]]
    while depth >= 0:
        v = values[depth]
        k = producer[v]
        least = _waiting(problem, plan, prefix, v, t)
        if edges[depth] < input_start[k + 1] and totals[depth] < least:
            u = inputs[edges[depth]]
            visits += 1
            part = _known(problem, plan, prefix, u, t, depth + 1, visits)
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
            part = (1.0 - credit) * part + credit * min(part, _later(problem, plan, prefix, u, t))
        if plan[0][u] != t:  # while the stage runs it is there, which only what the stage reads itself has to be
            part += problem[1][u] * (prefix[t + 1] - prefix[t])
        totals[depth] += part
        edges[depth] += 1
    return 0.0  # never reached: the root returns


@inner
def _provide(problem: Any, plan: Any, prefix: Any, v: int, t: int, credit: float, taken: int) -> int:
    """Decide how v comes to stage t, with all that needs; the number of nodes computed again in t so far."""
    first_value, producer, input_start, inputs = problem[2], problem[3], problem[4], problem[5]
    last, chosen, stack = plan[0], plan[3], plan[4]
    stack[0] = v
    waiting = 1
    while waiting > 0:
        waiting -= 1
        u = stack[waiting]
        if last[u] == t:
            continue
        keep = _waiting(problem, plan, prefix, u, t)
        if keep <= 0.0 or _estimate(problem, plan, prefix, u, t, credit) >= keep:
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


@entry
def decide(problem: _Problem, plan: _Plan, prices: Floats, credit: float, seq: Ints, stage: Ints) -> int:
    """Go through the stages once and keep or compute again whatever is cheaper at ``prices``.

    Args:
        problem: See above.
        plan: See above; overwritten.
        prices: float64[n + 1], cost of a byte that waits through a stage.
        credit: From 0 to 1, how much of what an input of a recomputation costs is taken off if it is read again later.
        seq: Gets the nodes in the order in which they run.
        stage: Gets the stage of each.

    Returns:
        Their number; 0 if they are more than there is room for.
    """
    cost, first_value, input_start, inputs = problem[0], problem[2], problem[4], problem[5]
    last, memo_stage, chosen, ahead = plan[0], plan[2], plan[3], plan[5]
    n = len(cost)
    prefix = np.zeros(n + 2)
    for t in range(n + 1):
        prefix[t + 1] = prefix[t] + prices[t]
    last[:] = -1
    memo_stage[:] = -1
    ahead[:] = 0
    length = 0
    for t in range(n + 1):
        taken = 0
        for e in range(input_start[t], input_start[t + 1]):
            taken = _provide(problem, plan, prefix, inputs[e], t, credit, taken)
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
            for x in range(first_value[t], first_value[t + 1]):
                last[x] = t
    return length


@entry
def profile(problem: _Problem, seq: Ints, stage: Ints, length: int, live: Bools, highest: Ints) -> None:
    """The most memory in use in each stage, fixed memory left out, into ``highest``: int64[n + 1].

    ``live``, bool[V], is room to work in.
    """
    size, first_value, input_start, inputs, workspace = problem[1], problem[2], problem[4], problem[5], problem[9]
    n = len(workspace)
    live[:] = False
    highest[:] = 0
    level = 0
    for e in range(input_start[n], input_start[n + 1]):
        live[inputs[e]] = True
        level += size[inputs[e]]
    highest[n] = level
    for p in range(length - 1, -1, -1):
        k = seq[p]
        here = level + workspace[k]
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
        highest[stage[p]] = max(highest[stage[p]], here)


@entry
def adjust(prices: Floats, highest: Ints, room: int, least: float, step: float, slow: float) -> int:
    """Raise the prices of stages over ``room`` and lower the others'; bytes by which the worst is over.

    Args:
        prices: float64[n + 1]; changed. Zero where nothing was ever over.
        highest: int64[n + 1], memory in use.
        room: Bytes there are.
        least: Price of a stage that is over for the first time; none falls below it.
        step: How far a stage that is over by a twentieth of the room or more is raised, as a logarithm.
        slow: How far, relative to that, one with as much to spare is lowered.
    """
    worst = 0
    for t in range(len(prices)):
        over = highest[t] - room
        worst = max(worst, over)
        if over > 0:
            prices[t] = max(least, prices[t]) * np.exp(step * min(1.0, 0.2 + 20.0 * over / room))
        elif prices[t] > 0.0:
            prices[t] = max(least, prices[t] * np.exp(step * slow * max(-1.0, 20.0 * over / room)))
    return worst
