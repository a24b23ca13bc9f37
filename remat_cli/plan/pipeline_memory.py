"""What a plan takes on a stage of a pipeline, and the memory of a device, from replays alone.

Between two passes of a microbatch, what its later passes read stays in memory. A pass may end anywhere between the
first computation of its last node and that of the first node of the next pass: it ends where least is in use. The
memory of a device during a pass is the fixed memory of its stages, what every other microbatch in flight holds between
its passes, and the most that the pass itself takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from remat_cli.graph.model import Graph
from remat_cli.graph.passes import StageGraph
from remat_cli.plan.model import Compute, Statement
from remat_cli.plan.pipelines import Pass, Schedule, Times
from remat_cli.plan.replay import replay


@dataclass(frozen=True, slots=True)
class StageRun:
    """A microbatch's passes through a stage by a plan; bytes are without fixed memory.

    Attributes:
        peaks: The most bytes in use during each pass.
        held: Bytes in use after each pass but the last.
        costs: The cost of each pass.
        divisions: The statement after which each pass but the last ends.
    """

    peaks: tuple[int, ...]
    held: tuple[int, ...]
    costs: tuple[float, ...]
    divisions: tuple[int, ...]

    @property
    def cost(self) -> float:
        """The cost of all passes."""
        return math.fsum(self.costs)

    @property
    def times(self) -> Times:
        """The costs as times."""
        return Times(*self.costs)


def run_of(stage: StageGraph, statements: Sequence[Statement]) -> StageRun:
    """What ``statements``, which are a valid plan of the stage's graph, take in each pass."""
    graph = stage.graph
    profile = [bytes_ - graph.fixed_memory for bytes_ in replay(graph, statements).profile]
    left = [*profile]  # after each statement: workspace is only there while a node runs
    first: dict[int, int] = {}
    for at, statement in enumerate(statements):
        if isinstance(statement, Compute):
            first.setdefault(statement.node, at)
            left[at] -= graph.nodes[statement.node].workspace
    divisions: list[int] = []
    for cut in stage.cuts:
        window = range(max([first[cut - 1], *divisions]), first.get(cut, len(statements)))
        divisions.append(min(window, key=left.__getitem__))
    bounds = [0, *(at + 1 for at in divisions), len(statements)]
    parts = [range(start, end) for start, end in pairwise(bounds)]
    return StageRun(
        peaks=tuple(max((profile[at] for at in part), default=0) for part in parts),
        held=tuple(left[at] for at in divisions),
        costs=tuple(_cost(graph, [statements[at] for at in part]) for part in parts),
        divisions=tuple(divisions),
    )


def _cost(graph: Graph, statements: Sequence[Statement]) -> float:
    return math.fsum(graph.nodes[s.node].cost for s in statements if isinstance(s, Compute))


class Moment(NamedTuple):
    """A pass on a device, and how many other microbatches wait after which pass of which stage."""

    kind: Pass
    stage: int
    waiting: tuple[tuple[tuple[int, Pass], int], ...]


def moments(schedule: Schedule, device: int) -> tuple[Moment, ...]:
    """The moments of a device that may need most memory."""
    found = (
        Moment(action.kind, action.stage, tuple(sorted((place, count) for place, count in waiting.items() if count)))
        for action, waiting in schedule.moments(device)
    )
    return fullest(found)


def fullest(found: Iterable[Moment]) -> tuple[Moment, ...]:
    """Of each pass of each stage, the moments in which no other has as many waiting everywhere, and more somewhere."""
    several: dict[tuple[Pass, int], dict[Moment, dict[tuple[int, Pass], int]]] = {}
    for moment in found:
        several.setdefault((moment.kind, moment.stage), {})[moment] = dict(moment.waiting)

    def below(one: Mapping[tuple[int, Pass], int], other: Mapping[tuple[int, Pass], int]) -> bool:
        return one != other and all(other.get(place, 0) >= count for place, count in one.items())

    return tuple(
        moment
        for same in several.values()
        for moment, waiting in same.items()
        if not any(below(waiting, other) for other in same.values())
    )


def always_bytes(stages: Mapping[int, StageGraph], microbatches: int) -> int:
    """Bytes that a device with these stages holds all the time.

    Inputs, which every microbatch has for itself, are not among them. Gradients that the graphs return count once more
    if there are several microbatches: their sum so far.
    """
    fixed = sum(stage.graph.fixed_memory - stage.input_bytes for stage in stages.values())
    return fixed + (sum(stage.gradient_bytes for stage in stages.values()) if microbatches > 1 else 0)


def device_bytes(
    found: Sequence[Moment], stages: Mapping[int, StageGraph], runs: Mapping[int, StageRun], microbatches: int
) -> int:
    """The most memory that a device needs: over its moments, what is always there, what waits, and what runs."""

    def needed(moment: Moment) -> int:
        kinds = list(Pass)
        waiting = sum(
            count * (runs[stage].held[kinds.index(kind)] + stages[stage].input_bytes)
            for (stage, kind), count in moment.waiting
        )
        return waiting + stages[moment.stage].input_bytes + runs[moment.stage].peaks[kinds.index(moment.kind)]

    return always_bytes(stages, microbatches) + max(map(needed, found))
