"""Bounds for every schedule in document order, by the retention model without in-stage rows over an event support."""

from __future__ import annotations

import math
from dataclasses import dataclass

from remat_cli.control import Control
from remat_cli.milp.checkmate import closed
from remat_cli.milp.compile import append_block
from remat_cli.milp.decode import overfull
from remat_cli.milp.events import affordable, event_support
from remat_cli.milp.retention import Support
from remat_cli.milp.standing import StandingRows
from remat_cli.mip import Floats, LinearModel
from remat_cli.plan.model import Scope
from remat_cli.solvers.base import Outcome, Request, Termination
from remat_cli.strategies._best import Best
from remat_cli.strategies._retention import Retention
from remat_cli.strategies.base import Bound
from remat_cli.strategies.bounds import recompute_prices, safe_bound

_PRICES_S = 5.0
_MOST_NODES = 1_500
"""Graphs up to this size get a proof; the search for a support takes a second or two there."""
PROVABLE = 120
"""Up to this many nodes a proof may look inside stages."""
_NEIGHBOURS = 2
_VIOLATION = 1e-6
_MARGIN = 1e-9
"""Share of C0 that summing up in floating point may get wrong, at most."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A support that every schedule cheaper than the best one can be brought to (see ``milp/events``).

    Attributes:
        best: Gets the bound, and schedules that come up.
        support: For the graph with its closing node.
        ceiling: Cost of the best schedule when the support was chosen: the bound holds up to there.
    """

    best: Best
    support: Support
    ceiling: float

    @classmethod
    def within(cls, best: Best, most_pairs: int) -> Proof | None:
        """Choose the support, of what costs less than the best schedule, reckoned in two ways; None if it is too large.

        Args:
            best: With the best schedule so far.
            most_pairs: Most (stage, node) pairs that a support may have.
        """
        if len(best.graph.nodes) > _MOST_NODES:
            return None
        graph = closed(best.graph)
        ceiling, base = best.cost, best.graph.total_cost
        margin = _MARGIN * base
        costs = [node.cost for node in graph.nodes]
        support = event_support(graph, costs, ceiling - base + margin)
        if math.isfinite(ceiling):
            prices = recompute_prices(graph, best.budget_bytes, best.context, time_limit_s=best.seconds(_PRICES_S, 0.1))
            other = event_support(graph, prices.of_node, ceiling - base - prices.base + margin)
            support = tuple(tuple(sorted({*a} & {*b})) for a, b in zip(support, other, strict=True))
        return cls(best, support, ceiling) if sum(len(stages) for stages in support) <= most_pairs else None

    def run(self, most_s: float, share: float) -> None:
        """Solve for at most ``most_s`` seconds and ``share`` of what is left; what is proven by then counts."""
        best = self.best
        model = Retention.over(best, None, support=self.support)
        outcome = model.solve(best.step(most_s, share), rounds=1)
        bound = proven_cost(model, outcome)
        if bound is not None:
            best.raise_bound(Bound(min(bound, self.ceiling), Scope.DOCUMENT_ORDER))


@dataclass(slots=True)
class InStageProof:
    """The model over the full support with rows for what stands through a stage (see ``milp/standing``).

    Attributes:
        best: Gets the bound, and schedules that come up.
        model: The model; its own in-stage rows, which need an order, are never stated.
        rows: The rows so far.
        ceiling: Cost of the best schedule when it was stated; nodes that cost more are left out.
    """

    best: Best
    model: Retention
    rows: StandingRows
    ceiling: float

    @classmethod
    def of(cls, best: Best) -> InStageProof:
        """State the model without rows."""
        graph = closed(best.graph)
        most = best.cost - best.graph.total_cost + _MARGIN * best.graph.total_cost
        model = Retention.over(best, None, support=affordable([node.cost for node in graph.nodes], most, graph))
        return cls(best, model, StandingRows(model.stated), best.cost)

    def run(self, control: Control) -> None:
        """Solve, state the rows that the answer violates, and so on; every answer's bound counts."""
        best, context = self.best, self.best.context
        while not best.over() and not control.stopping():
            best.report("proving")
            model = self.model.compiled.model
            start = self._start(model) if context.solver.warm_start else None
            outcome = context.solver.solve(
                Request(model, control, context.gap / 4, context.threads, context.seed, start)
            )
            bound = proven_cost(self.model, outcome)
            if bound is not None:
                best.raise_bound(Bound(min(bound, self.ceiling), Scope.DOCUMENT_ORDER))
            if outcome.values is None or not self._refine(outcome.values):
                return

    def _refine(self, values: Floats) -> bool:
        """Offer a solution and state rows for what is over the budget in it; whether there were any."""
        decoder = self.model.decoder
        chosen = decoder.chosen(values)
        self.best.offer(decoder.computes(chosen))
        near = range(-_NEIGHBOURS, _NEIGHBOURS + 1)
        block = self.rows.block((t + d, k) for t, k in overfull(self.model.stated, chosen) for d in near)
        if block is None:
            return False
        self.model.compiled = append_block(self.model.compiled, block)
        return True

    def _start(self, model: LinearModel) -> Floats | None:
        """The best schedule as a solution."""
        if self.best.computes is None or (values := self.model.columns_of(self.best.computes)) is None:
            return None
        columns = self.model.compiled.column_of
        for level in self.rows.levels:
            kept = 1.0 if level.kept is None else values[columns[id(level.kept)]]
            values[columns[id(level.variable)]] = max(0.0, kept - values[columns[id(level.again)]])
        return values if model.violation(values) <= _VIOLATION else None


def proven_cost(model: Retention, outcome: Outcome | None) -> float | None:
    """The bound of ``outcome`` in the graph's cost unit, infinite if nothing fits; None if there is none."""
    if outcome is None:
        return None
    if outcome.termination is Termination.INFEASIBLE:
        return math.inf
    return None if outcome.bound is None else safe_bound(model.best.graph, outcome.bound * model.stated.cost_scale)
