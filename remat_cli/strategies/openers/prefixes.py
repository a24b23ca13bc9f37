"""What comes before the tail of a schedule, as a task of its own.

The end of a schedule is replaced by a cheapest one where that fits (see ``openers/tails``). What comes before it is a
schedule of a smaller graph, with far fewer recomputations: engines find more there than on the whole graph in the same
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from remat_cli.graph.model import Graph
from remat_cli.plan.liveness import DEAD, next_reads
from remat_cli.strategies.base import Found, Task
from remat_cli.strategies.engine import Engine, engine_at
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.openers.tails import tails_of

_ENGINES = (
    ("remat_cli.strategies.openers.stage_cuts:StageCuts", 0.4),
    ("remat_cli.strategies.annealing.repair:Repair", 1.0),
)
"""The engines that work on it, and their shares of the time that is left: a model of bottleneck stages proposes
schedules, which are then made to fit. Untuned."""


@dataclass(slots=True)
class Prefixes(Engine):
    """Looks for a cheaper beginning of the incumbent, up to the first node of the tail.

    Attributes:
        searches: The incumbents of the beginnings so far, by the values that they make.
    """

    uses_solver: ClassVar[bool] = True

    searches: dict[tuple[int, ...], Incumbent] = field(default_factory=dict)

    def work(self) -> bool:
        """One turn of each engine."""
        incumbent, tail = self.incumbent, tails_of(self.incumbent).found
        if tail is None or incumbent.computes is None:
            return False
        at = incumbent.computes.index(tail.first) + 1
        begin, end = incumbent.computes[:at], incumbent.computes[at:]
        graph = prefix(incumbent.graph, incumbent.computes, at)

        def publish(found: Found) -> None:
            incumbent.offer((*found.schedule.computes, *end))

        control = incumbent.context.control
        context = replace(incumbent.context, publish=publish, write_model=None, trace=[])
        search = self.searches.get(graph.outputs)
        if search is None:
            search = self.searches[graph.outputs] = Incumbent.of(Task(graph, incumbent.budget_bytes), context)
        search.context = context
        search.offer(begin)
        incumbent.report("searching before the tail")
        for path, share in _ENGINES:
            engine_at(path, search).turn(control.part(share), incumbent.crediting[0], goal=incumbent.goal)
        return False


def prefix(graph: Graph, computes: Sequence[int], at: int) -> Graph:
    """The graph up to the last node of ``computes[:at]``; its outputs are what the rest of ``computes`` needs of it.

    Args:
        graph: The graph.
        computes: A schedule in document order.
        at: A number of its steps, of which the last is a first computation.
    """
    reads = next_reads(graph, computes, (at,))[at]
    needed = tuple(v for v, step in enumerate(reads) if step != DEAD)
    return replace(graph, nodes=graph.nodes[: computes[at - 1] + 1], outputs=needed)
