"""A quick local search around the incumbent: annealing at a temperature of almost zero."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.plan.liveness import cost_of
from remat_cli.plan.matrices import straightened
from remat_cli.strategies.engine import Engine, engine_at
from remat_cli.strategies.openers.prices import Prices

PRICES = f"{Prices.__module__}:{Prices.__name__}"
"""The engine whose schedule is polished besides the incumbent."""
_MOVES = 10
"""Moves for each step of the schedule. Untuned."""
_WORK = 60_000_000
"""Most moves times steps of the schedule: a few seconds. Untuned."""
_COLD = 1e-6
"""The temperature, relative to the overhead: moves that raise the cost are refused."""
_PRICE = 3.0
"""The first price of a room of excess during one step, relative to the overhead. Untuned."""


@dataclass(slots=True)
class Polish(Engine):
    """Removes recomputations that are not needed and takes every other move that makes the incumbent cheaper."""

    def work(self) -> bool:
        """One pass over the incumbent, and one over what prices led to: the more expensive one may end cheaper."""
        incumbent = self.incumbent
        prices = engine_at(PRICES, incumbent)
        assert isinstance(prices, Prices)
        incumbent.report("polishing")
        for computes in dict.fromkeys((prices.cheapest, incumbent.computes)):
            if computes is not None and not incumbent.over():
                self._polish(computes)
        return False

    def _polish(self, computes: tuple[int, ...]) -> None:
        """Offer what one pass over a schedule within the budget makes of it."""
        from remat_cli.strategies.annealing.walk import Problem, Walk  # numba takes 0.3 s to import

        incumbent, graph = self.incumbent, self.incumbent.graph
        base, length = graph.total_cost or 1.0, len(computes)
        overhead = max(cost_of(graph, computes) / base - 1, 1e-6)
        problem = Problem.of(graph, incumbent.budget_bytes - graph.fixed_memory)
        walk = Walk.of(problem, computes, incumbent.context.seed, _PRICE * overhead)
        walk.advance(min(_MOVES * length, _WORK // length), _COLD * overhead, _COLD * overhead)
        if walk.best is not None:
            incumbent.offer(walk.best)
            incumbent.offer(straightened(graph, walk.best))
