"""Plans for several budgets side by side: as text with bars, as CSV, and as a document."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from remat_cli.control import Ending, Outcome
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.plan.check import Report
from remat_cli.plan.model import Scope
from remat_cli.printable import printable
from remat_cli.reports.documents import document_json
from remat_cli.reports.style import Style, columns, fields, render, title
from remat_cli.reports.words import AMONG, cost_words, count, ending_words, exact_bytes, graph_words, maker, size_column
from remat_cli.units import format_duration, format_percent

if TYPE_CHECKING:
    from rich.console import RenderableType

_EXACT = 1e-9
_TINY = 1e-6


@dataclass(frozen=True, slots=True)
class CurveRow:
    """One budget and its result.

    Attributes:
        asked: The budget as asked: ``80%``.
        budget_bytes: In bytes, fixed memory included.
        status: ``optimal``, ``feasible``, ``infeasible`` or ``unknown``.
        report: The plan as replayed; None if there is none.
        reason: Why there is none; empty if there is one.
        hint: What the user can do about that; may be empty.
        path: File of the plan; empty if there is none.
    """

    asked: str
    budget_bytes: int
    status: str
    report: Report | None = None
    reason: str = ""
    hint: str = ""
    path: str = ""


def curve_text(graph: Graph, rows: Sequence[CurveRow], style: Style, outcome: Outcome, wall_s: float) -> str:
    """A line per budget: peak, overhead, lower bound on the overhead, gap and status.

    Args:
        graph: The graph.
        rows: By rising budget; at least one.
        style: Where it goes.
        outcome: How the search ended.
        wall_s: Seconds it took.

    Returns:
        Lines that end with a newline.
    """
    from rich.text import Text

    solved = [row.report for row in rows if row.report is not None]
    good = len(solved) == len(rows)
    mark = style.glyph("✓", "ok:") if good else style.glyph("✗", "no:") if not solved else style.glyph("•", "in part:")
    words = f"{mark} a plan for {len(solved)} of {count(len(rows), 'budget')}"
    range_words = ""
    if solved:
        most, least = _overhead(solved[0]), _overhead(solved[-1])
        range_words = f": {least} over no-remat" + (f" to {most}" if most != least else "")
    parts: list[RenderableType] = [
        Text.assemble((words, "bold green" if good else "bold red" if not solved else "bold yellow"), range_words)
    ]
    if ended := ending_words(Ending(outcome), "these are the best plans" if solved else "no plan was"):
        parts.append(Text(ended))
    parts += ["", fields(_summary(graph, rows, style, wall_s), style), "", _table(rows, style)]
    parts += _scopes(rows, style) + _reasons(rows, style)
    return render(style, *parts)


def _summary(graph: Graph, rows: Sequence[CurveRow], style: Style, wall_s: float) -> list[tuple[str, str]]:
    """The graph, the strategies and the time, as labelled lines."""
    cost = cost_words(graph.total_cost, graph.cost_unit)
    lines = [
        ("graph", f"{style.clean(graph.name)}: {graph_words(graph)}"),
        ("no-remat", f"peak {exact_bytes(no_remat_peak(graph))}, cost {cost}"),
    ]
    makers = dict.fromkeys(maker(row.report) for row in rows if row.report is not None)
    if makers:
        lines.append(("made by", style.clean(", ".join(makers))))
    if wall_s:
        lines.append(("time", format_duration(wall_s)))
    return lines


def _table(rows: Sequence[CurveRow], style: Style) -> RenderableType:
    """Budget as asked and in bytes, peak, overhead, least overhead, gap, status; bars show the overhead."""
    asked_in_bytes = all(not row.asked.endswith("%") for row in rows)
    sizes = size_column([row.budget_bytes for row in rows])
    peaks = iter(size_column([row.report.replay.peak_bytes for row in rows if row.report is not None]))
    cells = [("budget", *([] if asked_in_bytes else ["in bytes"]), "peak", "overhead", "proven", "at least", "gap")]
    for row, size in zip(rows, sizes, strict=True):
        head = (row.asked,) if asked_in_bytes else (row.asked, size)
        if row.report is None:
            cells.append((*head, "", "", row.status, "", ""))
        else:
            claim, base = row.report.claim, row.report.graph.total_cost
            floor = max(0.0, claim.lower_bound / base - 1) if base > 0 else 0.0
            least = format_percent(floor if floor > _EXACT else 0.0)
            cells.append((*head, next(peaks), _overhead(row.report), row.status, least, _gap(row.report)))
    overheads = [0.0 if row.report is None else row.report.overhead for row in rows]
    most = max(overheads)
    return columns(cells, style, shares=[0.0, *(o / most if most > _EXACT else 0.0 for o in overheads)])


def _overhead(report: Report) -> str:
    return format_percent(report.overhead if report.overhead > _EXACT else 0.0)


def _gap(report: Report) -> str:
    if report.gap <= _EXACT:
        return "0%"
    return format_percent(report.gap) if report.gap >= _TINY else f"<{format_percent(_TINY)}"


def _scopes(rows: Sequence[CurveRow], style: Style) -> list[RenderableType]:
    """The schedules for which the bounds hold, if those are not all schedules."""
    by_scope: dict[Scope, list[str]] = {}
    for row in rows:
        if row.report is not None and row.report.claim.scope is not Scope.ANY_ORDER:
            by_scope.setdefault(row.report.claim.scope, []).append(row.asked)
    if not by_scope:
        return []
    every = len(by_scope) == 1
    lines = [
        (scope.value, AMONG[scope] + ("" if every else f": {', '.join(budgets)}"))
        for scope, budgets in by_scope.items()
    ]
    return [title("Proofs", " hold among"), fields(lines, style)]


def _reasons(rows: Sequence[CurveRow], style: Style) -> list[RenderableType]:
    """Why there is no plan for the largest budget without one; that reason covers the smaller budgets too."""
    missing = [row for row in rows if row.report is None]
    if not missing:
        return []
    row = missing[-1]
    below = len(missing) - 1
    more = f" and the {count(below, 'budget') if below > 1 else 'budget'} below" if below else ""
    lines = [("why", row.reason)] + ([("hint", row.hint)] if row.hint else [])
    return [title("No plan", f" for {style.clean(row.asked)}{more}"), fields(lines, style)]


def curve_document(graph: Graph, rows: Sequence[CurveRow]) -> dict[str, Any]:
    """The curve as JSON values, ``remat-curve/1`` (schemas/curve-v1.json); no timings."""
    return {
        "schema": "remat-curve/1",
        "graph": {
            "name": graph.name,
            "nodes": len(graph.nodes),
            "values": len(graph.size),
            "edges": graph.edges,
        },
        "cost_unit": graph.cost_unit,
        "fixed_memory": graph.fixed_memory,
        "no_remat_cost": graph.total_cost,
        "no_remat_peak": no_remat_peak(graph),
        "points": [_point(row) for row in rows],
    }


def _point(row: CurveRow) -> dict[str, Any]:
    report = row.report
    known: dict[str, Any] = dict.fromkeys(_KNOWN)
    if report is not None:
        claim = report.claim
        bound = claim.lower_bound if claim.lower_bound > 0 else None
        known = {
            "peak_memory": report.replay.peak_bytes,
            "cost": report.replay.time,
            "overhead": report.overhead if report.graph.total_cost > 0 else None,
            "lower_bound": bound,
            "gap": None if bound is None else report.gap,
            "scope": claim.scope.value,
            "strategy": report.strategy,
            "solver": report.solver,
        }
    return {
        "budget": row.budget_bytes,
        "budget_asked": row.asked,
        "status": row.status,
        **known,
        "plan": row.path or None,
        "reason": row.reason or None,
        "hint": row.hint or None,
    }


_KNOWN = ("peak_memory", "cost", "overhead", "lower_bound", "gap", "scope", "strategy", "solver")


def curve_json(graph: Graph, rows: Sequence[CurveRow]) -> str:
    """:func:`curve_document` as text: sorted keys, a final newline."""
    return document_json(curve_document(graph, rows))


def curve_csv(rows: Sequence[CurveRow]) -> str:
    """The points of :func:`curve_document` as CSV with a header; unknown values are empty."""
    target = io.StringIO()
    names = ["budget", "budget_asked", "status", *_KNOWN, "plan", "reason", "hint"]
    writer = csv.DictWriter(target, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: printable(v) if isinstance(v, str) else v for k, v in _point(row).items()})
    return target.getvalue()
