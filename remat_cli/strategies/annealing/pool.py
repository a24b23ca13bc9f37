"""The recomputations of recent schedules, for engines that combine them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from remat_cli.graph.model import Graph
from remat_cli.plan.matrices import matrices_of, straightened

# Doubling all constants of this folder makes the gap much larger, halving them smaller (benchmark ``ablation``).
_MOST = 24
"""Proposals to remember. On `segnet`, `inception-v3` and `resnet50` 3 to 16 are not dominated."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A schedule that exceeds the budget.

    Attributes:
        computes: The schedule.
        cost: Its cost.
        excess: What it exceeds the budget by, summed over its steps and divided by the number of nodes, in rooms: the
            budget without fixed memory.
    """

    computes: tuple[int, ...]
    cost: float
    excess: float

    def dominates(self, other: Proposal) -> bool:
        """Whether ``other`` is neither cheaper nor nearer to the budget."""
        return self.cost <= other.cost and self.excess <= other.excess


@dataclass(slots=True)
class Proposals:
    """Those of which none dominates another.

    Attributes:
        front: The proposals, the cheapest first and the one nearest to the budget last.
        taken: How many were taken so far, those that gave way to others included.
    """

    front: list[Proposal] = field(default_factory=list)
    taken: int = 0

    def add(self, proposal: Proposal) -> None:
        """Take a proposal unless another dominates it; of too many, the most expensive gives way."""
        if any(other.dominates(proposal) for other in self.front):
            return
        left = [other for other in self.front if not proposal.dominates(other)]
        self.front = sorted([*left, proposal], key=lambda one: one.cost)[:_MOST]
        self.taken += proposal in self.front

    def below(self, cost: float) -> list[Proposal]:
        """Those cheaper than ``cost``."""
        return [proposal for proposal in self.front if proposal.cost < cost]


_REMEMBERED = 50_000
"""Steps beyond which the oldest are forgotten: more than twice the most that a merge takes."""


@dataclass(slots=True)
class Pool:
    """The recomputations of recent schedules.

    Attributes:
        graph: The graph.
        seen: (stage, node), the latest last.
    """

    graph: Graph
    seen: dict[tuple[int, int], None] = field(default_factory=dict)

    def add(self, computes: Sequence[int]) -> None:
        """Add a schedule in document order, within the budget or not."""
        for stage, node in sorted(matrices_of(self.graph, straightened(self.graph, computes)).computed):
            if stage != node:
                self.seen.pop((stage, node), None)
                self.seen[stage, node] = None
        while len(self.seen) > _REMEMBERED:
            del self.seen[next(iter(self.seen))]

    def latest(self, most: int) -> tuple[tuple[int, int], ...]:
        """At most ``most`` steps, the latest first."""
        return tuple(islice(reversed(self.seen), most))
