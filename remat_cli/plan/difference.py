"""The difference of two plans: the changes from the old plan to the new, and checks against tolerances."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from remat_cli.plan.check import OVER_BUDGET, OVER_HOST_MEMORY, Report, graphs_differ
from remat_cli.plan.replay import Finding
from remat_cli.units import format_bytes, format_percent

_ROUNDING = Fraction(1, 10**9)
"""Relative difference below which costs count as equal: the rounding error of sums."""


@dataclass(frozen=True, slots=True)
class Recomputation:
    """A node whose number of computations changed.

    Attributes:
        node: Its id.
        old_times: Computations in the old plan; 0 if its graph has no such node.
        new_times: Computations in the new plan; 0 if its graph has no such node.
        extra_cost: Change of the cost of its recomputations; negative for less.
    """

    node: str
    old_times: int
    new_times: int
    extra_cost: float


@dataclass(frozen=True, slots=True)
class Difference:
    """The changes from the ``old`` plan to the ``new``.

    Attributes:
        old: The old plan as replayed.
        new: The new one.
        other_graph: The first difference of their graphs, in words; None if both are for the same graph.
        added: Nodes that only the new plan recomputes, the costliest first.
        removed: Nodes that only the old plan recomputes, the costliest first.
        changed: Nodes that are recomputed more often or less often, the costliest first.
    """

    old: Report
    new: Report
    other_graph: str | None
    added: tuple[Recomputation, ...]
    removed: tuple[Recomputation, ...]
    changed: tuple[Recomputation, ...]

    @property
    def same_unit(self) -> bool:
        """Whether the costs have the same unit and can be compared."""
        return self.old.graph.cost_unit == self.new.graph.cost_unit

    @property
    def peak_increase(self) -> float | None:
        """(new - old) / old of the peaks; None if only the old peak is 0."""
        return _increase(self.old.replay.peak_bytes, self.new.replay.peak_bytes)

    @property
    def cost_increase(self) -> float | None:
        """(new - old) / old of the costs; None for different units, or if only the old cost is 0."""
        return _increase(self.old.replay.time, self.new.replay.time) if self.same_unit else None

    @property
    def worse(self) -> bool:
        """Whether the new plan has a higher peak or, in the same unit, a higher cost."""
        slack = 1 + float(_ROUNDING)
        costlier = self.same_unit and self.new.replay.time > self.old.replay.time * slack
        return costlier or self.new.replay.peak_bytes > self.old.replay.peak_bytes


def compare_plans(old: Report, new: Report) -> Difference:
    """The changes from ``old`` to ``new``. Nodes of different graphs correspond if they have the same id."""
    before, after = _computations(old), _computations(new)
    added: list[Recomputation] = []
    removed: list[Recomputation] = []
    changed: list[Recomputation] = []
    for node in {**before, **after}:
        (was, was_cost), (now, now_cost) = before.get(node, (0, 0.0)), after.get(node, (0, 0.0))
        recomputation = Recomputation(node, was, now, now_cost - was_cost)
        if max(was, now) < 2 or was == now:
            continue
        (added if was < 2 else removed if now < 2 else changed).append(recomputation)
    return Difference(
        old, new, graphs_differ(old.graph, new.graph), _ordered(added), _ordered(removed), _ordered(changed)
    )


def beyond(
    difference: Difference, *, max_cost_increase: Fraction | None = None, max_peak_increase: Fraction | None = None
) -> tuple[Finding, ...]:
    """The reasons why the new plan must not replace the old one; empty if it may.

    An invalid plan, or one over its own budget, never may. No tolerance can be checked against an invalid old plan.

    Limits are percentages; None for no limit. A limit of the cost needs ``same_unit``.
    """
    old, new = difference.old, difference.new
    findings = []
    if not new.valid:
        findings.append(Finding("invalid-plan", "the new plan is invalid"))
    host_bytes = None if new.host is None else new.host.memory_bytes
    limits = (
        (OVER_BUDGET, "budget", new.replay.peak_bytes, new.budget_bytes),
        (OVER_HOST_MEMORY, "limit of host memory", new.replay.host_peak_bytes, host_bytes),
    )
    for code, name, used, most in limits:
        if most is not None and used > most:
            findings.append(Finding(code, f"the new plan is over its {name} by {format_bytes(used - most)}"))
    if not old.valid and (max_cost_increase is not None or max_peak_increase is not None):
        findings.append(Finding("invalid-plan", "the old plan is invalid, so the new plan cannot be compared with it"))
    tolerances = (
        ("cost", max_cost_increase, old.replay.time, new.replay.time, difference.cost_increase),
        ("peak", max_peak_increase, old.replay.peak_bytes, new.replay.peak_bytes, difference.peak_increase),
    )
    for what, percent, before, after, ratio in tolerances:
        if percent is None:
            continue
        slack = 1 + _ROUNDING if what == "cost" else 1
        if Fraction(after) > Fraction(before) * (1 + percent / 100) * slack:
            by = "from nothing" if ratio is None else f"by {format_percent(ratio)}"
            message = f"the {what} grows {by}, more than the {format_percent(float(percent / 100))} allowed"
            findings.append(Finding(f"{what}-increase", message))
    return tuple(findings)


def _computations(report: Report) -> Mapping[str, tuple[int, float]]:
    """For each node, the number of computations and the cost of the recomputations."""
    return {
        node.id: (times, max(0, times - 1) * node.cost)
        for node, times in zip(report.graph.nodes, report.replay.times, strict=True)
    }


def _ordered(found: list[Recomputation]) -> tuple[Recomputation, ...]:
    return tuple(sorted(found, key=lambda r: (-abs(r.extra_cost), -abs(r.new_times - r.old_times), r.node)))


def _increase(old: float, new: float) -> float | None:
    if old == new:
        return 0.0
    return (new - old) / old if old else None
