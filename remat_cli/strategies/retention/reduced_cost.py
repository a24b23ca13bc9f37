"""Fixes variables by reduced costs: what every schedule below a cost ceiling recomputes, and what none does.

Models that find or exclude these schedules become small.

By the prices of :class:`remat_cli.milp.cover_bound.Prices` a schedule costs at least C0 + base + the price of every
node that it recomputes + the penalty of every node that it does not + the cost of every computation beyond the second
of a node.
Let the slack be the ceiling minus (C0 + base). Below the ceiling a node is never recomputed if its price exceeds the
slack; it is recomputed if its penalty does; and it is computed at most twice if its price and cost together do. This is
reduced-cost fixing. The same holds of every solution of the retention model, with or without in-stage rows, because its
solutions meet the cover rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from remat_cli.graph.model import Graph, closed
from remat_cli.milp.cover_bound import Prices, dense_terms
from remat_cli.milp.retention import RetentionModel
from remat_cli.milp.support import Support, affordable, common
from remat_cli.mip import LinearModel, Row
from remat_cli.strategies.bounds import recompute_prices
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.tolerances import CUTOFF_MARGIN, SUM_ROUNDING

# Halving and doubling all of these together changes the gap by less than its noise (benchmark ``ablation``).
_MOST_NODES = 1_500
"""Nodes of the largest graph to price; the search for a support takes one or two seconds there."""
_MOST_TERMS = 400_000
"""Terms of the largest plain cover bound to price."""
_PRICES_S = 5.0
"""Most seconds for prices."""
_PART_OF_GAP = 0.9
"""Part of the gap by which the ceiling is lower than the incumbent; the rest is for rounding."""
_WORTH = 0.7
"""A ceiling below the incumbent is used if its slack is below this share of the incumbent's."""


@dataclass(frozen=True, slots=True)
class Cheaper:
    """The schedules that cost at most ``ceiling``.

    Attributes:
        graph: The graph with its closing node.
        base: C0.
        ceiling: In the graph's cost unit; infinite for all schedules.
        prices: Lower bounds on what they pay.
    """

    graph: Graph
    base: float
    ceiling: float
    prices: Prices

    @classmethod
    def than_best(cls, incumbent: Incumbent) -> Cheaper:
        """The schedules cheaper than the incumbent."""
        graph = closed(incumbent.graph)
        large = len(incumbent.graph.nodes) > _MOST_NODES or dense_terms(incumbent.graph) > _MOST_TERMS
        if math.isinf(incumbent.cost) or large:
            prices = Prices(0.0, tuple(node.cost for node in graph.nodes), (0.0,) * len(graph.nodes))
        else:
            if incumbent.prices is None:
                time_limit_s = incumbent.seconds(_PRICES_S, 0.1)
                incumbent.prices = recompute_prices(
                    graph, incumbent.budget_bytes, incumbent.context, time_limit_s=time_limit_s
                )
            prices = incumbent.prices
        return cls(graph, incumbent.graph.total_cost, incumbent.cost, prices)

    @classmethod
    def than_needed(cls, incumbent: Incumbent) -> Cheaper:
        """The schedules so cheap that, if there are none, the incumbent is optimal within the requested gap.

        The schedules cheaper than the incumbent if that gives a support of about the same size, because then a solver
        can start from the incumbent.
        """
        than_best = cls.than_best(incumbent)
        ceiling = incumbent.cost * (1 - _PART_OF_GAP * incumbent.context.gap)
        needed = cls(than_best.graph, than_best.base, ceiling, than_best.prices)
        return needed if needed.slack < _WORTH * than_best.slack else than_best

    @property
    def slack(self) -> float:
        """The ceiling minus what every schedule must pay."""
        return self.ceiling - self.base - self.prices.base + SUM_ROUNDING * self.base

    def affordable(self) -> Support:
        """Every stage, for every node that they may recompute, by costs and by prices."""
        costs = [node.cost for node in self.graph.nodes]
        by_cost = affordable(costs, self.ceiling - self.base + SUM_ROUNDING * self.base, self.graph)
        if math.isinf(self.ceiling):
            return by_cost
        return common(by_cost, affordable(self.prices.of_node, self.slack, self.graph))

    def rows(self, stated: RetentionModel, model: LinearModel) -> list[Row]:
        """Rows of a retention model that exclude more expensive ones: the ceiling itself, and counts of nodes."""
        if math.isinf(self.ceiling):
            return []
        rows: list[Row] = []
        priced = np.flatnonzero(model.cost)
        most = (self.ceiling + CUTOFF_MARGIN * self.base) / stated.cost_scale - model.offset
        rows.append(Row(priced.tolist(), model.cost[priced].tolist(), -math.inf, most))
        # Counts are stated only where the prices decide them: every other count would be a row that cuts nothing off.
        for i, stages in enumerate(stated.support):
            least = 1.0 if self.prices.of_omission[i] > self.slack else -math.inf
            once = self.prices.of_node[i] + self.graph.nodes[i].cost > self.slack
            columns = [stated.R[t, i] for t in stages]
            if columns and (once or least > 0):
                rows.append(Row(columns, [1.0] * len(columns), least, 1.0 if once else math.inf))
        return rows
