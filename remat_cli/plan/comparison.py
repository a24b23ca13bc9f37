"""A comparison as data: what became of every strategy at every budget on one graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from remat_cli.graph.model import Graph
from remat_cli.plan.model import Scope
from remat_cli.tolerances import SAME_COST

_WIDE = frozenset({Scope.ANY_ORDER.value, Scope.DOCUMENT_ORDER.value})
"""Scopes whose bounds hold for the plans of every strategy: all keep the order of the document."""


class Ended(StrEnum):
    """What became of a cell."""

    PLAN = "plan"
    """A plan within the budget, replayed."""
    NONE = "none"
    """The strategy has no plan that fits."""
    LIMIT = "limit"
    """The time limit came before any plan."""
    REFUSED = "refused"
    """The strategy does not take this graph, or what it needs is not installed."""
    FAILED = "failed"
    """Something broke: the strategy, its solver or its process."""
    INTERRUPTED = "interrupted"
    """It was stopped before there was an answer, or never started."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What is asked.

    Attributes:
        strategy: Strategy with options, in its shortest text form.
        budget_bytes: The budget, fixed memory included.
        budget: The budget as asked: ``60%``.
    """

    strategy: str
    budget_bytes: int
    budget: str


@dataclass(frozen=True, slots=True)
class Row:
    """What came out of a cell.

    Attributes:
        strategy: As in the cell.
        budget: As in the cell.
        budget_bytes: As in the cell.
        ended: What became of it.
        peak_bytes: Replayed peak, fixed memory included; None without a plan, as everything below but the message.
        cost: Replayed cost.
        overhead: Cost over that of no recomputation, as a share of the latter; None where that is 0.
        computes: Computations in the plan.
        lower_bound: What the strategy proved or took as a bound on the cost.
        scope: The schedules for which that bound holds.
        optimal: Whether the plan is claimed optimal in that scope.
        wall_s: Seconds it took.
        message: Why there is no plan, or how the search ended.
    """

    strategy: str
    budget: str
    budget_bytes: int
    ended: Ended
    peak_bytes: int | None = None
    cost: float | None = None
    overhead: float | None = None
    computes: int | None = None
    lower_bound: float | None = None
    scope: str | None = None
    optimal: bool = False
    wall_s: float = 0.0
    message: str = ""

    @classmethod
    def without_plan(cls, cell: Cell, ended: Ended, message: str, wall_s: float = 0.0) -> Row:
        """The row of a cell that has no plan."""
        return cls(cell.strategy, cell.budget, cell.budget_bytes, ended, message=message, wall_s=round(wall_s, 3))

    def document(self) -> dict[str, Any]:
        """The row as JSON values."""
        return asdict(self)

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Row:
        """The row that :meth:`document` gave.

        Raises:
            KeyError, TypeError, ValueError: If it is none.
        """
        values = {f.name: document[f.name] for f in fields(cls)}
        return cls(**{**values, "ended": Ended(values["ended"])})


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows for all strategies and budgets on one graph.

    Attributes:
        graph: The graph.
        no_remat_peak_bytes: Its peak without recomputation.
        strategies: In the order asked for, each in its shortest text form.
        budgets: ``(text, bytes)`` in ascending order of bytes.
        limits: How every cell was solved: solver, time limit, gap, threads, seed.
        rows: One for each strategy and budget, by strategy and then by budget.
        interrupted: Whether it was stopped before all cells were done.
    """

    graph: Graph
    no_remat_peak_bytes: int
    strategies: tuple[str, ...]
    budgets: tuple[tuple[str, int], ...]
    limits: Mapping[str, Any]
    rows: tuple[Row, ...]
    interrupted: bool = False

    def row(self, strategy: str, budget_bytes: int) -> Row:
        """The row of a cell."""
        return next(r for r in self.rows if r.strategy == strategy and r.budget_bytes == budget_bytes)

    def bound(self, budget_bytes: int) -> float:
        """The best bound on the cost of any plan within the budget that some strategy proved; C0 if there is none."""
        proven = [
            row.lower_bound
            for row in self.rows
            if row.budget_bytes >= budget_bytes and row.lower_bound is not None and row.scope in _WIDE
        ]
        # A bound for a larger budget holds for a smaller one.
        return max([self.graph.total_cost, *proven])

    def contradictions(self) -> list[str]:
        """Plans that are cheaper than a bound which holds for them: always a defect, never to be passed over."""
        found = []
        for row in self.rows:
            if row.cost is not None and row.cost < self.bound(row.budget_bytes) * (1 - SAME_COST):
                found.append(
                    f"{row.strategy} at {row.budget} costs {row.cost:.12g}, less than the proven bound "
                    f"{self.bound(row.budget_bytes):.12g}"
                )
        return found

    def by_strategy(self) -> dict[str, Sequence[Row]]:
        """The rows of each strategy, by budget upwards."""
        return {name: [self.row(name, amount) for _, amount in self.budgets] for name in self.strategies}
