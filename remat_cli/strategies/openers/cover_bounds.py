"""Engines that bound the cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from remat_cli.strategies.bounds import cover_bound, quick_bound
from remat_cli.strategies.engine import Engine
from remat_cli.strategies.incumbent import Verdict


@dataclass(slots=True)
class QuickBound(Engine):
    """The dual of the cover bound, maximised without a solver; adds nothing on small graphs."""

    def work(self) -> bool:
        """Ascend until the clock stops or the steps get too short."""
        incumbent = self.incumbent
        incumbent.raise_bound(quick_bound(incumbent.graph, incumbent.budget_bytes, incumbent.context.control))
        return False


_POLISH_S = 3.0
"""Most seconds if the incumbent is already within the gap. Untuned."""


@dataclass(slots=True)
class CoverBound(Engine):
    """The cover bound (see ``milp/cover_bound``)."""

    uses_solver: ClassVar[bool] = True

    def work(self) -> bool:
        """Solve it once."""
        incumbent = self.incumbent
        incumbent.report("bounding")
        limit_s = incumbent.seconds(_POLISH_S if incumbent.verdict >= Verdict.GAP else math.inf, 1.0)
        incumbent.raise_bound(
            cover_bound(incumbent.graph, incumbent.budget_bytes, incumbent.context, time_limit_s=limit_s)
        )
        return False
