"""Plans as data: statements, the claim of whoever made the plan, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from remat_cli.graph.model import Graph


@dataclass(frozen=True, slots=True)
class Allocate:
    """Make room for one instance of ``value`` (an index) in ``register``, a name never used again.

    ``size_bytes`` is what the document says; None stands for the size of the value.
    """

    register: str
    value: int
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Compute:
    """Run ``node`` (an index); its outputs go, in order, into ``registers``. Inputs are implicit."""

    node: int
    registers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Deallocate:
    """Free ``register``."""

    register: str


Statement = Allocate | Compute | Deallocate


class Scope(StrEnum):
    """The set of schedules over which a claim or a bound holds, from the widest to the narrowest.

    ``ANY_ORDER``: every schedule in every topological order. ``DOCUMENT_ORDER``: first computations in document
    order. ``FRONTIER``: also, in each stage, nodes in document order and each at most once (Checkmate 4.6).
    ``CHAIN_PERSISTENT``: memory-persistent schedules of a chain (Rotor). ``RESTRICTED``: some smaller set that
    the strategy searched.
    """

    ANY_ORDER = "any-order"
    DOCUMENT_ORDER = "document-order"
    FRONTIER = "frontier"
    CHAIN_PERSISTENT = "chain-persistent"
    RESTRICTED = "restricted"

    def contains(self, other: Scope) -> bool:
        """Whether every schedule of ``other`` is in this set."""
        if self is other or other is Scope.RESTRICTED:
            return True
        wide = [Scope.ANY_ORDER, Scope.DOCUMENT_ORDER]
        if self not in wide:
            return False
        return other not in wide or wide.index(self) <= wide.index(other)


class ClaimStatus(StrEnum):
    """Whether the maker of a plan says that none is cheaper (in the claim's scope)."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"


@dataclass(frozen=True, slots=True)
class PeakClaim:
    """What the maker of a plan says of its peak: no schedule of ``scope`` has one below ``lower_bound_bytes``."""

    lower_bound_bytes: int
    scope: Scope


@dataclass(frozen=True, slots=True)
class Claim:
    """What the maker of a plan says of it. The replay decides what is true.

    Attributes:
        status: Optimal, within the gap asked for and within ``scope``; or feasible.
        cost: Cost of the plan.
        lower_bound: No schedule of ``scope`` within the budget is cheaper; 0 when nothing is known.
        scope: For which schedules the bound and an ``optimal`` hold.
        peak: What is said of the peak, where the plan was made for the least one; None for nothing.
        stated_gap: The gap that a document states beside cost and bound; None for a claim that is not from one.
    """

    status: ClaimStatus
    cost: float
    lower_bound: float
    scope: Scope
    peak: PeakClaim | None = None
    stated_gap: float | None = field(default=None, compare=False)

    @property
    def gap(self) -> float:
        """(cost - lower_bound) / cost, never negative; 0 for a plan that costs nothing."""
        return max(0.0, (self.cost - self.lower_bound) / self.cost) if self.cost > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A self-contained execution plan.

    Attributes:
        graph: The whole graph.
        statements: What to do, in order.
        budget_bytes: Bytes it was made for, fixed memory included; None for no budget.
        claim: What its maker says of it.
        strategy: Text form of the strategy: ``checkmate-ilp{stage_split=2}``.
        strategy_options: All its options with their values.
        solver: Name of the solver, or None if none was used.
        solver_version: Version of that solver.
        provenance: How it came to be: remat's version, budget as asked, limits, seed. Reproducible.
        run: Timings and machine facts, which differ from run to run.
    """

    graph: Graph
    statements: tuple[Statement, ...]
    budget_bytes: int | None
    claim: Claim
    strategy: str
    strategy_options: Mapping[str, Any] = field(default_factory=dict)
    solver: str | None = None
    solver_version: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
