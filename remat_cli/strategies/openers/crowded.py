"""Schedules and bounds from what to keep across the stages that need the most memory (see ``milp/crowded``).

Begin with one cut, at the no-remat peak. Where the schedule that comes of it is over the budget, cut there too, and so
on: each round raises the bound, and where the schedule fits it is as cheap as the bound. Training steps often fit after
a cut or two.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_profile, working_set
from remat_cli.graph.model import Graph
from remat_cli.milp import crowded
from remat_cli.plan.derive import peak
from remat_cli.plan.model import Scope
from remat_cli.solvers.base import Termination
from remat_cli.strategies.base import Bound
from remat_cli.strategies.bounds import safe_bound
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.tolerances import CUTS_GAP

_MOST_CUTS = 16
_MOST_VARIABLES = 60_000
_SHARES = (0.97, 0.93, 0.88, 0.8)
"""Shares of the room that are used where only what is computed again inside a stage is over the budget."""
_CUTS_S, _CUTS_WITHOUT_LIMIT_S = 20.0, 3.0
"""Time at most, with a time limit and without one."""
_LEAST_S = 5.0
"""With less time than this left it is not worth starting."""


def offer_cuts(best: Incumbent, cutting: Cutting | None = None, *, most_s: float = math.inf) -> None:
    """Offer the schedules that come of cuts, and the bounds.

    Args:
        best: Gets them.
        cutting: To go on with; else it begins.
        most_s: Seconds at most.
    """
    remaining = best.context.control.remaining_s()
    if best.tight() or (remaining is not None and remaining < _LEAST_S):
        return
    control = best.step(min(most_s, _CUTS_WITHOUT_LIMIT_S if remaining is None else _CUTS_S), 0.1)
    cutting = cutting or Cutting.of(best)
    while not best.over() and not control.stopping() and cutting.run(control) is not None:
        pass


@dataclass(slots=True)
class Cutting:
    """Solves for one set of cuts after the other.

    Attributes:
        best: Gets schedules and bounds.
        cuts: The stages to cut at next, ascending; empty when there is nothing left to try.
        room: Bytes to use at the cuts.
        shares: Of the room, for when only what is computed again inside a stage is over the budget.
    """

    best: Incumbent
    cuts: list[int]
    room: int
    shares: Iterator[float]

    @classmethod
    def of(cls, best: Incumbent) -> Cutting:
        """Begin at the no-remat peak."""
        profile = no_remat_profile(best.graph)
        return cls(best, [profile.index(max(profile))], best.budget_bytes - best.graph.fixed_memory, iter(_SHARES))

    def run(self, control: Control) -> tuple[int, ...] | None:
        """Solve once, offer the schedule, and choose where to cut next; with the whole room the bound counts too.

        Returns:
            The schedule, within the budget or not; None if there is none, the solver did not get to the end, or there
            is nothing left to try.
        """
        best, graph = self.best, self.best.graph
        if not self.cuts or len(self.cuts) > _MOST_CUTS or self._size() > _MOST_VARIABLES:
            return None
        best.report("cutting")
        whole = best.budget_bytes - graph.fixed_memory
        needed = max(working_set(graph, t) for t in self.cuts)
        if needed > self.room:
            if needed > whole:
                best.raise_bound(Bound(math.inf, Scope.DOCUMENT_ORDER))
            self.cuts = []
            return None
        computes = self._solved(control, bounding=self.room == whole)
        if computes is None:
            return None
        best.offer(computes)
        worst = _most_crowded(graph, computes, whole)
        if peak(graph, computes) <= best.budget_bytes:
            self.cuts = []
        elif worst is not None and worst not in self.cuts:
            bisect.insort(self.cuts, worst)
        elif (share := next(self.shares, None)) is not None:
            self.room = round(share * whole)
        else:
            self.cuts = []
        return computes

    def _size(self) -> int:
        """Number of variables."""
        return sum(t + self.best.graph.first_value[t] for t in self.cuts)

    def _solved(self, control: Control, *, bounding: bool) -> tuple[int, ...] | None:
        graph, context = self.best.graph, self.best.context
        stated = crowded.build(graph, self.cuts, self.room, context.control)
        outcome = context.solver.solve(context.request(stated.model, control, gap=CUTS_GAP))
        if bounding and outcome.termination is Termination.INFEASIBLE:
            self.best.raise_bound(Bound(math.inf, Scope.DOCUMENT_ORDER))
        elif bounding and outcome.bound is not None:
            total = graph.total_cost + max(0.0, outcome.bound) * (graph.total_cost or 1.0)
            self.best.raise_bound(Bound(safe_bound(graph, total), Scope.DOCUMENT_ORDER))
        if outcome.values is None or outcome.termination is not Termination.OPTIMAL:
            return None
        return stated.computes(outcome.values)


def _most_crowded(graph: Graph, computes: Sequence[int], room: int) -> int | None:
    """The node at whose first computation most memory is in use; None if all of these are within the room."""
    live = set(graph.outputs)
    level = sum(graph.size[v] for v in live)
    first = dict(zip(reversed(computes), range(len(computes) - 1, -1, -1), strict=True))
    worst, highest = None, room
    for position in range(len(computes) - 1, -1, -1):
        k = computes[position]
        node = graph.nodes[k]
        made = set(graph.values_of(k))
        level -= sum(graph.size[v] for v in made & live)
        live -= made
        level += sum(graph.size[v] for v in {*node.inputs} - live)
        live.update(node.inputs)
        height = level + sum(node.outputs) + node.workspace
        if first[k] == position and height > highest:
            worst, highest = k, height
    return worst
