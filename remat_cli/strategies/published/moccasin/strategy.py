"""The cheapest schedule with few computations per node, by constraint programming on retention intervals."""

from __future__ import annotations

import json
import math
import pickle
import sys
import time
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from remat_cli.errors import SolverFailed, SolverUnavailable, UsageError
from remat_cli.extras import install_command
from remat_cli.graph.analysis import peak_bound
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Scope
from remat_cli.solvers.base import SolverLog
from remat_cli.solvers.process import run_process, temporary_folder
from remat_cli.strategies.base import Bound, Context, Found, NotFound, Strategy, Task
from remat_cli.strategies.incumbent import Incumbent, Verdict
from remat_cli.strategies.published.moccasin.worker import Job
from remat_cli.strategies.published.model_size import instance_counts, too_many_intervals

_ROOT = Path(__file__).parents[2]
_WORKER = f"""
import sys
sys.path[0] = {str(_ROOT)!r}
from remat_cli.strategies.published.moccasin.worker import main
main()
"""


@dataclass(frozen=True, slots=True)
class Moccasin(Strategy):
    """Start, end and presence of every instance of a value, solved by CP-SAT.

    Attributes:
        instances: Most computations of a node.
        hint: Lower the peak of a known schedule first, and start the search for the cheapest one from there. False
            searches for the cheapest one at once, without a start.
    """

    instances: int = field(default=2, metadata={"help": "how often a node may be computed in all"})
    hint: bool = field(default=True, metadata={"help": "first look for any schedule that fits, and start from it"})

    name: ClassVar[str] = "moccasin"
    summary: ClassVar[str] = "the optimal schedule with few computations per node, by CP-SAT on retention intervals"
    reference: ClassVar[str] = "Bartan et al., Moccasin, ICML 2023"

    def __post_init__(self) -> None:
        """Refuse option values out of range."""
        if self.instances < 1:
            raise UsageError(f"moccasin{{instances={self.instances}}}: every node is computed at least once")

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Have CP-SAT lower the peak to the budget, and then the cost."""
        incumbent = Incumbent.of(task, context, goal=Verdict.CLASS)
        if incumbent.done():
            return incumbent.found(exhausted=True)
        least = peak_bound(task.graph).bytes
        if incumbent.budget_bytes < least:
            return NotFound("no schedule fits", Scope.ANY_ORDER, peak_bound_bytes=least)
        if find_spec("ortools") is None:
            raise SolverUnavailable(
                "strategy moccasin needs CP-SAT, but ortools is not installed", hint=install_command("cpsat")
            )
        if (large := too_many_intervals(task.graph, context.control, self.instances)) is not None:
            return large
        return _Talk(incumbent, *_class(task.graph, self.instances)).run(self._job(task, incumbent))

    def _job(self, task: Task, incumbent: Incumbent) -> Job:
        context = incumbent.context
        remaining = context.control.remaining_s()
        # Payloads may be large, and the worker does not use them.
        nodes = tuple(replace(node, payload=None) for node in task.graph.nodes)
        return Job(
            graph=replace(task.graph, nodes=nodes, metadata=None),
            budget_bytes=incumbent.budget_bytes,
            instances=self.instances,
            hint=self.hint,
            known=() if task.known is None else tuple(schedule.computes for schedule in task.known.schedules),
            gap=context.gap,
            bound=max(b.cost for b in incumbent.bounds.values() if b.scope in {Scope.ANY_ORDER, Scope.DOCUMENT_ORDER}),
            deadline_s=None if remaining is None else time.time() + remaining,
            threads=context.threads,
            seed=context.seed,
            log=context.solver_log is not None,
        )


def _class(graph: Graph, instances: int) -> tuple[Scope, str]:
    """The schedules that the model holds, and how to say that none of them fits."""
    if instance_counts(graph, instances) == instance_counts(graph, len(graph.nodes) + 1):
        return Scope.FRONTIER, "no frontier-advancing schedule fits"
    times = "1 computation" if instances == 1 else f"{instances} computations"
    return Scope.RESTRICTED, f"no frontier-advancing schedule with at most {times} per node fits"


@dataclass(slots=True)
class _Talk:
    """The messages of the CP-SAT process.

    Attributes:
        incumbent: Gets every schedule and bound.
        scope: The schedules that the model holds.
        reason: The reason to give if CP-SAT proves that none of them fits.
        activity: What it is doing.
        empty: Whether none of those schedules fits.
        least_bytes: The least peak among them, if it knows.
        ended: Whether it came to an end by itself.
        error: What went wrong, as ``[unavailable or failed, text]``.
        log: Gets the log of CP-SAT.
    """

    incumbent: Incumbent
    scope: Scope
    reason: str
    activity: str = "CP-SAT"
    empty: bool = False
    least_bytes: int | None = None
    ended: bool = False
    error: tuple[str, str] | None = None
    log: SolverLog | None = None

    def run(self, job: Job) -> Found | NotFound:
        """Run the job in its process; the answer.

        Raises:
            SolverUnavailable: If ortools does not work.
            SolverFailed: If CP-SAT crashes.
        """
        control = self.incumbent.context.control
        with (
            temporary_folder() as folder,
            SolverLog(self.incumbent.context.solver_log) as self.log,
            SolverLog(None) as printed,
        ):
            path = folder / "job.pickle"
            path.write_bytes(pickle.dumps(job))
            command = [sys.executable, "-c", _WORKER, str(path)]
            end = run_process(command, control, printed, folder=folder, on_line=self._hear, disposable=True)
        if self.error is not None:
            kind, text = self.error
            if kind == "unavailable":
                raise SolverUnavailable(
                    f"strategy moccasin needs CP-SAT, but ortools does not work: {text}", hint=install_command("cpsat")
                )
            raise SolverFailed(f"CP-SAT: {text}")
        if end.crashed:
            raise SolverFailed(f"CP-SAT {end.text()}: {printed.text()}")
        return self._answer()

    def _answer(self) -> Found | NotFound:
        incumbent = self.incumbent
        if incumbent.computes is not None:
            return incumbent.found(exhausted=incumbent.done() or self.ended)
        if self.empty:
            return replace(incumbent.not_found(self.reason, self.scope), peak_bound_bytes=self.least_bytes)
        return incumbent.not_found("the limit came before CP-SAT found a schedule that fits")

    def _hear(self, line: str) -> None:
        """Take one line; a line that is no message (such as a library's warning) is kept for error messages only."""
        if not line.startswith('["'):
            return
        kind, value = json.loads(line)
        self._take(kind, value)

    def _take(self, kind: str, value: Any) -> None:
        incumbent = self.incumbent
        if kind == "activity":
            self.activity = value
        elif kind == "computes":
            incumbent.offer(value)
        elif kind == "bound":
            incumbent.raise_bound(Bound(value, self.scope))
        elif kind == "empty":
            self.empty, self.least_bytes = True, value
            incumbent.raise_bound(Bound(math.inf, self.scope))
        elif kind == "log" and self.log is not None:
            self.log.write(f"{value}\n")
        elif kind == "end":
            self.ended = True
        elif kind == "error":
            self.error = (value[0], value[1])
        if kind in {"activity", "computes", "bound"}:
            incumbent.report(self.activity)
