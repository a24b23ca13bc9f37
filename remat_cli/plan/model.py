"""Plans as data: statements, the claim of the strategy that made the plan, and its provenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from remat_cli.graph.model import Graph
from remat_cli.plan.host import Host
from remat_cli.short_repr import ShortRepr
from remat_cli.units import format_bytes, format_cost, format_percent


@dataclass(frozen=True, slots=True)
class Allocate:
    """Allocate ``register`` for one instance of ``value`` (an index). The register's name is not reused.

    ``size_bytes`` is the size in the document; None stands for the size of the value.
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


@dataclass(frozen=True, slots=True)
class Offload:
    """Copy ``register`` to the host slot ``slot``, which takes host memory from here on. Slots are used once."""

    register: str
    slot: str


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Copy the host slot ``slot`` into ``register``, which was allocated before for the same value."""

    slot: str
    register: str


@dataclass(frozen=True, slots=True)
class Release:
    """Free the host slot ``slot``."""

    slot: str


Statement = Allocate | Compute | Deallocate | Offload | Prefetch | Release

COPIES = (Offload, Prefetch, Release)
"""The statements of plans that use host memory."""


class Copies(StrEnum):
    """The copies between device and host for which a bound holds, in addition to the schedules of its scope."""

    NONE = "none"
    """Plans without copies."""
    ANY = "any"
    """Plans with any copies, of any value, at any time and as often as they like."""


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
    """Whether the strategy claims that no plan is cheaper (in the claim's scope)."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"


@dataclass(frozen=True, slots=True)
class PeakClaim:
    """The strategy's claim on the peak: no schedule of ``scope`` has a peak below ``lower_bound_bytes``."""

    lower_bound_bytes: int
    scope: Scope


@dataclass(frozen=True, slots=True)
class Claim:
    """The strategy's claim on its plan. The replay checks the cost; the bound is not checked.

    Attributes:
        status: Optimal, within the requested gap and within ``scope``; or feasible.
        cost: Cost of the plan: its time, if it was made for a machine with a host.
        lower_bound: No schedule of ``scope`` within the budget is cheaper; 0 if nothing is known.
        scope: The schedules for which the bound and ``optimal`` hold.
        peak: The claim on the peak of a plan made by ``--minimize peak``; else None.
        copies: The copies for which the bound and ``optimal`` hold.
        any_split: Whether they hold for plans with any regions of the graph in any number of parts that it offers.
        stated_gap: The gap in the document of the plan, next to cost and bound; None for a claim without a document.
    """

    status: ClaimStatus
    cost: float
    lower_bound: float
    scope: Scope
    peak: PeakClaim | None = None
    copies: Copies = Copies.NONE
    any_split: bool = False
    stated_gap: float | None = field(default=None, compare=False)

    @property
    def gap(self) -> float:
        """(cost - lower_bound) / cost, never negative; 0 for a plan that costs nothing."""
        return max(0.0, (self.cost - self.lower_bound) / self.cost) if self.cost > 0 else 0.0

    @property
    def proof(self) -> str:
        """``optimal (any-order)``, or ``gap 1.2% (document-order)``."""
        proof = "optimal" if self.status is ClaimStatus.OPTIMAL else f"gap {format_percent(self.gap)}"
        copies, splits = self.copies is Copies.ANY, self.any_split
        return f"{proof} ({self.scope.value}{', any copies' * copies}{', any split' * splits})"


@dataclass(frozen=True, slots=True, repr=False)
class Plan(ShortRepr):
    """A self-contained execution plan.

    Attributes:
        graph: The whole graph.
        statements: The statements, in order of execution.
        budget_bytes: The budget for which it was made, fixed memory included; None for no budget.
        claim: The claim of the strategy.
        strategy: Text form of the strategy: ``checkmate-ilp{stage_split=2}``.
        strategy_options: All its options with their values.
        solver: Name of the solver, or None if none was used.
        solver_version: Version of that solver.
        provenance: How it was made: remat's version, budget as asked, limits, seed. Reproducible.
        run: Timings and machine facts, which differ from run to run.
        host: The host memory for which it was made; None for no copies.
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
    host: Host | None = None

    @property
    def copies(self) -> bool:
        """Whether any value is copied to the host or back."""
        return any(isinstance(statement, COPIES) for statement in self.statements)

    def _facts(self) -> dict[str, str]:
        return {
            "graph": self.graph.name,
            "nodes": f"{len(self.graph.nodes):,}",
            "statements": f"{len(self.statements):,}",
            "budget": "none" if self.budget_bytes is None else format_bytes(self.budget_bytes),
            "cost": format_cost(self.claim.cost, self.graph.cost_unit),
            "proof": self.claim.proof,
            "made by": self.strategy,
        }
