"""The plans for several budgets, as text, as CSV, and as a document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from remat_cli.control import Ending, Outcome
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.plan.check import Report
from remat_cli.plan.model import Scope
from remat_cli.reports.documents import graph_document
from remat_cli.reports.style import Style, fields, render, title
from remat_cli.reports.table import Column, Table, each
from remat_cli.reports.words import (
    AMONG,
    cost_words,
    count,
    ending_words,
    exact_bytes,
    graph_words,
    maker,
    percent_gap,
    percent_over,
    size_column,
)
from remat_cli.tolerances import SAME_COST
from remat_cli.units import format_duration

if TYPE_CHECKING:
    from rich.console import RenderableType


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
    """A line per budget, rising: peak, overhead, lower bound on the overhead, gap and status."""
    from rich.text import Text

    solved = [row.report for row in rows if row.report is not None]
    good = len(solved) == len(rows)
    mark = style.verdict(good) if good or not solved else style.glyph("•", "in part:")
    words = f"{mark} a plan for {len(solved)} of {count(len(rows), 'budget')}"
    range_words = ""
    if solved:
        most, least = percent_over(solved[0].overhead), percent_over(solved[-1].overhead)
        range_words = f": {least} over no-remat" + (f" to {most}" if most != least else "")
    parts: list[RenderableType] = [
        Text.assemble((words, "bold green" if good else "bold red" if not solved else "bold yellow"), range_words)
    ]
    if ended := ending_words(Ending(outcome), "these are the best plans" if solved else "no plan was"):
        parts.append(Text(ended))
    parts += ["", fields(_summary(graph, rows, style, wall_s), style), "", _table(rows).text(style)]
    parts += _scopes(rows, style) + _reasons(rows, style)
    return render(style, *parts)


def _summary(graph: Graph, rows: Sequence[CurveRow], style: Style, wall_s: float) -> list[tuple[str, str]]:
    """The graph, the strategies and the time, as labelled lines."""
    cost = cost_words(graph.no_remat_cost, graph.cost_unit)
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


def _table(rows: Sequence[CurveRow]) -> Table[CurveRow]:
    """Budget as asked and in bytes, peak, overhead, status, least overhead, gap; bars show the overhead."""

    def least_overhead(report: Report) -> float:
        base = report.graph.no_remat_cost
        return report.claim.lower_bound / base - 1 if base > 0 else 0.0

    columns: list[Column[CurveRow]] = [
        Column("budget", attrgetter("asked"), numeric=False),
        Column("in bytes", attrgetter("budget_bytes"), size_column),
        Column("peak", _of_plan(lambda report: report.replay.peak_bytes), size_column),
        Column("overhead", _of_plan(attrgetter("overhead")), each(percent_over)),
        Column("proven", attrgetter("status")),
        Column("at least", _of_plan(least_overhead), each(percent_over)),
        Column("gap", _of_plan(attrgetter("gap")), each(percent_gap)),
    ]
    if all(not row.asked.endswith("%") for row in rows):  # asked in bytes
        del columns[1]
    overhead = _of_plan(attrgetter("overhead"))
    most = max(overhead(row) or 0.0 for row in rows)
    return Table(columns, rows, share=lambda row: (overhead(row) or 0.0) / most if most > SAME_COST else 0.0)


def _of_plan(value: Callable[[Report], Any]) -> Callable[[CurveRow], Any]:
    """A value of a row's report; None for a row without a plan."""
    return lambda row: None if row.report is None else value(row.report)


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
        "graph": graph_document(graph),
        "cost_unit": graph.cost_unit,
        "fixed_memory": graph.fixed_memory,
        "no_remat_cost": graph.no_remat_cost,
        "no_remat_peak": no_remat_peak(graph),
        "points": _points(rows).records(),
    }


def _points(rows: Sequence[CurveRow]) -> Table[CurveRow]:
    """The budgets and their plans for programs; None for what is not known."""
    columns: list[Column[CurveRow]] = [
        Column("budget", attrgetter("budget_bytes")),
        Column("budget_asked", attrgetter("asked")),
        Column("status", attrgetter("status")),
        Column("peak_memory", _of_plan(lambda report: report.replay.peak_bytes)),
        Column("cost", _of_plan(lambda report: report.replay.time)),
        Column("overhead", _of_plan(lambda report: report.overhead if report.graph.no_remat_cost > 0 else None)),
        Column(
            "lower_bound", _of_plan(lambda report: report.claim.lower_bound if report.claim.lower_bound > 0 else None)
        ),
        Column("gap", _of_plan(lambda report: report.gap if report.claim.lower_bound > 0 else None)),
        Column("scope", _of_plan(lambda report: report.claim.scope.value)),
        Column("strategy", _of_plan(attrgetter("strategy"))),
        Column("solver", _of_plan(attrgetter("solver"))),
        Column("plan", lambda row: row.path or None),
        Column("reason", lambda row: row.reason or None),
        Column("hint", lambda row: row.hint or None),
    ]
    return Table(columns, rows)


def curve_csv(rows: Sequence[CurveRow]) -> str:
    """The points of :func:`curve_document` as CSV with a header; unknown values are empty."""
    return _points(rows).csv()
