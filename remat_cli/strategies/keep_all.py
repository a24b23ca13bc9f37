"""No rematerialisation: every node once, every value freed after its last read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from remat_cli.graph.analysis import no_remat_peak
from remat_cli.strategies.base import Context, Found, Schedule, Strategy, Task
from remat_cli.strategies.objective import objective_for


@dataclass(frozen=True, slots=True)
class KeepAll(Strategy):
    """Compute every node once, in document order. No plan is cheaper; its peak is P0."""

    name: ClassVar[str] = "keep-all"
    summary: ClassVar[str] = "compute everything once, free values after their last read (no rematerialisation)"
    reference: ClassVar[str] = ""
    minds_budget: ClassVar[bool] = False
    ignores: ClassVar[frozenset[str]] = frozenset({"costs", "sizes", "budget"})

    def solve(self, task: Task, context: Context) -> Found:
        """The no-remat schedule; it costs C0, a lower bound on every plan."""
        return Found(Schedule(tuple(range(len(task.graph.nodes)))), (objective_for(task).trivial_bound,))


def kept_all(task: Task) -> Found | None:
    """The answer of ``keep-all`` if it is within the budget; no plan is better. Else None."""
    graph = task.graph
    if task.budget_bytes is not None and no_remat_peak(graph) > task.budget_bytes:
        return None
    schedule = Schedule(tuple(range(len(graph.nodes))))
    return Found(schedule, (objective_for(task).trivial_bound,), maker=KeepAll.name)
