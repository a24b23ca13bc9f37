"""A search that starts from an old plan of the same graph."""

from __future__ import annotations

from dataclasses import dataclass, replace

from remat_cli.errors import StrategyMismatch, UsageError
from remat_cli.graph.model import Graph
from remat_cli.graph.reader import plain_number
from remat_cli.plan.check import check, graphs_differ
from remat_cli.plan.liveness import priced
from remat_cli.plan.model import Compute, Plan
from remat_cli.strategies.base import Found, Schedule, Strategy
from remat_cli.strategies.engine import Pipelined
from remat_cli.strategies.registry import strategy_from_spec


@dataclass(frozen=True, slots=True)
class Start:
    """The schedule of an old plan.

    Attributes:
        found: The schedule, credited to the strategy that made it. The old plan's bounds are not trusted.
        cost: Its cost.
        peak_bytes: Its peak, fixed memory included.
    """

    found: Found
    cost: float
    peak_bytes: int

    @classmethod
    def of(cls, plan: Plan, graph: Graph, strategy: Strategy, *, reorder: bool) -> Start:
        """The start that ``plan`` gives to a search for a plan of ``graph``.

        Args:
            plan: The old plan, for any budget.
            graph: The graph.
            strategy: The strategy that searches.
            reorder: Whether nodes may run in another order than the document's.

        Raises:
            UsageError: If the plan is for another graph, or does not replay, or runs its nodes in another order.
            StrategyMismatch: If the strategy makes plans of its own, and starts from none.
        """
        if not isinstance(strategy, Pipelined):
            hint = "leave --start out, or take one that searches, such as auto"
            raise StrategyMismatch(f"{strategy.name} does not start from a plan", hint=hint)
        other = graphs_differ(plan.graph, graph)
        if other is not None:
            raise UsageError(
                f"the plan to start from is for a different graph: {other}", hint="start from a plan of this graph"
            )
        report = check(plan)
        if not report.valid:
            worst = next(f for f in report.findings if f.severity == "error")
            raise UsageError(f"the plan to start from is invalid: {worst.message}", hint="see remat check")
        schedule = priced(graph, [s.node for s in plan.statements if isinstance(s, Compute)])
        firsts = list(dict.fromkeys(schedule.computes))
        if firsts != sorted(firsts) and not reorder:
            raise UsageError("the plan to start from runs the nodes in another order", hint="add --reorder")
        found = Found(Schedule(schedule.computes), exhausted=False, maker=_known_maker(plan.strategy))
        return cls(found, schedule.cost, schedule.peak_bytes)

    def document(self) -> dict[str, float]:
        """The start as a plan's provenance records it."""
        return {"cost": plain_number(self.cost), "peak_memory": self.peak_bytes}

    def credited(self, found: Found) -> Found:
        """``found``, credited to the maker of the old plan if it is that plan's schedule."""
        same = found.schedule.computes == self.found.schedule.computes
        return replace(found, maker=self.found.maker) if same else found


def _known_maker(text: str) -> str:
    """A strategy as a plan names it; empty if there is no such strategy here."""
    try:
        strategy_from_spec(text)
    except UsageError:
        return ""
    return text
