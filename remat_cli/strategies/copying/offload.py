"""``offload``: keep, compute again, or copy to the host, by whatever takes least time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from remat_cli.errors import StrategyMismatch, Worded
from remat_cli.kernels import compiling
from remat_cli.strategies.base import Context, Found, Known, Needs, NotFound, Schedule, Task
from remat_cli.strategies.conditions import UNLIMITED
from remat_cli.strategies.engine import Pipelined, Stage
from remat_cli.strategies.incumbent import Verdict
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


_ROOM = "remat_cli.strategies.copying"
_ENGINES, _CROSSING = f"{_ROOM}.annealing", f"{_ROOM}.crossing:CrossingBound"
_KERNELS: tuple[compiling.Group, ...] = ("copying",)

_COMPILE = Stage(
    "compile-copying",
    "remat_cli.strategies.engine:CompiledLoops",
    "compiles inner loops beside the search, in the first run after an installation",
    options={"groups": _KERNELS},
)
_RECOMPUTE_ALONE = Stage(
    "recompute-alone", f"{_ENGINES}:RecomputeAlone", "gives the plan of auto without copies", share=0.3, most_s=15.0
)
_COPY_ALONE = Stage(
    "copy-alone", f"{_ENGINES}:CopyAlone", "copies what waits longest, and computes nothing again", kernels=_KERNELS
)
_CROSSING_PROOF = Stage(
    "crossing-proof",
    _CROSSING,
    "bounds the time of all plans with any copies, and gives solutions to start from",
    share=0.5,
    most_s=60.0,
    writes_model=True,
    kernels=_KERNELS,
)
_ANNEALING = Stage(
    "annealing",
    f"{_ENGINES}:Annealing",
    "changes copies and recomputations while there is time, or without a limit while it gains",
    kernels=_KERNELS,
)
_TIDYING = Stage(
    "tidying",
    f"{_ENGINES}:Tidying",
    "removes copies that save no time",
    until=Verdict.IMPOSSIBLE,
    kernels=_KERNELS,
)


def offload(*, copying: bool = True, computing: bool = True) -> tuple[Stage, ...]:
    """The stages.

    Args:
        copying: Whether values may be copied.
        computing: Whether nodes may be computed again.
    """
    moves = {"copying": copying, "computing": computing}
    proof = replace(_CROSSING_PROOF, options={"relaxed": False, **moves})
    relaxed = Stage(
        "crossing-relaxed",
        _CROSSING,
        "gives a bound and a start in a fraction of the time of the models themselves",
        options={"relaxed": True, **moves},
        share=0.25,
        most_s=30.0,
        kernels=_KERNELS,
    )
    first = replace(
        _ANNEALING,
        name="annealing-first",
        why="improves the starts; little time before the proof, whose solutions are better starts",
        options={"rounds": 1, **moves},
        share=0.2,
        most_s=10.0,
    )
    return (
        _COMPILE,
        *((_RECOMPUTE_ALONE,) if computing else ()),
        *((_COPY_ALONE,) if copying else ()),
        relaxed,
        first,
        proof,
        replace(_ANNEALING, options=moves),
        replace(proof, name="crossing-proof-last", why="goes on without a time limit", when=UNLIMITED),
        _TIDYING,
    )
