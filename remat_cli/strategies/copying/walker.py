"""Sequences of steps, computes and returns from the host, as the kernels take them: timing, annealing, schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from remat_cli.graph.arrays import arrays_of
from remat_cli.graph.model import Graph
from remat_cli.kernels.copying import Machine, Now, Scratch, anneal, evaluate
from remat_cli.plan.copying import CopyBack, Copying, CopyOut
from remat_cli.plan.host import Host
from remat_cli.strategies.base import Found, Schedule
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.objective import Time

# Doubling all constants of this folder makes the gap larger, halving does not (benchmark ``ablation``).
_ROOM = 4
"""A sequence may have this many times the steps of no-remat, and some more."""
_MOST_BYTES = 2**62


@dataclass(frozen=True, slots=True)
class Timed:
    """A sequence of steps and what it takes.

    Attributes:
        steps: Node i is computed (i), or value v comes back from the host (n + v), in the order in which they run.
        time: How long it takes, in the graph's cost unit; exact if nothing is over the room.
        excess_bytes: Bytes over the room, summed over the computes, and over the host memory.
        peak_bytes: Most bytes that must be there at a time, fixed memory included.
        schedule: The schedule with its copies.
    """

    steps: tuple[int, ...]
    time: float
    excess_bytes: int
    peak_bytes: int
    schedule: Schedule = field(repr=False)


class Walker:
    """Evaluates and anneals sequences of one graph for one budget and one host."""

    def __init__(self, graph: Graph, room_bytes: int, host: Host, seed: int = 0) -> None:
        arrays, n, values = arrays_of(graph), len(graph.nodes), len(graph.size)
        out, back = host.times(graph.size, graph.cost_unit)
        self.graph = graph
        self.machine = Machine(
            cost=_fixed([node.cost for node in graph.nodes]),
            workspace=arrays.workspace,
            fixed=arrays.fixed,
            first_value=arrays.first_value,
            input_start=arrays.input_start,
            inputs=arrays.inputs,
            size=arrays.size,
            producer=arrays.producer,
            output=arrays.output,
            out_time=np.array(out, dtype=np.float64),
            in_time=np.array(back, dtype=np.float64),
            pinned=np.array([not graph.may_offload(v) for v in range(values)], dtype=np.bool_),
        )
        self.most = _ROOM * n + 256
        self.scratch = _scratch(n, values, self.most)
        [self.now] = np.zeros(1, dtype=Now.dtype())
        self.now.room = room_bytes
        self.now.host_room = _MOST_BYTES if host.memory_bytes is None else host.memory_bytes
        self.now.random = 1 + seed % 2147483646
        self.now.best_time = math.inf
        self.now.price = 1.0
        self.now.unit = graph.total_cost or 1.0

    def timed(self, steps: Sequence[int]) -> Timed | None:
        """The timing of ``steps``; None if they read what was never made, or are too many."""
        if len(steps) > self.most:
            return None
        w, now = self.scratch, self.now
        w.steps[: len(steps)] = steps
        now.length = len(steps)
        if not evaluate(self.machine, w, now):
            return None
        kept = w.kept[: len(steps)]
        if not kept.all():
            return self.timed([x for x, serves in zip(steps, kept.tolist(), strict=True) if serves])
        n = len(self.graph.nodes)
        out = [CopyOut(v, int(w.issued[v]), int(w.leaves[v])) for v in w.ranked[: int(now.copied)].tolist()]
        back = [CopyBack(int(w.steps[s]) - n, int(w.back[s])) for s in w.trips[: int(now.trips)].tolist()]
        computes = tuple(x for x in steps if x < n)
        copying = Copying(tuple(out), tuple(back)) if back else None
        return Timed(
            tuple(steps),
            float(now.time),
            int(now.excess),
            int(now.peak) + self.graph.fixed_memory,
            Schedule(computes, copying=copying),
        )

    def anneal(
        self, start: Timed, moves: int, heat: tuple[float, float], *, copying: bool = True, computing: bool = True
    ) -> Timed:
        """The best sequence of a walk from ``start``, or ``start`` if none is better.

        Args:
            start: A sequence, within the room or not.
            moves: How many moves.
            heat: The first and the last temperature, in shares of C0.
            copying: Whether moves may copy.
            computing: Whether moves may compute again.
        """
        w, now = self.scratch, self.now
        w.steps[: len(start.steps)] = start.steps
        now.length = len(start.steps)
        fits = start.excess_bytes == 0
        now.current_time, now.current_excess = start.time, start.excess_bytes
        now.best_time, now.best_length = (start.time if fits else math.inf), 0
        now.copying, now.computing = int(copying), int(computing)
        anneal(self.machine, w, now, moves, *heat)
        if not now.best_length:
            return start
        best = self.timed(w.best[: int(now.best_length)].tolist())
        return start if best is None else best

    def tidied(self, timed: Timed, stopping: Callable[[], bool]) -> Timed:
        """``timed`` without the steps that can be left out one by one at no loss of time, the smallest values first.

        Args:
            timed: A sequence within the room.
            stopping: Ends it early.
        """
        n, graph = len(self.graph.nodes), self.graph
        best = timed
        extras = [x for x in dict.fromkeys(timed.steps) if x >= n]
        for x in sorted(extras, key=lambda x: graph.size[x - n]):
            for place in range(timed.steps.count(x) - 1, -1, -1):
                places = [s for s, y in enumerate(best.steps) if y == x]
                if stopping():
                    return best
                if place >= len(places):
                    continue
                without = self._time(best.steps[: places[place]] + best.steps[places[place] + 1 :])
                if without is not None and without <= best.time:
                    better = self.timed(best.steps[: places[place]] + best.steps[places[place] + 1 :])
                    best = best if better is None else better
        return best

    def _time(self, steps: Sequence[int]) -> float | None:
        """The time of a sequence within the room; None for another."""
        self.scratch.steps[: len(steps)] = steps
        self.now.length = len(steps)
        if not evaluate(self.machine, self.scratch, self.now) or self.now.excess > 0:
            return None
        return float(self.now.time)


def steps_of(graph: Graph, schedule: Schedule) -> tuple[int, ...]:
    """The steps of a schedule; what comes back does so right before its first reader."""
    n = len(graph.nodes)
    returns: dict[int, list[int]] = {}
    if schedule.copying is not None:
        for copy in schedule.copying.back:
            later = range(copy.before, len(schedule.computes))
            read = (k for k in later if copy.value in graph.nodes[schedule.computes[k]].inputs)
            returns.setdefault(next(read, len(schedule.computes)), []).append(n + copy.value)
    steps: list[int] = []
    for k, node in enumerate(schedule.computes):
        steps += [*returns.get(k, ()), node]
    return (*steps, *returns.get(len(schedule.computes), ()))


def _scratch(n: int, values: int, most: int) -> Scratch:
    def ints(length: int) -> Any:
        return np.zeros(length, dtype=np.int64)

    by_step = [
        "steps",
        "trial",
        "best",
        "kept",
        "current_height",
        "node",
        "height",
        "early",
        "departure",
        "deadline",
        "trips",
        "back",
    ]
    by_value = ["next_use", "ends", "wanted", "trip", "issued", "ranked", "leaves", "staying", "waiting", "mark"]
    return Scratch(
        **{name: ints(most) for name in by_step},
        **{name: ints(values + 1) for name in by_value},
        first=ints(n),
        current_first=ints(n),
        ready=np.zeros(values),
        out_end=np.zeros(values),
        inserted=ints(64),
    )


def _fixed(numbers: Iterable[float]) -> Any:
    array = np.array(list(numbers), dtype=np.float64)
    array.flags.writeable = False
    return array


class Moves(NamedTuple):
    """What a search may do: copy values to the host, and compute nodes again."""

    copying: bool = True
    computing: bool = True


class Sequences:
    """Timed sequences of one incumbent.

    Attributes:
        incumbent: Takes every sequence that fits and may be better.
        walker: Times and anneals sequences.
        best: The quickest sequence within the budget.
        starts: The two sequences that exceed the budget least, and of those the quickest.
        drafts: Rounded solutions of models since the last annealing.
        lowest: The sequence that exceeds the budget least.
    """

    def __init__(self, incumbent: Incumbent) -> None:
        graph, objective = incumbent.graph, incumbent.objective
        assert isinstance(objective, Time)
        room_bytes = incumbent.budget_bytes - graph.fixed_memory
        self.incumbent = incumbent
        self.walker = Walker(graph, room_bytes, objective.host, incumbent.context.seed)
        self.best: Timed | None = None
        self.starts: list[Timed] = []
        self.drafts: list[Timed] = []
        self.lowest: Timed | None = None
        self._seen: set[Schedule] = set()

    def follow(self) -> None:
        """Take the incumbent, with its copies timed anew, and the schedule with the lowest peak."""
        best = self.incumbent.best
        for schedule in (None if best is None else best.schedule, self.incumbent.lowest):
            if schedule is not None and schedule not in self._seen:
                self._seen.add(schedule)
                timed = self.walker.timed(steps_of(self.incumbent.graph, schedule))
                if timed is not None:
                    self.take(timed)

    def suggest(self, steps: Sequence[int], allowed: Moves) -> None:
        """Consider a rounded solution, within the budget or not, as a start."""
        timed = self.walker.timed(steps)
        if timed is None:
            return
        once = len(timed.schedule.computes) == len(self.incumbent.graph.nodes)
        if (allowed.copying or timed.schedule.copying is None) and (allowed.computing or once):
            self.take(timed)
            self.drafts.append(timed)

    def take(self, timed: Timed) -> None:
        """Consider a sequence: as a start, and as the incumbent if it fits."""
        if not math.isfinite(timed.time):  # the link is too slow for numbers
            return
        if self.lowest is None or timed.excess_bytes < self.lowest.excess_bytes:
            self.lowest = timed
        if timed not in self.starts:
            self.starts = sorted([*self.starts, timed], key=lambda t: (t.excess_bytes, t.time))[:2]
        if timed.excess_bytes == 0 and (self.best is None or timed.time < self.best.time):
            self.keep(timed)

    def keep(self, timed: Timed) -> None:
        """Make a sequence within the budget the best one here, and offer it to the incumbent."""
        self.best = timed
        self._seen.add(timed.schedule)
        self.incumbent.take(Found(timed.schedule))
