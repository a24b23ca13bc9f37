"""Anytime search: a start, then windows of the retention MILP and annealing of the sequence, by turns."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from remat_cli.errors import UsageError
from remat_cli.strategies import pipeline
from remat_cli.strategies.base import Context, Found, NotFound, Task
from remat_cli.strategies.engine import Pipelined, Stage
from remat_cli.strategies.incumbent import Verdict
from remat_cli.strategies.keep_all import kept_all

_ALL = "all"


@dataclass(frozen=True, slots=True)
class Auto(Pipelined):
    """``keep-all`` if it fits the budget, else quick methods, ``optimal``, and ``search`` until the gap is reached.

    The stages are those of ``pipeline.AUTO``. A few graphs have a plan though no frontier-advancing one exists. Where
    nothing else finds one and the graph is small, ``checkmate-ilp`` with split stages looks for it.

    Attributes:
        stages: Names of the stages to run, joined by ``+``, or ``all``. ``remat strategies auto`` lists them.
    """

    stages: str = field(default=_ALL, metadata={"help": "stages to run, joined by +; see remat strategies auto"})

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "keep-all if it fits, else quick methods, optimal, and search until the gap is reached"
    reference: ClassVar[str] = ""
    uses_solver: ClassVar[bool] = True
    copies: ClassVar[bool] = True
    overlaps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse names that no stage has."""
        if self.stages != _ALL:
            known = [stage.name for stage in pipeline.AUTO]
            for name in self.stages.split("+"):
                if name not in known:
                    raise UsageError(f'auto{{stages}}: "{name}" is not a stage', hint=f"stages: {', '.join(known)}")

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Run the stages; the answer names the strategy that made it."""
        return kept_all(task) or Pipelined.solve(self, task, context)

    def pipeline(self) -> tuple[Stage, ...]:
        """All stages, or those that were chosen."""
        chosen = self.stages.split("+")
        return tuple(stage for stage in pipeline.AUTO if self.stages == _ALL or stage.name in chosen)

    def second_search(self) -> tuple[Stage, ...]:
        """Annealing, merging and windows, which find plans while the stages prove bounds; none for chosen stages."""
        return pipeline.SECOND_SEARCH if self.stages == _ALL else ()


@dataclass(frozen=True, slots=True)
class Optimal(Pipelined):
    """The retention MILP over a support; without a proof of optimality it gives a bound.

    Attributes:
        depth: The support to use: how far from its uses a node may be recomputed. 0 stands for the usual one.
    """

    depth: float = field(default=0.0, metadata={"help": "how far from its uses a node may be recomputed; 0: usual"})

    name: ClassVar[str] = "optimal"
    summary: ClassVar[str] = "the optimal schedule, by the retention MILP"
    reference: ClassVar[str] = ""
    uses_solver: ClassVar[bool] = True
    goal: ClassVar[Verdict] = Verdict.CLASS

    def __post_init__(self) -> None:
        """Refuse a negative or infinite depth."""
        if not 0 <= self.depth < math.inf:
            raise UsageError(f"optimal{{depth={self.depth:g}}}: the depth must be 0 or more")

    def pipeline(self) -> tuple[Stage, ...]:
        """Open, bound, and solve over a support until no frontier-advancing schedule is cheaper."""
        return pipeline.optimal(self.depth)


_DEPTH: dict[str, Any] = {"help": "how far from its uses a node may be recomputed in a window"}
_PATIENCE: dict[str, Any] = {"help": "idle rounds after which it ends when there is no time limit"}


@dataclass(frozen=True, slots=True)
class Search(Pipelined):
    """A portfolio of engines that share the incumbent; never worse than its start.

    ``threads`` workers anneal; by default two (one on a machine with one core). The windows run after them, and give
    the solver as many threads. With a time limit and ``threads``, one of the threads is for a second such search.

    Attributes:
        depth: Support of the model that windows are taken from.
        patience: Rounds in a row without an improvement after which it ends, if there is no time limit.
    """

    depth: float = field(default=2.0, metadata=_DEPTH)
    patience: int = field(default=8, metadata=_PATIENCE)

    name: ClassVar[str] = "search"
    summary: ClassVar[str] = "anytime search: windows of the retention MILP and annealing of the sequence, by turns"
    reference: ClassVar[str] = ""
    uses_solver: ClassVar[bool] = True

    def pipeline(self) -> tuple[Stage, ...]:
        """Start from what is known, or from a rounded relaxation; then search until time or patience is out."""
        return pipeline.search(("annealing", "merging", "windows"), self.depth, self.patience)

    def second_search(self) -> tuple[Stage, ...]:
        """The same engines with another seed."""
        return pipeline.SECOND_SEARCH


@dataclass(frozen=True, slots=True)
class Lns(Pipelined):
    """Windows of the retention MILP alone; never worse than its start.

    Attributes:
        depth: Support of the model that windows are taken from.
        patience: Rounds in a row without an improvement after which it ends, if there is no time limit.
    """

    depth: float = field(default=2.0, metadata=_DEPTH)
    patience: int = field(default=8, metadata=_PATIENCE)

    name: ClassVar[str] = "lns"
    summary: ClassVar[str] = "large neighbourhood search: windows of the retention MILP"
    reference: ClassVar[str] = ""
    uses_solver: ClassVar[bool] = True

    def pipeline(self) -> tuple[Stage, ...]:
        """Start from what is known, or from a rounded relaxation; then free and solve one part after the other."""
        return pipeline.search(("windows",), self.depth, self.patience)


@dataclass(frozen=True, slots=True)
class Anneal(Pipelined):
    """Annealing of the sequence of computes alone; never worse than its start.

    ``threads`` workers anneal; by default two (one on a machine with one core). The same seed and number of workers
    give the same schedule, unless a time limit ends the search.

    Attributes:
        patience: Rounds in a row without an improvement after which it ends, if there is no time limit.
    """

    patience: int = field(default=8, metadata=_PATIENCE)

    name: ClassVar[str] = "anneal"
    summary: ClassVar[str] = "simulated annealing of the sequence of computes; not confined to an advancing frontier"
    reference: ClassVar[str] = ""
    uses_solver: ClassVar[bool] = True

    def pipeline(self) -> tuple[Stage, ...]:
        """Start from what is known, or from computing everything once; then anneal until time or patience is out."""
        return pipeline.search(("annealing",), 0.0, self.patience)
