"""Optimal schedules by the retention MILP over a growing support, with bounds that hold beyond it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from remat_cli.errors import UsageError
from remat_cli.strategies.engine import Pipelined, Stage
from remat_cli.strategies.incumbent import Verdict


@dataclass(frozen=True, slots=True)
class Optimal(Pipelined):
    """The retention MILP over growing supports; without a proof of optimality it gives a bound.

    Attributes:
        depth: The only support to use: how far from its uses a node may be recomputed. 0 lets it grow.
    """

    depth: float = field(default=0.0, metadata={"help": "how far from its uses a node may be recomputed; 0: grow"})

    name: ClassVar[str] = "optimal"
    summary: ClassVar[str] = "the optimal schedule, by the retention MILP over a growing support"
    reference: ClassVar[str] = ""
    uses_solver: ClassVar[bool] = True
    goal: ClassVar[Verdict] = Verdict.CLASS

    def __post_init__(self) -> None:
        """Refuse a negative or infinite depth."""
        if not 0 <= self.depth < math.inf:
            raise UsageError(f"optimal{{depth={self.depth:g}}}: the depth must be 0 or more")

    def pipeline(self) -> tuple[Stage, ...]:
        """Open, bound, and solve over growing supports until no frontier-advancing schedule is cheaper."""
        from remat_cli.strategies import pipeline

        return pipeline.optimal(self.depth)
