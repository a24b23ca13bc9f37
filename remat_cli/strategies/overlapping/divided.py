"""Bounds on the time by what has to be computed again after bottleneck stages, and what collectives take before them.

Gathers may take longer than computations in one part of a step, and recomputation in another: then the work of each
queue over the whole step says little. At stages where memory is short, the *cuts*, a plan is divided, and computations
between any two of them are counted apart (docs/mathematics.md, "Collectives").
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import ClassVar

from remat_cli.errors import Interrupted, LimitReached
from remat_cli.graph.analysis import working_set
from remat_cli.graph.model import NodeQueue
from remat_cli.graph.order import Reordered
from remat_cli.milp import stage_cuts
from remat_cli.mip import Row, linear
from remat_cli.plan.liveness import heights
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Bound
from remat_cli.strategies.engine import Engine
from remat_cli.strategies.overlapping.once import heads_and_tails
from remat_cli.strategies.overlapping.sequences import Sequences
from remat_cli.strategies.overlapping.weighted import late_order, weighted
from remat_cli.tolerances import BOUND_MARGIN, INNER_GAP, SUM_ROUNDING

_MOST_CUTS = 6
_MOST_NODES = 2_000
"""Larger graphs have models that take too long. Untuned."""
_GAIN = 1e-3
"""A bound that rises by a smaller share is not refined further. Untuned."""


@dataclass(slots=True)
class Divided(Engine):
    """Solves models with more and more cuts.

    Attributes:
        cuts: Computations, ascending, in late order; empty before the first turn.
    """

    uses_solver: ClassVar[bool] = True

    cuts: list[int] = field(default_factory=list)

    def work(self) -> bool:
        """Begin with the highest stage and the last computation that a collective waits for, and add cuts."""
        incumbent = self.incumbent
        if len(incumbent.graph.nodes) > _MOST_NODES:
            return False
        incumbent.shared(Sequences).follow()
        late = late_order(incumbent.graph)
        least = 0.0
        self.cuts = self._first_cuts(late)
        while self.cuts and not incumbent.over():
            incumbent.report("bounding the time")
            try:
                bound, steps = self._solved(late)
            except (LimitReached, Interrupted):
                break
            if bound <= least * (1 + _GAIN) or steps is None or len(self.cuts) >= _MOST_CUTS:
                break
            least = bound
            if not self._add_cut(late, steps):
                break
        return False

    def _first_cuts(self, late: Reordered) -> list[int]:
        """The computation with the highest stage, and the last one that a collective follows."""
        graph = late.graph
        computing = [k for k, node in enumerate(graph.nodes) if node.queue is NodeQueue.COMPUTE]
        if not computing:
            return []
        profile = heights(graph, range(len(graph.nodes)))
        highest = max(computing, key=lambda k: profile[k])
        reduced = [k for k, node in enumerate(graph.nodes) if node.queue is NodeQueue.COMMUNICATION and node.inputs]
        last = max((k for k in computing if reduced and k < reduced[-1]), default=highest)
        return [k for k in sorted({highest, last}) if self._has_room(late, k)]

    def _has_room(self, late: Reordered, k: int) -> bool:
        return working_set(late.graph, k) <= self.incumbent.budget_bytes - late.graph.fixed_memory

    def _add_cut(self, late: Reordered, steps: Sequence[int]) -> bool:
        """Cut at the computation with the highest memory in a schedule, if that exceeds the budget."""
        graph, stage, best, most = late.graph, -1, -1, self.incumbent.budget_bytes
        for k, height in zip(steps, heights(graph, steps), strict=True):
            stage = max(stage, k)
            computes = graph.nodes[stage].queue is NodeQueue.COMPUTE
            if height > most and stage not in self.cuts and computes and self._has_room(late, stage):
                best, most = stage, height
        self.cuts = sorted({*self.cuts, *([best] if best >= 0 else [])})
        return best >= 0

    def _solved(self, late: Reordered) -> tuple[float, Sequence[int] | None]:
        """The bound of the model with these cuts, and the schedule of its solution."""
        incumbent, context = self.incumbent, self.incumbent.context
        plain = weighted(late.graph, 0.5)
        cuts = [(k, k) for k in self.cuts]
        room = incumbent.budget_bytes - plain.fixed_memory
        stated = stage_cuts.build(plain, cuts, room, context.control, seen=frozenset())
        builder, scale = stated.builder, incumbent.graph.no_remat_cost or 1.0
        builder.cost = [0.0] * len(builder.cost)
        (time,) = builder.amounts([1.0])
        builder.rows.extend(self._rows(late, stated, time, scale))
        outcome = context.solver.solve(context.request(stated.model, context.control, gap=INNER_GAP))
        bound = 0.0
        if outcome.bound is not None and math.isfinite(outcome.bound):
            bound = (outcome.bound - BOUND_MARGIN) * scale
            incumbent.raise_bound(Bound(bound, Scope.DOCUMENT_ORDER, overlaps=True))
        if outcome.values is None:
            return bound, None
        steps = stated.computes(outcome.values)
        incumbent.shared(Sequences).suggest([late.nodes[k] for k in steps])
        return bound, steps

    def _rows(self, late: Reordered, stated: stage_cuts.CutModel, time: int, scale: float) -> Iterator[Row]:
        """The time is no less than the work of the collectives, and than that of computations between any two cuts."""
        graph = late.graph
        heads, tails = heads_and_tails(graph)
        again: dict[NodeQueue, list[list[tuple[float, int]]]] = {queue: [[] for _ in self.cuts] for queue in NodeQueue}
        for (k, i), column in stated.recomputed.items():
            node = graph.nodes[i]
            again[node.queue][k].append((-node.cost / scale, column))
        everything = [term for terms in again[NodeQueue.COMMUNICATION] for term in terms]
        once = graph.cost_in(NodeQueue.COMMUNICATION) * (1 - SUM_ROUNDING)
        yield linear(once / scale, [(1.0, time), *everything], math.inf)
        computing = (node.cost if node.queue is NodeQueue.COMPUTE else 0.0 for node in graph.nodes)
        upto = list(accumulate(computing, initial=0.0))
        ends = [*self.cuts, len(graph.nodes) - 1]
        for first, start in enumerate(self.cuts):
            for last in range(first, len(self.cuts)):
                end = ends[last + 1]
                between = upto[end + 1] - upto[start + 1]
                tail = tails[end] if last + 1 < len(self.cuts) else 0.0
                least = (heads[start] + graph.nodes[start].cost + between + tail) * (1 - SUM_ROUNDING)
                terms = [term for block in again[NodeQueue.COMPUTE][first : last + 1] for term in block]
                yield linear(least / scale, [(1.0, time), *terms], math.inf)
