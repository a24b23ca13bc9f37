"""What ``remat solve`` does unless told otherwise: nothing if the graph fits, else the best exact method there is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from remat_cli.graph.analysis import no_remat_peak
from remat_cli.strategies.base import Context, Found, NotFound, Strategy, Task
from remat_cli.strategies.registry import strategy_from_spec


@dataclass(frozen=True, slots=True)
class Auto(Strategy):
    """``keep-all`` when it fits the budget, else ``checkmate-ilp``."""

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "keep-all when it fits, else checkmate-ilp"
    reference: ClassVar[str] = ""
    uses_solver: ClassVar[bool] = True

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Choose a strategy and run it; the answer names it."""
        fits = task.budget_bytes is None or no_remat_peak(task.graph) <= task.budget_bytes
        choice = "keep-all" if fits else "checkmate-ilp"

        def publish(found: Found) -> None:
            context.publish(replace(found, maker=choice))

        answer = strategy_from_spec(choice).solve(task, replace(context, publish=publish))
        return replace(answer, maker=choice) if isinstance(answer, Found) else answer
