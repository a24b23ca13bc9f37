"""Bounds for every schedule in document order, by the retention model without in-stage rows over an event support."""

from __future__ import annotations

import math
from dataclasses import dataclass

from remat_cli.milp.checkmate import closed
from remat_cli.milp.events import event_support
from remat_cli.milp.retention import Support
from remat_cli.plan.model import Scope
from remat_cli.solvers.base import Outcome, Termination
from remat_cli.strategies._best import Best
from remat_cli.strategies._retention import Retention
from remat_cli.strategies.base import Bound
from remat_cli.strategies.bounds import recompute_prices, safe_bound

_PRICES_S = 5.0
_MOST_NODES = 1_500
"""Graphs up to this size get a proof; the search for a support takes a second or two there."""
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


def proven_cost(model: Retention, outcome: Outcome | None) -> float | None:
    """The bound of ``outcome`` in the graph's cost unit, infinite if nothing fits; None if there is none."""
    if outcome is None:
        return None
    if outcome.termination is Termination.INFEASIBLE:
        return math.inf
    return None if outcome.bound is None else safe_bound(model.best.graph, outcome.bound * model.stated.cost_scale)
