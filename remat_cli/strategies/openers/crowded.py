"""Schedules and bounds from a model of the stages that need the most memory alone (see ``milp/crowded``).

The first model has one crowded stage, that of the no-remat peak. If its schedule exceeds the budget at another stage,
the next model has that stage too. Every round raises the bound; a schedule that fits is as cheap as the bound.
Training steps often fit after one or two rounds.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_profile, working_set
from remat_cli.milp import crowded
from remat_cli.plan.liveness import heights
from remat_cli.plan.model import Scope
from remat_cli.solvers.base import Termination
from remat_cli.strategies.base import Bound
from remat_cli.strategies.bounds import safe_bound
from remat_cli.strategies.engine import Engine
from remat_cli.strategies.retention.second_look import confirmed
from remat_cli.tolerances import CUTS_GAP

_MOST_CUTS = 16
"""Crowded stages in one model. Untuned."""
_MOST_VARIABLES = 60_000
"""Variables of the largest model to state. Untuned."""
_SHARES = (0.97, 0.93, 0.88, 0.8)
"""Shares of the room to try where only the recomputation inside a stage exceeds the budget. Untuned."""


@dataclass(slots=True)
class CrowdedStages(Engine):
    """Solves one model after the other, each with one more crowded stage.

    Attributes:
        cuts: The stages of the next model, ascending; empty when there is nothing left to try.
        room: Bytes to use at them.
        shares: Remaining shares of the room, for when only recomputation inside a stage exceeds the budget.
    """

    uses_solver: ClassVar[bool] = True

    cuts: list[int] = field(default_factory=list)
    room: int = 0
    shares: Iterator[float] = field(default_factory=lambda: iter(_SHARES))

    def __post_init__(self) -> None:
        """Start with the stage of the no-remat peak."""
        profile = no_remat_profile(self.incumbent.graph)
        self.cuts = [profile.index(max(profile))]
        self.room = self.incumbent.budget_bytes - self.incumbent.graph.fixed_memory

    def work(self) -> bool:
        """Solve until a schedule fits, or nothing is left to try."""
        incumbent = self.incumbent
        while not incumbent.over() and self.run(incumbent.context.control) is not None:
            pass
        return bool(self.cuts)

    def run(self, control: Control) -> tuple[int, ...] | None:
        """Solve once, offer the schedule, and choose the next stage; with the whole room, raise the bound too.

        Returns:
            The schedule, within the budget or not; None if there is none, the solver did not finish, or nothing is
            left to try.
        """
        incumbent, graph = self.incumbent, self.incumbent.graph
        if not self.cuts or len(self.cuts) > _MOST_CUTS or self._size() > _MOST_VARIABLES:
            return None
        incumbent.report("cutting")
        whole = incumbent.budget_bytes - graph.fixed_memory
        needed = max(working_set(graph, t) for t in self.cuts)
        if needed > self.room:
            if needed > whole:
                incumbent.raise_bound(Bound(math.inf, Scope.DOCUMENT_ORDER))
            self.cuts = []
            return None
        computes = self._solved(control, bounding=self.room == whole)
        if computes is None:
            return None
        incumbent.offer(computes)
        in_use = heights(graph, computes)
        worst, highest = _most_crowded(computes, in_use)
        if max(in_use) <= incumbent.budget_bytes:
            self.cuts = []
        elif highest > incumbent.budget_bytes and worst not in self.cuts:
            bisect.insort(self.cuts, worst)
        # The model does not see recomputation inside a stage; less room at the stages it does see leaves space for it.
        elif (share := next(self.shares, None)) is not None:
            self.room = round(share * whole)
        else:
            self.cuts = []
        return computes

    def _size(self) -> int:
        """Number of variables."""
        return sum(t + self.incumbent.graph.first_value[t] for t in self.cuts)

    def _solved(self, control: Control, *, bounding: bool) -> tuple[int, ...] | None:
        graph, context = self.incumbent.graph, self.incumbent.context
        stated = crowded.build(graph, self.cuts, self.room, context.control)
        outcome = context.solver.solve(context.request(stated.model, control, gap=CUTS_GAP))
        if bounding and outcome.termination is Termination.INFEASIBLE:
            outcome = confirmed(outcome, stated.model, self.incumbent)
        if bounding and outcome.termination is Termination.INFEASIBLE:
            self.incumbent.raise_bound(Bound(math.inf, Scope.DOCUMENT_ORDER))
        elif bounding and outcome.bound is not None:
            total = graph.total_cost + max(0.0, outcome.bound) * (graph.total_cost or 1.0)
            self.incumbent.raise_bound(Bound(safe_bound(graph, total), Scope.DOCUMENT_ORDER))
        if outcome.values is None or outcome.termination is not Termination.OPTIMAL:
            return None
        return stated.computes(outcome.values)


def _most_crowded(computes: Sequence[int], in_use: Sequence[int]) -> tuple[int, int]:
    """The node at whose first computation the most bytes are in use, and how many; the last such node on a tie."""
    first = dict(zip(reversed(computes), range(len(computes) - 1, -1, -1), strict=True))
    node = max(first, key=lambda k: (in_use[first[k]], first[k]))
    return node, in_use[first[node]]
