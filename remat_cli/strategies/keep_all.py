"""No rematerialisation: every node once, every value freed after its last read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Bound, Context, Found, Schedule, Strategy, Task


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
        graph = task.graph
        return Found(Schedule(tuple(range(len(graph.nodes)))), (Bound(graph.total_cost, Scope.ANY_ORDER),))
