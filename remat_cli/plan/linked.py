"""Comparisons of one graph for several links to a host."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.plan.comparison import Comparison
from remat_cli.plan.host import Host
from remat_cli.short_repr import ShortRepr


@dataclass(frozen=True, slots=True, repr=False)
class Linked(ShortRepr):
    """A comparison for each link, all with the same strategies and budgets.

    Attributes:
        links: Names and hosts, in the order in which they were asked for; those that were reached.
        comparisons: One for each link.
        interrupted: Whether links or cells are missing because it was stopped.
    """

    links: tuple[tuple[str, Host], ...]
    comparisons: tuple[Comparison, ...]
    interrupted: bool = False

    def _facts(self) -> dict[str, str]:
        return {"graph": self.comparisons[0].graph.name, "links": ", ".join(name for name, _ in self.links)}

    @property
    def has_plan(self) -> bool:
        """Whether any strategy has a plan at any budget with any link."""
        return any(row.cost is not None for one in self.comparisons for row in one.rows)
