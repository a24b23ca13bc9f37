"""The best schedule of a search, and the bound that it runs towards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from remat_cli.control import Progress
from remat_cli.graph.model import Graph
from remat_cli.plan.derive import peak, prune
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Context, Found, Schedule
from remat_cli.strategies.bounds import Bound


@dataclass(slots=True)
class Best:
    """Keeps the cheapest schedule within the budget, publishes improvements, and knows when to stop.

    Attributes:
        graph: The graph.
        budget_bytes: Fixed memory included.
        context: Gets every improvement.
        bound: The best lower bound so far.
        computes: The cheapest schedule; None if there is none.
        cost: Its cost.
        lowest: The schedule with the smallest peak that came up, within the budget or not.
        lowest_peak: Its peak in bytes.
    """

    graph: Graph
    budget_bytes: int
    context: Context
    bound: Bound
    computes: tuple[int, ...] | None = None
    cost: float = math.inf
    lowest: tuple[int, ...] | None = None
    lowest_peak: int | None = None

    def offer(self, computes: Sequence[int]) -> bool:
        """Look at a schedule; whether it is the best so far."""
        sequence = prune(self.graph, computes)
        height = peak(self.graph, sequence)
        if self.lowest_peak is None or height < self.lowest_peak:
            self.lowest, self.lowest_peak = sequence, height
        if height > self.budget_bytes:
            return False
        cost = math.fsum(self.graph.nodes[k].cost for k in sequence)
        if cost >= self.cost:
            return False
        self.computes, self.cost = sequence, cost
        self.context.publish(self.found(exhausted=False))
        return True

    def raise_bound(self, bound: Bound) -> None:
        """Take a bound if it is better."""
        if bound.cost > self.bound.cost:
            self.bound = bound

    def proven(self) -> bool:
        """Whether the best schedule is within the gap asked for."""
        return self.cost - self.bound.cost <= self.context.gap * self.cost if self.computes is not None else False

    def report(self, activity: str, nodes: int | None = None) -> None:
        """Tell the user where things stand."""
        cost = None if self.computes is None else self.cost
        self.context.control.report(Progress(activity, cost, self.bound.cost, nodes))

    def found(self, *, exhausted: bool) -> Found:
        """The best schedule as an answer; there must be one."""
        assert self.computes is not None
        scope: Scope = self.bound.scope
        return Found(Schedule(self.computes), self.bound.cost, scope, exhausted=exhausted, used_solver=True)
