"""Anytime search: a start, then windows of the retention MILP and annealing of the sequence, by turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from remat_cli.strategies.engine import Pipelined, Stage

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
        return _stages(("annealing", "merging", "windows"), self.depth, self.patience)

    def beside(self) -> tuple[Stage, ...]:
        """The same engines with another seed."""
        from remat_cli.strategies.pipeline import BESIDE

        return BESIDE


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
        return _stages(("windows",), self.depth, self.patience)


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
        return _stages(("annealing",), 0.0, self.patience)


def _stages(members: tuple[str, ...], depth: float, patience: int) -> tuple[Stage, ...]:
    """Open, bound, and let ``members`` take turns."""
    from remat_cli.strategies import pipeline

    return pipeline.search(members, depth, patience)
