"""What ``remat solve`` does unless told otherwise: nothing if the graph fits, else the best exact method there is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from remat_cli.graph.analysis import no_remat_peak
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Context, Found, NotFound, Strategy, Task
from remat_cli.strategies.registry import strategy_from_spec

_SMALL = 60
"""Up to this many nodes the paper's MILP can look beyond one pass per stage, and for the least peak."""


@dataclass(frozen=True, slots=True)
class Auto(Strategy):
    """``keep-all`` when it fits the budget, else ``optimal``.

    A few graphs have a plan though no frontier-advancing one exists. Where ``optimal`` finds nothing and the graph is
    small, ``checkmate-ilp`` with split stages looks for one.
    """

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "keep-all when it fits, else optimal"
    reference: ClassVar[str] = ""
    uses_solver: ClassVar[bool] = True

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Choose strategies and run them; the answer names the one that made it."""
        if task.budget_bytes is None or no_remat_peak(task.graph) <= task.budget_bytes:
            return _run("keep-all", task, context)
        answer = _run("optimal", task, context)
        small = len(task.graph.nodes) <= _SMALL
        if isinstance(answer, Found) or answer.scope is Scope.DOCUMENT_ORDER or not small or context.control.stopping():
            return answer
        return _run("checkmate-ilp{stage_split=2}", task, context)


def _run(choice: str, task: Task, context: Context) -> Found | NotFound:
    def publish(found: Found) -> None:
        context.publish(replace(found, maker=choice))

    answer = strategy_from_spec(choice).solve(task, replace(context, publish=publish))
    return replace(answer, maker=choice) if isinstance(answer, Found) else answer
