"""A greedy planner to compare with: it decides value by value, as selective checkpointing with offloading often does.

While memory is short at the worst step, it takes the value with the longest wait across it that can still leave before
that step at the link's speed, beside the computations, and return before its reader; if there is none, the value across
it that is made again at the least cost per byte, with whatever else of its inputs is no longer there.
"""

from itertools import accumulate
from typing import NamedTuple

from remat_cli.control import Control
from remat_cli.graph.model import Graph
from remat_cli.kernels import compiling
from remat_cli.plan.derive import derive
from remat_cli.plan.host import Host
from remat_cli.plan.replay import replay
from remat_cli.strategies.copying.walker import Timed, Walker

_MOST = 3000


class _Wait(NamedTuple):
    """A value across a step: where it was made or read before, and the place of the reader that it waits for."""

    value: int
    since: int
    reader: int


def greedy_time(graph: Graph, budget_bytes: int, host: Host) -> float | None:
    """The replayed time of the greedy plan; None if it ends over the budget."""
    compiling.wait("copying", Control())
    walker = Walker(graph, budget_bytes - graph.fixed_memory, host)
    steps = list(range(len(graph.nodes)))
    sent = 0.0
    for _ in range(_MOST):
        timed = walker.timed(steps)
        if timed is None:
            return None
        if timed.excess_bytes == 0:
            return _replayed(graph, timed, budget_bytes, host)
        worst = _worst_step(walker, steps, len(graph.nodes))
        chosen = _copied(graph, host, steps, worst, sent) or _again(graph, steps, worst)
        if chosen is None:
            return None
        place, inserted, took = chosen
        sent += took
        steps[place:place] = inserted
    return None


def _replayed(graph: Graph, timed: Timed, budget_bytes: int, host: Host) -> float | None:
    statements = derive(graph, timed.schedule.computes, copying=timed.schedule.copying)
    seen = replay(graph, statements, host=host)
    return seen.time if not seen.findings and seen.peak_bytes <= budget_bytes else None


def _worst_step(walker: Walker, steps: list[int], n: int) -> int:
    """The step with most memory."""
    computes = [place for place, step in enumerate(steps) if step < n]
    heights = walker.scratch.height[: len(computes)]
    return computes[int(heights.argmax())]


def _waits(graph: Graph, steps: list[int], worst: int) -> list[_Wait]:
    """The values that wait across a step for a later one."""
    n, last = len(graph.nodes), dict[int, int]()
    own = {*graph.nodes[steps[worst]].inputs, *graph.values_of(steps[worst])}
    for place, step in enumerate(steps[:worst]):
        for v in (step - n,) if step >= n else (*graph.nodes[step].inputs, *graph.values_of(step)):
            last[v] = place
    found, seen = [], set(own)
    for place in range(worst + 1, len(steps)):
        step = steps[place]
        for v in () if step >= n else graph.nodes[step].inputs:
            if v not in seen and v in last:
                found.append(_Wait(v, last[v], place))
            seen.add(v)
        seen.update((step - n,) if step >= n else graph.values_of(step))
    return [wait for wait in found if graph.size[wait.value]]


def _copied(graph: Graph, host: Host, steps: list[int], worst: int, sent: float) -> tuple[int, list[int], float] | None:
    """Where the value with the longest wait comes back, and how long its copy takes, if the link has the time."""
    n = len(graph.nodes)
    clock = [0.0, *accumulate(graph.nodes[x].cost if x < n else 0.0 for x in steps)]
    out, back = host.times(graph.size, graph.cost_unit)
    for wait in sorted(_waits(graph, steps, worst), key=lambda w: clock[w.since] - clock[w.reader]):
        v, takes = wait.value, out[wait.value]
        fits = sent + takes <= clock[worst] and clock[wait.since + 1] + takes <= clock[worst]
        if graph.may_offload(v) and fits and back[v] <= clock[wait.reader] - clock[worst]:
            return wait.reader, [n + v], takes
    return None


def _again(graph: Graph, steps: list[int], worst: int) -> tuple[int, list[int], float] | None:
    """Where the value that is made again at the least cost per byte is made, with what it needs."""
    best: tuple[float, tuple[int, list[int], float]] | None = None
    for wait in _waits(graph, steps, worst):
        chain = _chain(graph, steps, wait)
        if chain is not None:
            worth = sum(graph.nodes[i].cost for i in chain) / graph.size[wait.value]
            if best is None or worth < best[0]:
                best = worth, (wait.reader, chain, 0.0)
    return None if best is None else best[1]


def _chain(graph: Graph, steps: list[int], wait: _Wait) -> list[int] | None:
    """The nodes that make a value again right before its reader, from what is read from there on."""
    n, there = len(graph.nodes), set[int]()
    for step in steps[wait.reader :]:
        if step < n:
            there.update(graph.nodes[step].inputs)
    there.discard(wait.value)
    chain: set[int] = set()
    open_values = [wait.value]
    while open_values:
        maker = graph.producer[open_values.pop()]
        if maker in chain:
            continue
        if not graph.nodes[maker].recompute or len(chain) > 64:
            return None
        chain.add(maker)
        open_values += [v for v in graph.nodes[maker].inputs if v not in there]
    return sorted(chain)
