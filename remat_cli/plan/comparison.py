"""Results over many plans as data: every strategy at every budget, for several links, and the largest batch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from remat_cli.control import Outcome
from remat_cli.graph.model import Graph
from remat_cli.plan.host import Host
from remat_cli.plan.model import Scope
from remat_cli.short_repr import ShortRepr
from remat_cli.tolerances import SAME_COST

_WIDE = frozenset({Scope.ANY_ORDER.value, Scope.DOCUMENT_ORDER.value})
"""Scopes whose bounds hold for the plans of every strategy, because all plans are in document order."""


class Ended(StrEnum):
    """The outcome of a cell."""

    PLAN = "plan"
    """A plan within the budget, replayed."""
    NONE = "none"
    """The strategy has no plan that fits."""
    LIMIT = "limit"
    """The time limit was reached before any plan was found."""
    REFUSED = "refused"
    """The strategy does not take this graph, or a package that it needs is not installed."""
    FAILED = "failed"
    """The strategy, its solver or its process failed."""
    INTERRUPTED = "interrupted"
    """It was stopped before it had an answer, or never started."""


class Proof(StrEnum):
    """How much is proven of a plan, in the words of reports."""

    NONE = "a plan"
    """Nothing: there may be a cheaper one."""
    GAP = "within the gap"
    """No plan costs less by more than the accepted gap."""
    OPTIMAL = "optimal"
    """No plan costs less."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One strategy at one budget.

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
    """The result of a cell.

    Attributes:
        strategy: As in the cell.
        budget: As in the cell.
        budget_bytes: As in the cell.
        ended: Its outcome.
        peak_bytes: Replayed peak, fixed memory included; None without a plan, as everything below but the message.
        cost: Replayed cost.
        overhead: Cost over that of no recomputation, as a share of the latter; None where that is 0.
        computes: Computations in the plan.
        lower_bound: The lower bound on the cost that the strategy proved.
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

    @property
    def proof(self) -> Proof:
        """How much is proven of its plan."""
        if not self.optimal or self.cost is None:
            return Proof.NONE
        exact = self.lower_bound is not None and self.cost <= self.lower_bound * (1 + SAME_COST)
        return Proof.OPTIMAL if exact else Proof.GAP

    def document(self) -> dict[str, Any]:
        """The row as JSON values."""
        return asdict(self)

    @classmethod
    def of_document(cls, document: Any) -> Row:
        """The row of a document that :meth:`document` made.

        Raises:
            ValueError: If it is not such a document, or says what no row can say; the message names the field.
        """
        if not isinstance(document, dict) or document.keys() != {f.name for f in fields(cls)}:
            raise ValueError("it has not the fields of a row")
        has_plan = document["ended"] == Ended.PLAN
        for name, value in sorted(document.items(), key=lambda item: item[0] != "ended"):  # the others depend on it
            good = value is None if name in _OF_A_PLAN and not has_plan else _FITS[name](value)
            if not good:
                raise ValueError(f"{name} is {_shown(value)}")
        if has_plan and document["peak_bytes"] > document["budget_bytes"]:
            raise ValueError("peak_bytes is above budget_bytes")
        return cls(**{**document, "ended": Ended(document["ended"])})


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _finite(value: Any) -> bool:
    return type(value) in {int, float} and abs(value) <= sys.float_info.max


def _amount(value: Any) -> bool:
    return _finite(value) and value >= 0


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, int | float | None) else f"a {type(value).__name__}"


_OF_A_PLAN = frozenset({"peak_bytes", "cost", "overhead", "computes", "lower_bound", "scope"})
"""Fields that are None in a row without a plan."""
_FITS: dict[str, Callable[[Any], bool]] = {
    "strategy": _text,
    "budget": _text,
    "budget_bytes": _whole,
    "ended": lambda value: value in list(Ended),
    "peak_bytes": _whole,
    "cost": _amount,
    "overhead": lambda value: value is None or _finite(value),
    "computes": _whole,
    "lower_bound": _amount,
    "scope": lambda value: value in list(Scope),
    "optimal": lambda value: isinstance(value, bool),
    "wall_s": _amount,
    "message": _text,
}
"""Whether a value of JSON may stand in a field of a row with a plan."""


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(ShortRepr):
    """Rows for all strategies and budgets on one graph.

    Attributes:
        graph: The graph.
        no_remat_peak_bytes: Its peak without recomputation.
        strategies: In the requested order, each in its shortest text form.
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

    def _facts(self) -> dict[str, str]:
        return {
            "graph": self.graph.name,
            "nodes": f"{len(self.graph.nodes):,}",
            "strategies": f"{len(self.strategies):,}",
            "budgets": f"{len(self.budgets):,}",
            "plans": f"{sum(row.cost is not None for row in self.rows):,}",
        }

    @property
    def has_plan(self) -> bool:
        """Whether any strategy has a plan at any budget."""
        return any(row.cost is not None for row in self.rows)

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
        """Plans that are cheaper than a bound that holds for them. Each is a defect, and must be shown."""
        contradictions = []
        for row in self.rows:
            if row.cost is not None and row.cost < self.bound(row.budget_bytes) * (1 - SAME_COST):
                contradictions.append(
                    f"{row.strategy} at {row.budget} costs {row.cost:.12g}, less than the proven bound "
                    f"{self.bound(row.budget_bytes):.12g}"
                )
        return contradictions

    def by_strategy(self) -> dict[str, Sequence[Row]]:
        """The rows of each strategy, by budget upwards."""
        return {name: [self.row(name, amount) for _, amount in self.budgets] for name in self.strategies}


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


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """The result of ``remat max-batch``.

    Attributes:
        memory_bytes: The memory, fixed memory included.
        most_cost: The limit on the cost of a plan, at ``graph_batch``.
        without: The largest batch without recomputation.
        found: The largest batch with a replayed plan; 0 for none.
        impossible: This batch and all larger ones are proven not to fit.
        scope: The plans for which that, and ``refuted``, is proven.
        graph_batch: The batch for which the graph was made; with several graphs, the batch found.
        peak_bytes: Peak of the plan at the batch found; None without one.
        cost: Cost of the plan at ``graph_batch``; None without one.
        strategy: The strategy that made it; None without one.
        tried: Batches for which a plan was searched.
        outcome: How the search ended.
        given: Batches of which a graph was given; empty if a function made the graph of every batch.
        refuted: Single batches below ``impossible`` that are proven not to fit; larger ones may.
    """

    memory_bytes: int
    most_cost: float
    without: int
    found: int
    impossible: int
    scope: Scope
    graph_batch: int
    peak_bytes: int | None
    cost: float | None
    strategy: str | None
    tried: tuple[int, ...]
    outcome: Outcome
    given: tuple[int, ...] = ()
    refuted: tuple[int, ...] = ()
