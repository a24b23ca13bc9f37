"""The two tables of every report on a plan, for text and pages: values at the peak, and recomputed nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from remat_cli.plan.check import Report
from remat_cli.reports.words import cost_column, count, share_column, size_column


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table.

    Attributes:
        cells: Texts, the same number in every row.
        shares: The share of every row in the whole, 0 to 1.
    """

    cells: Sequence[tuple[str, ...]]
    shares: Sequence[float]


def peak_rows(report: Report, most: int) -> Rows:
    """Name, size and share of every value in memory at the peak.

    Args:
        report: The report.
        most: Number of values to name, the largest first; the rest is one row. Workspace and fixed memory follow.
    """
    peak = report.replay.peak_bytes
    rows = [(r.value, r.size_bytes) for r in report.peak_values[:most]]
    if rest := report.peak_values[most:]:
        rows.append((f"and {len(rest):,} more", sum(r.size_bytes for r in rest)))
    if report.replay.workspace_bytes:
        rows.append(("workspace", report.replay.workspace_bytes))
    if report.graph.fixed_memory:
        rows.append(("fixed memory", report.graph.fixed_memory))
    names, sizes = [name for name, _ in rows], [size for _, size in rows]
    return Rows(list(zip(names, size_column(sizes), share_column(sizes, peak), strict=True)), _shares(sizes, peak))


def recomputed_rows(report: Report, most: int) -> Rows:
    """Name, number of computations, extra cost and its share of all extra cost of the nodes computed more than once.

    Args:
        report: The report.
        most: Number of nodes to name, the costliest first; the rest is one row, without a number of computations.
    """
    nodes = report.recomputed
    extra = math.fsum(r.extra_cost for r in nodes)
    rows = [(r.node, f"{r.times:,}", r.extra_cost) for r in nodes[:most]]
    if rest := nodes[most:]:
        rows.append((f"and {len(rest):,} more", "", math.fsum(r.extra_cost for r in rest)))
    costs = [cost for _, _, cost in rows]
    said = zip(rows, cost_column(costs, report.graph.cost_unit), share_column(costs, extra), strict=True)
    return Rows([(name, times, *more) for (name, times, _), *more in said], _shares(costs, extra))


def recomputed_words(report: Report) -> str:
    """``3 nodes, 5 extra computations``."""
    again = sum(r.times - 1 for r in report.recomputed)
    return f"{count(len(report.recomputed), 'node')}, {count(again, 'extra computation')}"


def _shares(parts: Sequence[float], whole: float) -> list[float]:
    return [part / whole if whole else 0.0 for part in parts]
