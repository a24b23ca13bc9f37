"""The cover bound for large graphs: a few terms for each stage instead of one for each live value.

The bytes dropped across stage t are a variable: that of stage t-1, plus the values made at t, minus those that t is the
last to read. The rows are those of :mod:`remat_cli.milp.cover_bound` without the cap on a node that frees more than is
needed: they have the same integer solutions and a slightly weaker relaxation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from remat_cli.control import Control
from remat_cli.graph.analysis import last_readers, no_remat_profile
from remat_cli.graph.closing import closed
from remat_cli.graph.model import Graph
from remat_cli.milp.cover_bound import IMPOSSIBLE, Impossible
from remat_cli.milp.memory_scale import MemoryScale
from remat_cli.mip import Builder, LinearModel, Row, linear


def dense_terms(graph: Graph) -> int:
    """Upper bound on the terms of the plain cover bound: the stages that each value waits through, summed."""
    return sum(last - graph.producer[v] for v, last in enumerate(last_readers(graph)))


def least_peak(graph: Graph) -> int:
    """A lower bound in bytes on the peak of schedules in document order, fixed memory included.

    At the first computation of a node its working set is resident, and so is every value made before and read later
    that may not be recomputed.
    """
    return graph.fixed_memory + max(stage.need - stage.most for stage in stages_of(closed(graph), graph.fixed_memory))


@dataclass(frozen=True, slots=True)
class Stage:
    """The requirement of stage t.

    Attributes:
        need: Bytes that must be dropped; negative if memory is free.
        most: Bytes that can be dropped.
        made: Recomputable values that begin to wait at t.
        read: Recomputable values that t is the last to read.
        own: Recomputable values that wait past t but do not count at t, since t reads or writes them.
    """

    need: int
    most: int
    made: tuple[int, ...]
    read: tuple[int, ...]
    own: tuple[int, ...]


def stages_of(graph: Graph, budget_bytes: int) -> Iterator[Stage]:
    """Every stage of ``graph``, which must have its closing node, in order."""
    last = last_readers(graph)
    again = [graph.nodes[i].recompute and size > 0 for i, size in zip(graph.producer, graph.size, strict=True)]
    ending: list[list[int]] = [[] for _ in range(len(graph.nodes) + 1)]
    for v, t in enumerate(last):
        ending[t].append(v)
    in_use = no_remat_profile(graph)
    spare = 0  # bytes of recomputable values made by now and read later
    for t, node in enumerate(graph.nodes):
        made = [v for v in graph.values_of(t) if last[v] > t]
        read = [v for v in ending[t] if graph.producer[v] < t]
        spare += sum(graph.size[v] for v in made if again[v]) - sum(graph.size[v] for v in read if again[v])
        own = [v for v in (*node.inputs, *graph.values_of(t)) if last[v] > t]
        yield Stage(
            need=in_use[t] - budget_bytes,
            most=spare - sum(graph.size[v] for v in own if again[v]),
            made=tuple(v for v in made if again[v]),
            read=tuple(v for v in read if again[v]),
            own=tuple(v for v in own if again[v]),
        )


def build(graph: Graph, budget_bytes: int, control: Control) -> LinearModel | Impossible | None:
    """The model, which minimises the cost of recomputation (C0 left out) in units of C0.

    Args:
        graph: The graph.
        budget_bytes: Fixed memory included.
        control: Checked while building.

    Returns:
        The model; None if no stage is over the budget, so that the bound is C0; :data:`IMPOSSIBLE` if at some stage
        dropping all recomputable values does not free enough.

    Raises:
        LimitReached, Interrupted: If the control stops meanwhile.
    """
    graph = closed(graph)
    stages = list(stages_of(graph, budget_bytes))
    if all(stage.need <= 0 for stage in stages):
        return None
    if any(stage.most < stage.need for stage in stages):
        return IMPOSSIBLE
    memory = MemoryScale.of(graph, budget_bytes - graph.fixed_memory)
    used = sorted({graph.producer[v] for stage in stages for v in stage.made})
    scale = graph.total_cost or 1.0
    model = Builder()
    x = dict(zip(used, model.binaries(graph.nodes[i].cost / scale for i in used), strict=True))
    given = model.amounts([0.0] * len(stages))

    def terms(values: tuple[int, ...], sign: float) -> list[tuple[float, int]]:
        return [(sign * memory.up(graph.size[v]), x[graph.producer[v]]) for v in values]

    def rows() -> Iterator[Row]:
        for t, stage in enumerate(stages):
            before = [(-1.0, given[t - 1])] if t else []
            yield linear(0.0, [(1.0, given[t]), *before, *terms(stage.made, -1.0), *terms(stage.read, 1.0)], 0.0)
            if stage.need > 0:
                yield linear(memory.down(stage.need), [(1.0, given[t]), *terms(stage.own, -1.0)], math.inf)

    model.rows.extend(control.watched(rows()))
    return model.build()
