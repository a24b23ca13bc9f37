"""The best schedule of a search, and the bounds that it runs towards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remat_cli.control import Control, Progress
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.plan.derive import peak, prune
from remat_cli.plan.matrices import is_frontier_advancing
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Bound, Context, Found, NotFound, Schedule, Task
from remat_cli.strategies.bounds import shortened, telling

if TYPE_CHECKING:  # half a second of Pyomo, which keep-all can do without
    from remat_cli.milp.cover_bound import Prices

_SETTLED = 1.05e-6
"""A bound from a solver is lowered by 1e-6 for its tolerance: a schedule this close to it is one that meets it."""
_NONE_LEFT_S = 2.0
"""With less time than this left no further step is worth starting."""


@dataclass(slots=True)
class Incumbent:
    """Keeps the cheapest schedule within the budget, publishes improvements, and knows when to stop.

    Attributes:
        graph: The graph.
        budget_bytes: Fixed memory included.
        context: Gets every improvement.
        bounds: Lower bounds so far, the best of each scope.
        wide: Whether the search goes on where only no frontier-advancing schedule can be cheaper.
        computes: The cheapest schedule; None if there is none.
        cost: Its cost.
        advancing: The cheapest frontier-advancing schedule within the budget, which models can start from.
        advancing_cost: Its cost.
        lowest: The schedule with the smallest peak that came up, within the budget or not.
        lowest_peak: Its peak in bytes.
        prices: What recomputation costs beyond what every schedule must pay, once that was worked out.
    """

    graph: Graph
    budget_bytes: int
    context: Context
    bounds: dict[Scope, Bound]
    wide: bool = False
    computes: tuple[int, ...] | None = None
    cost: float = math.inf
    advancing: tuple[int, ...] | None = None
    advancing_cost: float = math.inf
    lowest: tuple[int, ...] | None = None
    lowest_peak: int | None = None
    prices: Prices | None = None

    @classmethod
    def of(cls, task: Task, context: Context, *, wide: bool = False) -> Incumbent:
        """Nothing but what is known of ``task``; without a budget the no-remat peak is the budget."""
        graph = task.graph
        budget = no_remat_peak(graph) if task.budget_bytes is None else task.budget_bytes
        best = cls(graph, budget, context, {Scope.ANY_ORDER: Bound(graph.total_cost, Scope.ANY_ORDER)}, wide)
        best.offer(range(len(graph.nodes)))
        if task.known is not None:
            for bound in task.known.bounds:
                best.raise_bound(bound)
            for schedule in task.known.schedules:
                best.offer(schedule.computes)
        return best

    def offer(self, computes: Sequence[int]) -> bool:
        """Look at a schedule; whether it is the best so far. One that computes again what must not be is none."""
        sequence = prune(self.graph, computes)
        if self._repeats(sequence):
            return False
        height = peak(self.graph, sequence)
        if self.lowest_peak is None or height < self.lowest_peak:
            self.lowest, self.lowest_peak = sequence, height
        if height > self.budget_bytes:
            return False
        cost = math.fsum(self.graph.nodes[k].cost for k in sequence)
        if cost < self.advancing_cost and is_frontier_advancing(self.graph, sequence):
            self.advancing, self.advancing_cost = sequence, cost
        if cost >= self.cost:
            return False
        self.computes, self.cost = sequence, cost
        self.context.publish(self.found(exhausted=False))
        return True

    def _repeats(self, sequence: Sequence[int]) -> bool:
        """Whether a node is computed again that may be computed only once."""
        seen: set[int] = set()
        for k in sequence:
            if k in seen and not self.graph.nodes[k].recompute:
                return True
            seen.add(k)
        return False

    def raise_bound(self, bound: Bound) -> None:
        """Take a bound if it is better than the one of its scope, and hand it over with the schedule there is."""
        if bound.scope not in self.bounds or bound.cost > self.bounds[bound.scope].cost:
            self.bounds[bound.scope] = bound
            if self.computes is not None:
                self.context.publish(self.found(exhausted=False))

    @property
    def bound(self) -> Bound:
        """The bound that says most about the best schedule, or the highest one while there is none."""
        return telling(self.graph, self.bounds.values(), self.cost)

    def proven(self) -> bool:
        """Whether the best schedule is within the gap asked for."""
        return self._within(self._goal.cost)

    def proven_in_class(self) -> bool:
        """Whether only what no bound speaks of may be cheaper, or fit at all."""
        if self.computes is None:
            return any(math.isinf(bound.cost) for bound in self.bounds.values())
        return self._within(self.bound.cost)

    def _within(self, bound: float) -> bool:
        return self.computes is not None and self.cost - bound <= self.context.gap * self.cost

    @property
    def _goal(self) -> Bound:
        """The bound at which to stop."""
        return telling(self.graph, self._reached(), self.cost)

    def _reached(self) -> list[Bound]:
        """The bounds that hold for all that is searched."""
        return [b for b in self.bounds.values() if not self.wide or b.scope.contains(Scope.DOCUMENT_ORDER)]

    def report(self, activity: str, nodes: int | None = None) -> None:
        """Tell the user where things stand."""
        cost = None if self.computes is None else self.cost
        self.context.control.report(Progress(activity, cost, self.bound.cost, nodes))

    def tight(self) -> bool:
        """Whether nothing is left to gain."""
        return self.cost <= self._goal.cost * (1 + 1e-9)

    def settled(self) -> bool:
        """Whether the best schedule meets a bound, as far as a solver can tell."""
        near = min(_SETTLED, self.context.gap) * self.cost
        return self.cost - self.bound.cost <= near if self.computes is not None else False

    def over(self) -> bool:
        """Whether to stop: proven, also that nothing fits; interrupted; or out of time."""
        return self.proven() or self.hopeless() or self.context.control.stopping()

    def hopeless(self) -> bool:
        """Whether it is proven that no schedule fits."""
        return self.computes is None and any(math.isinf(bound.cost) for bound in self._reached())

    def exhausted(self) -> bool:
        """Whether a search that ends now ends by itself, rather than for want of time."""
        remaining = self.context.control.remaining_s()
        return self.proven() or not (
            self.context.control.stopping() or (remaining is not None and remaining < _NONE_LEFT_S)
        )

    def seconds(self, most: float, share: float) -> float:
        """Time for a step: at most ``most`` seconds, and at most ``share`` of what is left."""
        remaining = self.context.control.remaining_s()
        return most if remaining is None else min(most, share * remaining)

    def step(self, most: float, share: float) -> Control:
        """The clock for such a step."""
        return shortened(self.context.control, self.seconds(most, share))

    def not_found(self, reason: str, scope: Scope | None = None) -> NotFound:
        """The answer when there is no schedule."""
        lowest = None if self.lowest is None else Schedule(self.lowest)
        return NotFound(reason, scope, lowest, bounds=tuple(self.bounds.values()))

    def found(self, *, exhausted: bool) -> Found:
        """The best schedule as an answer; there must be one."""
        assert self.computes is not None
        bounds = tuple(self.bounds.values())
        return Found(Schedule(self.computes), bounds, exhausted=exhausted, used_solver=True)
