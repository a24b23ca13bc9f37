"""Where plans with copies come from: the longest idle stretches leave first, and a solution of the crossing MILP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from remat_cli.graph.model import Graph
from remat_cli.milp.crossing import Crossing
from remat_cli.mip import Floats
from remat_cli.strategies.copying.walker import Timed, Walker

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
