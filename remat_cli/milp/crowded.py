"""A small model of what to keep across a few stages and what to recompute between them, and the bound that it gives.

Let t_1 < ... < t_K be stages, the *cuts*. Block k is the part of the schedule after the first computation of node t_k,
up to and including that of t_(k+1), or to the end. If a few stages need far more memory than the others, as the loss of
a training step often does, what is kept across them decides most of a schedule.

Variables: S[k,v] = value v, made before t_k, is resident while t_k is first computed and is used after that; R[k,i] =
node i < t_k is recomputed in block k. Minimise sum c_i R[k,i], subject to, for v of node i < t_k,

    S[k,v] + R[k,i] >= 1             where a node of block k reads v, or v is a graph output and k = K;
    R[k,j] <= S[k,v] + R[k,i]        where node j < t_k reads v;
    S[k+1,v] <= S[k,v] + R[k,i];
    sum of the sizes of S[k,v] that t_k does not read <= room - what t_k reads and writes - its workspace.

Every schedule in document order gives a solution that costs no more than its recomputations: a value that block k reads
is resident when t_k runs, or is recomputed in the block at least once; the same holds of a value that is resident when
t_(k+1) runs. So the least cost is a bound for document order. The model ignores the memory of recomputation in a block
and that of all other stages.

(With one cut this is the choice that partitioners of training steps make, such as AOTAutograd's knapsack over the
values that the forward pass saves. With all stages as cuts it is the retention model without in-stage rows.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from remat_cli.control import Control
from remat_cli.graph.analysis import working_set
from remat_cli.graph.model import Graph
from remat_cli.milp.memory_scale import MemoryScale
from remat_cli.milp.statement import watched
from remat_cli.mip import Builder, Floats, LinearModel, Row, linear


@dataclass(frozen=True, slots=True)
class CutModel:
    """The model with all that is needed to decode its solutions.

    Attributes:
        builder: Columns and rows; they minimise the cost of recomputation, as a share of C0.
        graph: The graph.
        cuts: Stages, ascending.
        kept: Column of S, by (k, value).
        again: Column of R, by (k, node); nodes that may run only once have none.
    """

    builder: Builder
    graph: Graph
    cuts: tuple[int, ...]
    kept: dict[tuple[int, int], int]
    again: dict[tuple[int, int], int]

    @property
    def model(self) -> LinearModel:
        """The arrays."""
        return self.builder.build()

    def block(self, k: int) -> range:
        """The nodes that are first computed in block k."""
        end = self.cuts[k + 1] + 1 if k + 1 < len(self.cuts) else len(self.graph.nodes)
        return range(self.cuts[k] + 1, end)

    def sources(self, k: int, v: int) -> list[tuple[float, int]] | None:
        """Terms of which one must be 1 for v to be resident in block k; None if it is made after the cut."""
        kept = self.kept.get((k, v))
        if kept is None:
            return None
        again = self.again.get((k, self.graph.producer[v]))
        return [(1.0, kept)] if again is None else [(1.0, kept), (1.0, again)]

    def computes(self, values: Floats) -> tuple[int, ...]:
        """The schedule of a solution ``values: float64[columns]``.

        A node is recomputed right before its first reader, and its values stay to the next cut if they are kept there.
        """
        graph = self.graph
        kept: list[set[int]] = [set() for _ in self.cuts]
        for (k, v), column in self.kept.items():
            if values[column] > 0.5 or not graph.nodes[graph.producer[v]].recompute:
                kept[k].add(v)
        computes = list(range(self.cuts[0] + 1))
        there = set(range(graph.first_value[self.cuts[0] + 1]))
        for k in range(len(self.cuts)):
            there = {v for v in there if (k, v) not in self.kept or v in kept[k]}
            for j in self.block(k):
                found = kept[k + 1] if j in self.cuts else ()  # what is kept across the next cut must exist by then
                computes += self._made_for([*graph.nodes[j].inputs, *sorted(found)], there)
                computes.append(j)
                there.update(graph.values_of(j))
        computes += self._made_for(graph.outputs, there)
        return tuple(computes)

    def _made_for(self, wanted: Sequence[int], there: set[int]) -> list[int]:
        """The nodes to recompute for the values ``wanted``, in order; their values are added to ``there``."""
        graph, todo = self.graph, list(wanted)
        chosen: set[int] = set()
        while todo:
            v = todo.pop()
            if v not in there and graph.producer[v] not in chosen:
                chosen.add(graph.producer[v])
                todo.extend(graph.nodes[graph.producer[v]].inputs)
        there.update(v for i in chosen for v in graph.values_of(i))
        return sorted(chosen)


def build(graph: Graph, cuts: Sequence[int], room_bytes: int, control: Control) -> CutModel:
    """State the model.

    Args:
        graph: The graph.
        cuts: Stages, ascending, at least one; each has a working set within the room.
        room_bytes: The budget without fixed memory.
        control: Checked while building.

    Raises:
        LimitReached, Interrupted: If the control stops meanwhile.
    """
    scale = graph.total_cost or 1.0
    builder = Builder()
    steps = [(k, i) for k, t in enumerate(cuts) for i in range(t) if graph.nodes[i].recompute]
    again = dict(zip(steps, builder.binaries(graph.nodes[i].cost / scale for _, i in steps), strict=True))
    places = [(k, v) for k, t in enumerate(cuts) for v in range(graph.first_value[t])]
    kept = dict(zip(places, builder.binaries([0.0] * len(places)), strict=True))
    stated = CutModel(builder, graph, tuple(cuts), kept, again)
    builder.rows.extend(watched(_rows(stated, room_bytes), control))
    return stated


def _rows(stated: CutModel, room_bytes: int) -> Iterator[Row]:
    yield from _reads(stated)
    yield from _chains(stated)
    yield from _room(stated, room_bytes)


def _reads(stated: CutModel) -> Iterator[Row]:
    """Rows for the values that a block reads, and for the graph outputs in the last block."""
    graph = stated.graph
    for k in range(len(stated.cuts)):
        read = {v for j in stated.block(k) for v in graph.nodes[j].inputs}
        if k == len(stated.cuts) - 1:
            read.update(graph.outputs)
        for v in sorted(read):
            if (sources := stated.sources(k, v)) is not None:
                yield linear(1.0, sources, math.inf)


def _chains(stated: CutModel) -> Iterator[Row]:
    """Rows for the inputs of recomputations, and for the values that are kept across the next cut."""
    for (k, j), var in stated.again.items():
        for v in stated.graph.nodes[j].inputs:
            sources = stated.sources(k, v)
            assert sources is not None, "inputs of a node before the cut are made before it"
            yield linear(0.0, [*sources, (-1.0, var)], math.inf)
    for (k, v), var in stated.kept.items():
        if k and (sources := stated.sources(k - 1, v)) is not None:
            yield linear(0.0, [*sources, (-1.0, var)], math.inf)


def _room(stated: CutModel, room_bytes: int) -> Iterator[Row]:
    """Memory rows at the cuts."""
    graph, memory = stated.graph, MemoryScale.of(stated.graph, room_bytes)
    size = [memory.down(size) for size in graph.size]
    for k, t in enumerate(stated.cuts):
        own = set(graph.nodes[t].inputs)
        beside = [v for v in range(graph.first_value[t]) if v not in own and size[v]]
        if beside:
            terms = [(size[v], stated.kept[k, v]) for v in beside]
            yield linear(-math.inf, terms, memory.down(room_bytes - working_set(graph, t)))
