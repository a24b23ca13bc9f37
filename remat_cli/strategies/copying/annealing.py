"""Engines that find plans with copies: recomputation alone, copies alone, annealing of both, and tidying."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import ClassVar

from remat_cli.control import Control
from remat_cli.errors import Interrupted, LimitReached
from remat_cli.graph.model import Graph
from remat_cli.milp.crossing import Crossing
from remat_cli.mip import Floats
from remat_cli.strategies.base import Found, Schedule, Task
from remat_cli.strategies.copying.walker import Moves, Sequences, Timed, Walker
from remat_cli.strategies.engine import Engine, pursue
from remat_cli.strategies.incumbent import Incumbent

# Doubling all constants of this folder makes the gap larger, halving does not (benchmark ``ablation``).
_ROUND_SHARE, _ROUND_S = 0.8, 60.0
"""Limits of each round of annealing but the first."""
_HEAT = ((1e-2, 1e-5), (3e-3, 1e-5), (1e-3, 1e-6))
"""First and last temperatures of annealing, in shares of C0."""
_SLICE, _LEAST_MOVES, _MOST_MOVES = 4_000_000, 2_000, 40_000
"""In the first round: moves of a run times the steps of its sequence, and limits of the moves."""
_LONGER = 8
"""Each round has twice the moves of the one before, up to so many times those of the first. On ResNet-50 at
40% of its peak with 25 GB/s, one run of 60,000 moves ended at +6.5%, several of 8,500 at +6.9%."""
_RUNS, _RUNS_LIMITED = 2, 3
"""Runs from each start at each temperature, without and with a time limit."""


@dataclass(slots=True)
class RecomputeAlone(Engine):
    """Searches for the cheapest plan without copies, as ``auto`` does without a host."""

    uses_solver: ClassVar[bool] = True

    def work(self) -> bool:
        """Run the stages of ``auto`` on an incumbent of their own, and take what they publish."""
        from remat_cli.strategies.pipeline import AUTO

        outer = self.incumbent
        outer.report("recomputing alone")

        def take(found: Found) -> None:
            outer.take(Found(Schedule(found.schedule.computes)))

        # Bounds of the inner search hold only without copies, so its progress is told with those of the outer one.
        control = replace(outer.context.control, listener=lambda progress: outer.report(progress.activity))
        context = replace(outer.context, control=control, publish=take, write_model=None)
        inner = Incumbent.of(Task(outer.graph, outer.budget_bytes), context)
        with suppress(LimitReached, Interrupted):  # what was published until then counts
            pursue(AUTO, inner, depth=1)
        return False


@dataclass(slots=True)
class CopyAlone(Engine):
    """Searches for plans that compute every node once, and copy what waits longest."""

    def work(self) -> bool:
        """Take the values with the longest waits, then anneal the copies."""
        sequences = self.incumbent.shared(Sequences)
        sequences.follow()
        self.incumbent.report("copying alone")
        start = idle_first(self.incumbent.graph, sequences.walker)
        if start is not None:
            sequences.take(start)
            for heat in _HEAT:
                start = sequences.walker.anneal(start, _moves(start.steps), heat, computing=False)
                sequences.take(start)
        return False


@dataclass(slots=True)
class Annealing(Engine):
    """Anneals sequences of computes and copies.

    Attributes:
        rounds_done: Rounds so far, over all turns.
    """

    rounds_done: int = 0

    def work(self, *, rounds: int | None = None, copying: bool = True, computing: bool = True) -> bool:
        """Anneal in rounds, each with longer runs.

        Args:
            rounds: Number of rounds; None to go on while there is time, or without a limit while rounds gain.
            copying: Whether moves may copy.
            computing: Whether moves may compute again.
        """
        incumbent, allowed = self.incumbent, Moves(copying, computing)
        limited, done = incumbent.context.control.deadline_s is not None, 0
        incumbent.shared(Sequences).follow()
        while not incumbent.over() and done != rounds:
            before = incumbent.cost
            incumbent.report("annealing")
            control = incumbent.context.control
            self._round(control if rounds is not None else control.part(_ROUND_SHARE, _ROUND_S), allowed)
            self.rounds_done += 1
            done += 1
            if not limited and not incumbent.cost < before * (1 - incumbent.context.gap):
                break
        return True

    def _round(self, control: Control, allowed: Moves) -> None:
        """Anneal from the starts in turn, with falling temperatures, while it helps and there is time."""
        sequences = self.incumbent.shared(Sequences)
        starts = dict.fromkeys([*sequences.drafts, *sequences.starts])
        sequences.drafts = []
        longer = min(2**self.rounds_done, _LONGER)
        runs = _RUNS if control.deadline_s is None else _RUNS_LIMITED
        for heat in _HEAT:
            for start in [*starts, sequences.best] if starts else [sequences.lowest]:
                if start is None or control.stopping() or self.incumbent.over():
                    continue
                for _ in range(runs):
                    moves = longer * _moves(start.steps)
                    start = sequences.walker.anneal(
                        start, moves, heat, copying=allowed.copying, computing=allowed.computing
                    )
                    sequences.take(start)
                    if control.stopping():
                        break


@dataclass(slots=True)
class Tidying(Engine):
    """Removes the copies and recomputations that save no time."""

    def work(self) -> bool:
        """Leave out one step after the other of the best sequence."""
        sequences = self.incumbent.shared(Sequences)
        sequences.follow()
        if sequences.best is not None:
            sequences.keep(sequences.walker.tidied(sequences.best, self.incumbent.context.control.stopping))
        return False


def _moves(steps: Sequence[int]) -> int:
    """Moves of a run in the first round."""
    return min(_MOST_MOVES, max(_LEAST_MOVES, _SLICE // max(1, len(steps))))


_HALF = 0.5


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A value between two of its uses, by node; ``reader`` is the number of nodes for the end."""

    value: int
    use: int
    reader: int
    worth: float


def idle_first(graph: Graph, walker: Walker) -> Timed | None:
    """No recomputation: of the values that wait while memory is short, those with the longest wait per byte leave.

    Returns:
        The first of these sequences that fits, or the last one; None if it is too long.
    """
    n = len(graph.nodes)
    if walker.timed(range(n)) is None:
        return None
    over = walker.scratch.height[:n] - int(walker.now.room)
    chosen: dict[int, list[int]] = {}
    for stretch in sorted(_stretches(graph), key=lambda s: -s.worth):
        waits = over[stretch.use + 1 : stretch.reader]
        if (waits > 0).any():
            waits -= graph.size[stretch.value]
            chosen.setdefault(stretch.reader, []).append(n + stretch.value)
    steps: list[int] = []
    for node in range(n):
        steps += [*chosen.get(node, ()), node]
    return walker.timed([*steps, *chosen.get(n, ())])


def _stretches(graph: Graph) -> list[_Stretch]:
    """The stretches of values that may be copied, with their idle time per byte."""
    n = len(graph.nodes)
    clock = [0.0, *accumulate(node.cost for node in graph.nodes)]
    found = []
    outputs = set(graph.outputs)
    for v, size in enumerate(graph.size):
        if not graph.may_offload(v) or size == 0:
            continue
        uses = [graph.producer[v], *graph.readers[v], *([n] if v in outputs else [])]
        for use, reader in pairwise(uses):
            idle = clock[reader] - clock[use + 1]
            if reader > use + 1:
                found.append(_Stretch(v, use, reader, idle / size))
    return found


def rounded(stated: Crossing, values: Floats, nodes: int) -> list[int]:
    """The steps of a solution of the crossing MILP, integral or not; within the budget or not.

    At a cut what is kept less than half is dropped. What is needed and not there is made again or comes back, as the
    solution has more of the one or of the other.

    Args:
        stated: The model.
        values: A solution.
        nodes: Number of nodes without the closing node.
    """
    writer = _Rounding(stated, values, nodes, [False] * len(stated.graph.size))
    cut_after = {cut: b for b, cut in enumerate(stated.cuts, 1)}
    for j, node in enumerate(stated.graph.nodes):
        writer.need(node.inputs, stated.block(j))
        if j < nodes:
            writer.compute(j)
        if j in cut_after:
            writer.cut(cut_after[j], stated.graph.first_value[j + 1])
    return writer.steps


@dataclass(slots=True)
class _Rounding:
    """Steps under construction, and the values that are there."""

    stated: Crossing
    values: Floats
    nodes: int
    there: list[bool]
    steps: list[int] = field(default_factory=list)

    def compute(self, node: int) -> None:
        """Compute a node."""
        self.steps.append(node)
        for v in self.stated.graph.values_of(node):
            self.there[v] = True

    def need(self, wanted: Sequence[int], b: int) -> None:
        """Make ``wanted`` resident in block b; deep chains are followed without recursion."""
        graph = self.stated.graph
        stack = [(v, False) for v in reversed(wanted)]
        while stack:
            v, ready = stack.pop()
            maker = graph.producer[v]
            if self.there[v]:
                continue
            if self.comes_back(v, maker, b):
                self.steps.append(self.nodes + v)
                self.there[v] = True
            elif ready:
                self.compute(maker)
            else:
                stack.append((v, True))
                stack.extend((u, False) for u in reversed(graph.nodes[maker].inputs))

    def comes_back(self, v: int, maker: int, b: int) -> bool:
        """Whether value v rather comes back in block b than is made again."""
        back, again = self.stated.back.get((b, v)), self.stated.again.get((b, maker))
        if back is None:
            return False
        return again is None or self.values[back] >= self.values[again]

    def cut(self, b: int, made: int) -> None:
        """Drop what is not kept past cut b, of the first ``made`` values."""
        for v in range(made):
            kept = self.stated.kept.get((b, v), -1)
            if kept is not None:
                self.there[v] = kept >= 0 and self.there[v] and float(self.values[kept]) >= _HALF
