"""Lower bounds on the time of every plan with copies, by the crossing MILP."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from remat_cli.control import Control
from remat_cli.graph.model import Graph
from remat_cli.milp.crossing import Crossing, build, windows
from remat_cli.mip import Floats, LinearModel
from remat_cli.plan.host import Host
from remat_cli.plan.liveness import heights
from remat_cli.plan.model import Copies, Scope
from remat_cli.solvers.base import Termination
from remat_cli.strategies.base import Bound, Context
from remat_cli.tolerances import BOUND_MARGIN, INNER_GAP

_ALL_CUTS = 40
"""Up to this many nodes every stage is a cut. Untuned."""
_MOST_CUTS = 24
_ROUNDS = 12
"""Most rounds of windows. Untuned."""


@dataclass(slots=True)
class Bounding:
    """The crossing model of a task, its strongest bound so far, and its last solution.

    Attributes:
        graph: The graph.
        stated: The model as stated.
        model: The model with the windows found so far.
        cost: The bound, in the graph's cost unit; C0 at least.
        values: The last solution, of the relaxation or of the model; None for none.
        impossible: Whether the model has no solution: no plan in document order fits.
    """

    graph: Graph
    stated: Crossing
    model: LinearModel
    cost: float
    values: Floats | None = field(default=None, repr=False)
    impossible: bool = False

    @classmethod
    def of(cls, graph: Graph, budget_bytes: int, host: Host) -> Bounding:
        """The model with cuts where memory is short without recomputation."""
        stated = build(graph, budget_bytes, host, cuts_for(graph, budget_bytes))
        return cls(graph, stated, stated.model(), graph.total_cost)

    @property
    def bound(self) -> Bound:
        """The bound, which holds for all schedules in document order with any copies."""
        return Bound(math.inf if self.impossible else self.cost, Scope.DOCUMENT_ORDER, Copies.ANY)

    def relax(self, context: Context, control: Control) -> None:
        """Solve the relaxation, with windows until none is violated."""
        for _ in range(_ROUNDS):
            if control.stopping() or not self._solve(self.model.relaxed(), context, control):
                return
            assert self.values is not None
            rows = windows(self.stated, self.values)
            if not rows:
                return
            self.model = self.model.with_rows(rows)

    def solve(self, context: Context, control: Control) -> None:
        """Solve the model itself, for its bound and for its solution."""
        if not control.stopping():
            self._solve(self.model, context, control)

    def _solve(self, model: LinearModel, context: Context, control: Control) -> bool:
        """Solve ``model`` and take its bound; whether there is a solution."""
        if context.write_model is not None:
            from remat_cli.solvers.modelfile import write_model

            write_model(self.model, context.write_model)
        outcome = context.solver.solve(context.request(model, control, gap=INNER_GAP))
        if outcome.termination is Termination.INFEASIBLE:
            self.impossible = True
            return False
        # The relaxation of a model bounds it only when it is solved; until then a solver states what it has proven.
        if outcome.bound is not None and math.isfinite(outcome.bound):
            base = self.graph.total_cost
            self.cost = max(self.cost, base * (1 + outcome.bound - BOUND_MARGIN))
        if outcome.values is None:
            return False
        self.values = outcome.values
        return True


def cuts_for(graph: Graph, budget_bytes: int) -> list[int] | None:
    """Stages for the cuts: those where memory is shortest without recomputation, spread over all where it is short."""
    n = len(graph.nodes)
    if n <= _ALL_CUTS:
        return None
    levels = heights(graph, range(n))
    short = [i for i in range(n - 1) if levels[i] > budget_bytes]
    if len(short) <= _MOST_CUTS:
        return short
    chosen = {short[round(k * (len(short) - 1) / (_MOST_CUTS - 4))] for k in range(_MOST_CUTS - 3)}
    chosen.add(max(short, key=lambda i: levels[i]))
    return sorted(chosen)
