"""What all schedules below a ceiling have in common, which makes models that look for them, or exclude them, small.

By the prices of :class:`remat_cli.milp.cover_bound.Prices` a schedule costs at least C0 + base + the price of every
node that it computes again + the penalty of every node that it does not + the cost of every computation beyond the
second of a node.
So below a ceiling a node whose price is more than what the ceiling leaves above C0 + base is never computed again, one
whose penalty is more is computed again, and one with price and cost above it is computed twice at most. The same holds
of every solution of the retention model, with or without rows inside stages, since its solutions meet the cover rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from remat_cli.graph.closing import closed
from remat_cli.graph.model import Graph
from remat_cli.milp.compile import Compiled
from remat_cli.milp.cover_bound import Prices
from remat_cli.milp.cover_running import dense_terms
from remat_cli.milp.event_support import affordable, common, event_support
from remat_cli.milp.retention import RetentionModel, Support
from remat_cli.mip import Row
from remat_cli.strategies.bounds import recompute_prices
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.tolerances import CUTOFF_MARGIN, SUM_ROUNDING

MOST_NODES = 1_500
"""Graphs up to this size are priced; the search for a support takes a second or two there."""
_MOST_TERMS = 400_000
"""Terms of the plain cover bound up to which there are prices."""
_PRICES_S = 5.0
_PART_OF_GAP = 0.9
_WORTH = 0.7
"""A ceiling below the best schedule's cost is worth it if it leaves at most so much of the room above the base."""


@dataclass(frozen=True, slots=True)
class Cheaper:
    """Schedules that cost ``ceiling`` at most.

    Attributes:
        graph: With its closing node.
        base: C0.
        ceiling: In the graph's cost unit; infinite for all schedules.
        prices: What they must pay.
    """

    graph: Graph
    base: float
    ceiling: float
    prices: Prices

    @classmethod
    def than_best(cls, incumbent: Incumbent) -> Cheaper:
        """Schedules cheaper than the best one."""
        graph = closed(incumbent.graph)
        large = len(incumbent.graph.nodes) > MOST_NODES or dense_terms(incumbent.graph) > _MOST_TERMS
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
        """Schedules so cheap that the best one is proven, within the gap asked for, if there are none.

        Those cheaper than the best one where that leaves hardly more of them: then a solver can start from that.
        """
        than_best = cls.than_best(incumbent)
        ceiling = incumbent.cost * (1 - _PART_OF_GAP * incumbent.context.gap)
        needed = cls(than_best.graph, than_best.base, ceiling, than_best.prices)
        return needed if needed.slack < _WORTH * than_best.slack else than_best

    @property
    def slack(self) -> float:
        """What the ceiling leaves above what every schedule must pay."""
        return self.ceiling - self.base - self.prices.base + SUM_ROUNDING * self.base

    def affordable(self) -> Support:
        """Every stage, for every node that they may compute again."""
        costs = [node.cost for node in self.graph.nodes]
        return self._both(lambda prices, most: affordable(prices, most, self.graph), costs)

    def events(self) -> Support:
        """The event support of the model without in-stage rows (see ``milp/event_support``)."""
        costs = [node.cost for node in self.graph.nodes]
        return self._both(lambda prices, most: event_support(self.graph, prices, most), costs)

    def _both(self, support: Callable[[Any, float], Support], costs: list[float]) -> Support:
        """``support`` by costs and by prices: a solution of the one kind is one of the other."""
        by_cost = support(costs, self.ceiling - self.base + SUM_ROUNDING * self.base)
        return common(by_cost, support(self.prices.of_node, self.slack)) if math.isfinite(self.ceiling) else by_cost

    def rows(self, stated: RetentionModel, compiled: Compiled) -> list[Row]:
        """Rows over a retention model that they meet, and few others do: the ceiling itself, and counts of nodes."""
        if math.isinf(self.ceiling):
            return []
        model = compiled.model
        rows: list[Row] = []
        priced = np.flatnonzero(model.cost)
        most = (self.ceiling + CUTOFF_MARGIN * self.base) / stated.cost_scale - model.offset
        rows.append(Row(priced.tolist(), model.cost[priced].tolist(), -math.inf, most))
        for i, stages in enumerate(stated.support):
            least = 1.0 if self.prices.of_omission[i] > self.slack else -math.inf
            once = self.prices.of_node[i] + self.graph.nodes[i].cost > self.slack
            columns = [int(compiled.column_of[stated.R[t, i]]) for t in stages]
            if columns and min(columns) >= 0 and (once or least > 0):
                rows.append(Row(columns, [1.0] * len(columns), least, 1.0 if once else math.inf))
        return rows
