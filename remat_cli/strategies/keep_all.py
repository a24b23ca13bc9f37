"""No rematerialisation: every node once, as ``keep-all`` and Checkmate's ``checkpoint-all`` do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Phase
from remat_cli.graph.phases import require_phases
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Bound, Context, Found, Needs, Schedule, Strategy, Task
from remat_cli.strategies.objective import objective_for


@dataclass(frozen=True, slots=True)
class KeepAll(Strategy):
    """Compute every node once, in document order. No plan is cheaper; its peak is P0."""

    name: ClassVar[str] = "keep-all"
    overlaps: ClassVar[bool] = True
    summary: ClassVar[str] = "compute everything once, free values after their last read (no rematerialisation)"
    reference: ClassVar[str] = ""
    minds_budget: ClassVar[bool] = False
    ignores: ClassVar[frozenset[str]] = frozenset({"costs", "sizes", "budget"})

    def solve(self, task: Task, context: Context) -> Found:
        """The no-remat schedule; it costs C0, a lower bound on every plan."""
        return Found(Schedule(tuple(range(len(task.graph.nodes)))), (objective_for(task).trivial_bound,))


def kept_all(task: Task) -> Found | None:
    """The answer of ``keep-all`` if it is within the budget and no plan is better, as with collectives. Else None."""
    graph = task.graph
    if graph.overlaps:
        return None
    if task.budget_bytes is not None and no_remat_peak(graph) > task.budget_bytes:
        return None
    schedule = Schedule(tuple(range(len(graph.nodes))))
    return Found(schedule, (objective_for(task).trivial_bound,), maker=KeepAll.name)


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
    overlaps: ClassVar[bool] = True
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
        return Found(schedule, (Bound(graph.least_cost, Scope.ANY_ORDER),))
