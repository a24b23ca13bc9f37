"""``overlap``: what to keep, what to compute or gather again, when to issue collectives, by the time of the plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from remat_cli.errors import StrategyMismatch
from remat_cli.kernels import compiling
from remat_cli.strategies.base import Context, Found, Needs, NotFound, Task
from remat_cli.strategies.engine import Pipelined, Stage


@dataclass(frozen=True, slots=True)
class Overlap(Pipelined):
    """Searches for the plan of a graph with collectives that takes least time, and bounds the time.

    It minimises weighted sums of the costs of the two queues as ``auto`` does, issues the collectives of each solution
    as early as there is room, and anneals the best by their time. The bound holds for every plan in document order, in
    which collectives that read only fixed memory may be at any place.
    """

    name: ClassVar[str] = "overlap"
    summary: ClassVar[str] = "keep, recompute or gather again beside computations, by time; needs collectives"
    reference: ClassVar[str] = ""
    uses_solver: ClassVar[bool] = True
    overlaps: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs.COLLECTIVES

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Run the stages.

        Raises:
            StrategyMismatch: If the graph has no collectives.
        """
        if not task.graph.overlaps:
            raise StrategyMismatch(
                "overlap needs collectives: no node of the graph says queue: communication",
                hint="take the strategy auto",
            )
        return Pipelined.solve(self, task, context)

    def pipeline(self) -> tuple[Stage, ...]:
        """Weigh costs, and anneal."""
        return overlap()


_ROOM = "remat_cli.strategies.overlapping"
_KERNELS: tuple[compiling.Group, ...] = ("overlapping",)
_ANNEALING = Stage(
    "annealing-times",
    f"{_ROOM}.annealing:Annealing",
    "changes what is kept and when collectives are issued, while there is time or, without a limit, while it gains",
    kernels=_KERNELS,
)


def overlap() -> tuple[Stage, ...]:
    """The stages."""
    return (
        Stage(
            "compile-overlapping",
            "remat_cli.strategies.engine:CompiledLoops",
            "compiles inner loops beside the search, in the first run after an installation",
            options={"groups": _KERNELS},
        ),
        Stage(
            "usual-methods",
            f"{_ROOM}.usual:UsualMethods",
            "starts from what frameworks do, so that no plan is worse",
            share=0.2,
            most_s=5.0,
        ),
        replace(
            _ANNEALING,
            name="annealing-first",
            why="gives a plan before the proof",
            options={"rounds": 1},
            share=0.05,
            most_s=2.0,
        ),
        Stage(
            "divided",
            f"{_ROOM}.divided:Divided",
            "bounds the time where one queue is the bottleneck in one part of the step, and the other in another",
            share=0.35,
            most_s=30.0,
        ),
        Stage(
            "gathered-again",
            f"{_ROOM}.weighted:GatheredAgain",
            "recomputes least where the parameters of some layers are gathered again",
            share=0.3,
        ),
        Stage(
            "weights",
            f"{_ROOM}.weighted:Weights",
            "bounds the time by sums of weighted costs, whose solutions are starts",
            share=0.6,
        ),
        _ANNEALING,
    )
