"""Checkmate's "checkpoint all": what frameworks do by default, computing everything once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from remat_cli.graph.model import Phase
from remat_cli.graph.phases import require_phases
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Bound, Context, Found, Needs, Schedule, Strategy, Task


@dataclass(frozen=True, slots=True)
class CheckpointAll(Strategy):
    """Compute every node once, and free each activation after its gradient, as frameworks do (section 2).

    That is the schedule of ``keep-all`` with the condition that the graph has phases.

    Attributes:
        to_end: Keep the values of all forward nodes to the end of the step instead.
    """

    to_end: bool = field(default=False, metadata={"help": "keep all forward values to the end of the step instead"})

    name: ClassVar[str] = "checkpoint-all"
    summary: ClassVar[str] = "compute everything once, free each activation after its gradient, as frameworks do"
    reference: ClassVar[str] = "Jain et al., Checkmate, MLSys 2020, table 1"
    needs: ClassVar[Needs] = Needs.PHASES
    minds_budget: ClassVar[bool] = False
    ignores: ClassVar[frozenset[str]] = frozenset({"costs", "sizes", "budget"})

    def solve(self, task: Task, context: Context) -> Found:
        """The no-remat schedule, perhaps with all forward values held.

        Raises:
            StrategyMismatch: If a node has no phase.
        """
        graph = task.graph
        require_phases(graph, self.name)
        forward = (i for i, node in enumerate(graph.nodes) if node.phase is Phase.FORWARD)
        held = frozenset(v for i in forward for v in graph.values_of(i)) if self.to_end else frozenset[int]()
        schedule = Schedule(tuple(range(len(graph.nodes))), held)
        return Found(schedule, (Bound(graph.total_cost, Scope.ANY_ORDER),))
