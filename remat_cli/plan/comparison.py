"""Results over many plans as data: comparisons for one link or several, what memory is worth, the largest batch."""

from __future__ import annotations

import math
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
        return max([self.graph.least_cost, *proven])

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts:
    """The result of ``remat max-batch``, without its plan.

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
        refuted: Single batches below ``impossible`` that are proven not to fit. Where every batch has costs of its own,
            that says nothing of larger ones.
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


GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Offer:
    """The plans for one link at one budget, and for everything smaller and slower: their best times, and the bound.

    Times are in the graph's cost unit.

    Attributes:
        link: Name of the link.
        host: The host behind it.
        budget: The budget as asked.
        budget_bytes: In bytes, fixed memory included.
        recompute: The least time of plans that only recompute; None for no plan.
        copy: The same for plans that only copy.
        both: The same for plans that may do both.
        bound: No plan in document order takes less, with any copies.
    """

    link: str
    host: Host
    budget: str
    budget_bytes: int
    recompute: float | None
    copy: float | None
    both: float | None
    bound: float

    @property
    def gap(self) -> float | None:
        """(both - bound) / both; None for no plan."""
        return None if self.both is None else max(0.0, (self.both - self.bound) / self.both) if self.both > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Slope:
    """Time that a step takes less, per unit of what it gets more of.

    Attributes:
        found: By the plans found.
        least: The least that it can be, if all plans found were optimal where that counts; not below 0.
        most: The most that it can be, by the bounds.
    """

    found: float
    least: float
    most: float


def slope(small: Offer, large: Offer, units: float) -> Slope | None:
    """The slope between two offers that are ``units`` apart; None if the small one has no plan."""
    if small.both is None or large.both is None or units <= 0:
        return None
    return Slope(
        (small.both - large.both) / units,
        max(0.0, (small.bound - large.both) / units),
        max(0.0, (small.both - large.bound) / units),
    )


@dataclass(frozen=True, slots=True)
class Worth:
    """Offers for every link and budget.

    Attributes:
        graph: The graph.
        links: Names and hosts, the slowest first.
        budgets: As asked and in bytes, the smallest first.
        offers: By link, then by budget.
        interrupted: Whether plans are missing because the search was stopped.
    """

    graph: Graph
    links: tuple[tuple[str, Host], ...]
    budgets: tuple[tuple[str, int], ...]
    offers: tuple[Offer, ...]
    interrupted: bool = False

    def offer(self, link: int, budget: int) -> Offer:
        """The offer for a link and a budget, both by number."""
        return self.offers[link * len(self.budgets) + budget]

    def memory(self, link: int, budget: int) -> Slope | None:
        """What a GB of memory more is worth, up to the next budget; None for the last one."""
        if budget + 1 == len(self.budgets):
            return None
        small, large = self.offer(link, budget), self.offer(link, budget + 1)
        return slope(small, large, (large.budget_bytes - small.budget_bytes) / GIGA)

    def speed(self, link: int, budget: int) -> Slope | None:
        """What a GB/s more in each direction is worth, up to the next link; None for the last one, or no limit."""
        if link + 1 == len(self.links) or math.isinf(_rate(self.links[link + 1][1])):
            return None
        small, large = self.offer(link, budget), self.offer(link + 1, budget)
        return slope(small, large, _rate(large.host) - _rate(small.host))


def _rate(host: Host) -> float:
    return (host.out_bytes_per_s + host.in_bytes_per_s) / 2 / GIGA


def offers(
    links: Sequence[tuple[str, Host]],
    budgets: Sequence[tuple[str, int]],
    recompute: Sequence[float | None],
    copy: Sequence[Sequence[float | None]],
    both: Sequence[Sequence[float | None]],
    bound: Sequence[Sequence[float]],
) -> tuple[Offer, ...]:
    """Offers from the times of plans by link and by budget.

    A plan fits every larger budget, and takes no longer with a faster link, since all of its waits end no later. A
    plan that only recomputes or only copies may do both. A bound holds for every smaller budget and slower link.
    """
    best_offers = []
    for at, (link, host) in enumerate(links):
        slower = [k for k, (_, other) in enumerate(links) if k == at or _within(other, host)]
        faster = [k for k, (_, other) in enumerate(links) if k == at or _within(host, other)]
        for place, (budget, budget_bytes) in enumerate(budgets):
            below, above = range(place + 1), range(place, len(budgets))
            again = _least([recompute[b] for b in below])
            copied = _least([copy[k][b] for k in slower for b in below])
            mixed = _least([again, copied, *(both[k][b] for k in slower for b in below)])
            most = max(bound[k][b] for k in faster for b in above)
            best_offers.append(Offer(link, host, budget, budget_bytes, again, copied, mixed, most))
    return tuple(best_offers)


def _within(slow: Host, fast: Host) -> bool:
    """Whether every plan for ``slow`` is one for ``fast``, and takes no longer there."""
    memory = fast.memory_bytes is None or (slow.memory_bytes is not None and slow.memory_bytes <= fast.memory_bytes)
    return (
        memory
        and slow.out_bytes_per_s <= fast.out_bytes_per_s
        and slow.in_bytes_per_s <= fast.in_bytes_per_s
        and slow.latency_s >= fast.latency_s
    )


def _least(times: Sequence[float | None]) -> float | None:
    return min((time for time in times if time is not None), default=None)
