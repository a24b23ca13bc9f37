"""What ``remat solve`` does unless told otherwise: nothing if the graph fits, else all engines in a fixed order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from remat_cli.graph.analysis import no_remat_peak
from remat_cli.strategies.base import Context, Found, NotFound, Strategy, Task
from remat_cli.strategies.incumbent import Verdict
from remat_cli.strategies.keep_all import KeepAll


@dataclass(frozen=True, slots=True)
class Auto(Strategy):
    """``keep-all`` when it fits the budget, else quick methods, ``optimal``, and ``search`` for what that leaves open.

    The stages are those of ``pipeline.AUTO``. A few graphs have a plan though no frontier-advancing one exists. Where
    nothing else finds one and the graph is small, ``checkmate-ilp`` with split stages looks for it.
    """

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "keep-all when it fits, else quick methods, optimal, and search for what that leaves open"
    reference: ClassVar[str] = ""
    uses_solver: ClassVar[bool] = True

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Go through the stages; the answer names the strategy that made it."""
        if task.budget_bytes is None or no_remat_peak(task.graph) <= task.budget_bytes:
            return KeepAll().solve(task, context)
        from remat_cli.strategies import pipeline  # half a second of what a graph that fits can do without

        return pipeline.solve_by(pipeline.AUTO, task, context, Verdict.GAP)
