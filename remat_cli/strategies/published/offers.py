"""The plans that a method comes up with, one after the other, and what comes of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from remat_cli.control import Progress
from remat_cli.plan.derive import peak, prune
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Bound, Context, Found, NotFound, Schedule, Task
from remat_cli.tolerances import ROUNDING


@dataclass(slots=True)
class Offers:
    """Keeps the cheapest schedule within the budget, and the one with the smallest peak.

    Unlike ``strategies/incumbent`` it starts from nothing, not even no-remat: what comes out is the method's own.

    Attributes:
        task: Graph and budget.
        context: Gets every improvement.
        name: Of the strategy.
        bounds: Lower bounds that the method came by; C0 is always among them.
        used_solver: Whether a MIP solver has a part in the schedules.
    """

    task: Task
    context: Context
    name: str
    bounds: list[Bound] = field(default_factory=list)
    used_solver: bool = False
    computes: tuple[int, ...] | None = None
    cost: float = math.inf
    maker: str = ""
    lowest: tuple[int, ...] | None = None
    lowest_peak: int | None = None
    seen: set[tuple[int, ...]] = field(default_factory=set)

    def __post_init__(self) -> None:
        """C0 bounds every schedule."""
        self.bounds.append(Bound(self.task.graph.total_cost, Scope.ANY_ORDER))

    def offer(self, computes: Sequence[int], maker: str = "") -> bool:
        """Look at a schedule; whether it is within the budget.

        Args:
            computes: The schedule; recomputations that serve nothing are dropped.
            maker: Text form of the strategy with the options that made it, where it chose them itself.
        """
        graph, budget = self.task.graph, self.task.budget_bytes
        sequence = prune(graph, computes)
        height = peak(graph, sequence)
        within = budget is None or height <= budget
        if sequence in self.seen:
            return within
        self.seen.add(sequence)
        if self.lowest_peak is None or height < self.lowest_peak:
            self.lowest, self.lowest_peak = sequence, height
        cost = math.fsum(graph.nodes[k].cost for k in sequence)
        if within and cost < self.cost:
            self.computes, self.cost, self.maker = sequence, cost, maker
            self.context.publish(self._found(exhausted=False))
            self.report()
        return within

    def report(self, activity: str = "") -> None:
        """Tell the user where things stand."""
        cost = None if self.computes is None else self.cost
        self.context.control.report(Progress(activity or self.name, cost, self.task.graph.total_cost))

    def tight(self) -> bool:
        """Whether no schedule can be cheaper than what there is."""
        return self.cost <= self.task.graph.total_cost * (1 + ROUNDING)

    def over(self) -> bool:
        """Whether to stop: nothing left to gain, interrupted, or out of time."""
        return self.tight() or self.context.control.stopping()

    def answer(self) -> Found | NotFound:
        """The cheapest schedule within the budget; else why there is none, with the smallest peak that came up.

        That none of its plans fits says nothing of others: such a refusal is of the method alone.
        """
        stopped = self.context.control.stopping()
        if self.computes is not None:
            return self._found(exhausted=self.tight() or not stopped)
        lowest = None if self.lowest is None else Schedule(self.lowest)
        if stopped:
            return NotFound(f"the limit came before {self.name} made a plan that fits", best=lowest)
        return NotFound(f"no plan that {self.name} makes fits", Scope.RESTRICTED, lowest)

    def _found(self, *, exhausted: bool) -> Found:
        assert self.computes is not None
        return Found(
            Schedule(self.computes),
            tuple(self.bounds),
            exhausted=exhausted,
            used_solver=self.used_solver,
            maker=self.maker,
        )
