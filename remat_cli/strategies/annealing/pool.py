"""The recomputations of recent schedules, for engines that combine them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from remat_cli.graph.model import Graph
from remat_cli.plan.matrices import matrices_of, straightened

_REMEMBERED = 50_000
"""Steps beyond which the oldest are forgotten: more than twice the most that a merge takes. Untuned."""


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
