"""Sequences of nodes as the kernels for collectives take them: timing, early issue, annealing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from remat_cli.graph.arrays import arrays_of
from remat_cli.graph.model import Graph, NodeQueue
from remat_cli.kernels.overlapping import Machine, Now, Scratch, anneal, evaluate

_LONGER = 4
"""A sequence may have this many times the steps of no-remat, and some more."""
_LEADS = (0.0, 1.0, 1.5, 2.5, 4.0, 8.0, math.inf)
"""How long before its reader a collective is issued, in units of the time that it takes. Untuned."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A sequence and what it takes.

    Attributes:
        steps: Nodes in the order in which they are issued.
        time: How long it takes, in the graph's cost unit; exact if nothing is over the room.
        excess_bytes: Bytes over the room, summed over the steps.
        peak_bytes: Most bytes that must be there at a time, fixed memory included.
    """

    steps: tuple[int, ...]
    time: float
    excess_bytes: int
    peak_bytes: int


class Walker:
    """Times and anneals sequences of one graph within one budget."""

    def __init__(self, graph: Graph, budget_bytes: int, seed: int = 0) -> None:
        arrays, n, values = arrays_of(graph), len(graph.nodes), len(graph.size)
        self.graph = graph
        self.free = [graph.moves_freely(k) for k in range(n)]
        self.machine = Machine(
            cost=_fixed([node.cost for node in graph.nodes], np.float64),
            collective=_fixed([node.queue is NodeQueue.COMMUNICATION for node in graph.nodes], np.bool_),
            free=_fixed(self.free, np.bool_),
            workspace=arrays.workspace,
            fixed=arrays.fixed,
            first_value=arrays.first_value,
            input_start=arrays.input_start,
            inputs=arrays.inputs,
            size=arrays.size,
            producer=arrays.producer,
            output=arrays.output,
        )
        self.most = _LONGER * n + 256
        self.scratch = _scratch(n, values, self.most, 2 * _LONGER * (graph.edges + values) + 1024)
        [self.now] = np.zeros(1, dtype=Now.dtype())
        self.now.room = budget_bytes - graph.fixed_memory
        self.now.random = 1 + seed % 2147483646
        self.now.best_time = math.inf
        self.now.price = 1.0
        self.now.unit = graph.no_remat_cost or 1.0

    def timed(self, steps: Sequence[int]) -> Timed | None:
        """The timing of ``steps`` without those that serve nothing; None if they are none that may run, or too many."""
        if len(steps) > self.most:
            return None
        w, now = self.scratch, self.now
        w.steps[: len(steps)] = steps
        now.length = len(steps)
        if not evaluate(self.machine, w, now):
            return None
        kept = [x for x, serves in zip(steps, w.kept[: len(steps)].tolist(), strict=True) if serves]
        return Timed(tuple(kept), float(now.time), int(now.excess), int(now.peak) + self.graph.fixed_memory)

    def heights(self, timed: Timed) -> list[int]:
        """Bytes during each step of a sequence if everything is freed at once, without fixed memory."""
        again = self.timed(timed.steps)
        assert again == timed
        found: list[int] = self.scratch.height[: len(timed.steps)].tolist()
        return found

    def issued_early(self, timed: Timed) -> Timed:
        """The quickest of ``timed`` and of sequences with its collectives issued earlier, as far as there is room."""
        best = timed
        for lead in (*_LEADS, None):
            earlier = self.timed(self._moved(timed, lead))
            if earlier is not None and (earlier.excess_bytes, earlier.time) < (best.excess_bytes, best.time):
                best = earlier
        return best

    def _moved(self, timed: Timed, lead: float | None) -> list[int]:
        """``timed`` with every collective that reads nothing right before its reader, or earlier by ``lead``.

        With None, they are as much earlier as lets the others end in time, see :func:`_latest_starts`.
        """
        graph, steps = self.graph, _late(self.graph, timed.steps, self.free)
        late = self.timed(steps)
        if late is None or lead == 0:
            return steps
        steps = list(late.steps)
        rooms = [int(self.now.room) - height for height in self.heights(late)]
        starts = _starts(graph, steps, self.free, waiting=lead is None)
        latest = _latest_starts(graph, steps, self.free, starts) if lead is None else {}
        moved: dict[int, list[int]] = {}
        gone = set()
        last_use: dict[int, int] = {}
        for p, x in enumerate(steps):
            if self.free[x]:
                size, value = graph.nodes[x].outputs[0], graph.first_value[x]
                least, q = last_use.get(value, -1) + 1, p
                start = latest[p] if lead is None else starts[p] - lead * graph.nodes[x].cost
                while q > least and rooms[q - 1] >= size and starts[q] > start:
                    q -= 1
                for k in range(q, p):
                    rooms[k] -= size
                moved.setdefault(q, []).append(x)
                gone.add(p)
            last_use.update(dict.fromkeys(graph.nodes[x].inputs, p))
        result: list[int] = []
        for p, x in enumerate(steps):
            result += moved.get(p, ())
            if p not in gone:
                result.append(x)
        return result

    def anneal(self, start: Timed, moves: int, heat: tuple[float, float]) -> Timed:
        """The best sequence of a walk from ``start``, or ``start`` if none is better.

        Args:
            start: A sequence, within the room or not.
            moves: How many moves.
            heat: The first and the last temperature, in shares of C0.
        """
        w, now = self.scratch, self.now
        w.steps[: len(start.steps)] = start.steps
        now.length = len(start.steps)
        now.best_time, now.best_length = (start.time if start.excess_bytes == 0 else math.inf), 0
        anneal(self.machine, w, now, moves, *heat)
        if not now.best_length:
            return start
        best = self.timed(w.best[: int(now.best_length)].tolist())
        return start if best is None else best


def _late(graph: Graph, steps: Sequence[int], free: Sequence[bool]) -> list[int]:
    """``steps`` with every collective that reads nothing right before the first step that reads what it makes.

    An instance that nothing reads before the next one is left out, unless it is an output of the graph.
    """
    pending: dict[int, int] = {}
    result: list[int] = []
    for x in steps:
        if free[x]:
            pending[graph.first_value[x]] = x
            continue
        result += [pending.pop(v) for v in graph.nodes[x].inputs if v in pending]
        result.append(x)
    return [*result, *(pending[v] for v in graph.outputs if v in pending)]


def _starts(graph: Graph, steps: Sequence[int], free: Sequence[bool], *, waiting: bool) -> list[float]:
    """When each step starts in the compute queue; with ``waiting``, behind gathers that run one after another."""
    clock, link, starts = 0.0, 0.0, []
    ready: dict[int, float] = {}
    for x in steps:
        node = graph.nodes[x]
        if free[x]:
            link += node.cost
            ready[graph.first_value[x]] = link
        elif node.queue is NodeQueue.COMPUTE and waiting:
            clock = max([clock, *(ready.get(v, 0.0) for v in node.inputs)])
        starts.append(clock)
        clock += 0.0 if node.queue is NodeQueue.COMMUNICATION else node.cost
    return starts


def _latest_starts(
    graph: Graph, steps: Sequence[int], free: Sequence[bool], starts: Sequence[float]
) -> dict[int, float]:
    """When the collectives that read nothing have to start at the latest, by their place in ``steps``.

    They end before their readers start, and so early that the other collectives, which cannot start before their own
    places, need not wait so long that the end is later: where these fill the queue, gathers run long before.
    """
    end = starts[-1] + graph.nodes[steps[-1]].cost if steps else 0.0
    for x, start in zip(steps, starts, strict=True):
        if graph.nodes[x].queue is NodeQueue.COMMUNICATION and not free[x]:
            end = max(end, start + graph.nodes[x].cost)
    latest: dict[int, float] = {}
    waiting: list[int] = []
    link = end  # when everything that was placed so far starts

    def place(link: float, after: float) -> float:
        """Place gathers before ``link`` as long as they start at ``after`` or later."""
        while waiting:
            p = waiting[0]
            start = min(link, starts[p + 1]) - graph.nodes[steps[p]].cost
            if start < after:
                break
            latest[waiting.pop(0)] = link = start
        return link

    for p in range(len(steps) - 1, -1, -1):
        node = graph.nodes[steps[p]]
        if free[steps[p]]:
            waiting.append(p)
        elif node.queue is NodeQueue.COMMUNICATION:
            link = place(link, starts[p] + node.cost)
            link = max(starts[p], link - node.cost)
    place(link, -math.inf)
    return latest


def _scratch(n: int, values: int, most: int, dying: int) -> Scratch:
    def ints(length: int) -> Any:
        return np.zeros(length, dtype=np.int64)

    by_step = ["steps", "trial", "best", "kept", "height", "current_height", "start", "stop"]
    by_value = ["next_use", "writes", "uses", "waits", "following", "mark"]
    return Scratch(
        **{name: ints(most + 1) for name in by_step},
        **{name: ints(values + 1) for name in by_value},
        first=ints(n),
        current_first=ints(n),
        dying=ints(dying),
        end=np.zeros(most + 2),
        bucket=ints(most + 2),
        inserted=ints(64),
    )


def _fixed(numbers: Iterable[float], kind: Any) -> Any:
    array = np.array(list(numbers), dtype=kind)
    array.flags.writeable = False
    return array
