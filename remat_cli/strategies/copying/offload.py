"""``offload``: keep, compute again, or copy to the host, by whatever takes least time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from remat_cli.errors import StrategyMismatch, Worded
from remat_cli.strategies.base import Context, Found, Known, Needs, NotFound, Schedule, Task
from remat_cli.strategies.copying.stages import offload
from remat_cli.strategies.engine import Pipelined, Stage
from remat_cli.strategies.keep_all import kept_all


@dataclass(frozen=True, slots=True)
class Offload(Pipelined):
    """Searches for the plan that takes least time with copies to host memory and back, and bounds the time.

    It starts from the best plan that only recomputes, from one that only copies, and from a solution of the crossing
    MILP, so that it is no worse than either of the first two. Annealing improves them. The bound holds for every plan
    in document order with any copies.

    Attributes:
        recompute: Whether nodes may be computed again.
        copy: Whether values may be copied. The bound is for all plans, with any copies, all the same.
    """

    recompute: bool = field(default=True, metadata={"help": "whether nodes may be computed again"})
    copy: bool = field(default=True, metadata={"help": "whether values may be copied to the host"})

    name: ClassVar[str] = "offload"
    summary: ClassVar[str] = "keep, recompute or copy to the host, by time; needs a host"
    reference: ClassVar[str] = ""
    uses_solver: ClassVar[bool] = True
    copies: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs.HOST

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Keep everything if that fits; else run the stages."""
        if task.host is None:
            raise StrategyMismatch(
                "offload needs a host to copy to",
                hint=Worded('give a host, such as Host.of("25GB/s")', "add --host-bandwidth, such as 25GB/s"),
            )
        return kept_all(task) or Pipelined.solve(self, replace(task, known=self._allowed(task)), context)

    def pipeline(self) -> tuple[Stage, ...]:
        """Recompute alone, copy alone, bound, anneal and prove."""
        return offload(copying=self.copy, computing=self.recompute)

    def _allowed(self, task: Task) -> Known | None:
        """What is known, with the schedules that do only what the strategy may do."""
        if task.known is None:
            return None

        def allowed(schedule: Schedule) -> bool:
            once = len(schedule.computes) == len(task.graph.nodes)
            return (self.copy or schedule.copying is None) and (self.recompute or once)

        return replace(task.known, schedules=tuple(filter(allowed, task.known.schedules)))
