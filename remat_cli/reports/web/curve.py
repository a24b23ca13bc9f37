"""The page of plans for several budgets: cost over no-remat and peak against budget, with the proven bound."""

from __future__ import annotations

from collections.abc import Sequence

from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.plan.comparison import Comparison, Ended, Row
from remat_cli.plan.model import Copies
from remat_cli.reports.curve import CurveRow
from remat_cli.reports.table import Column, Table, each
from remat_cli.reports.web.comparison import MISSING, TABLE_NOTE, bound_columns, graph_facts, overhead_chart, peak_chart
from remat_cli.reports.web.page import Page, Section, render_page
from remat_cli.reports.words import count, maker, percent_over, size_column

_LINE = "cheapest plan found"
_ENDED = {"infeasible": Ended.NONE, "unknown": Ended.LIMIT}


def curve_page(graph: Graph, rows: Sequence[CurveRow], command: str, *, cdn: bool = False) -> str:
    """The page of plans for several budgets as HTML.

    Args:
        graph: The graph.
        rows: By rising budget.
        command: The command that makes the page.
        cdn: Whether plotly.js comes from its own network instead of from the file.
    """
    comparison = _as_comparison(graph, rows)
    note = (
        "The line has steps, because a plan remains valid with more memory, and budgets in between were not solved. No "
        "plan can lie in the grey area: that is proven. Crosses at the top are budgets without a plan."
    )
    solved = sum(row.report is not None for row in rows)
    return render_page(
        Page(
            title=f"Memory budgets for {graph.name or 'graph'}",
            verdict=f"a plan for {solved} of {count(len(rows), 'budget')}",
            good=solved == len(rows) or (None if solved else False),
            facts=graph_facts(comparison),
            sections=[
                Section("Overhead against budget", note, (overhead_chart(comparison, "overhead", 460),)),
                Section("Peak against budget", "How much of its budget each plan uses.", (peak_chart(comparison),)),
                Section("All budgets", TABLE_NOTE, table=_table(comparison, rows)),
                *_reasons(rows),
            ],
            command=command,
            problems=comparison.contradictions(),
        ),
        cdn=cdn,
    )


def _reasons(rows: Sequence[CurveRow]) -> list[Section]:
    """Why the largest budget without a plan has none; that covers the smaller budgets too."""
    missing = [row for row in rows if row.report is None]
    return [Section(f"No plan for {missing[-1].asked}", missing[-1].reason)] if missing else []


def _as_comparison(graph: Graph, rows: Sequence[CurveRow]) -> Comparison:
    """The curve as a comparison of a single strategy, so that the charts of comparisons show it."""
    budgets = tuple((row.asked, row.budget_bytes) for row in rows)
    return Comparison(graph, no_remat_peak(graph), (_LINE,), budgets, {}, tuple(map(_row, rows)))


def _row(row: CurveRow) -> Row:
    report = row.report
    if report is None:
        return Row(_LINE, row.asked, row.budget_bytes, _ENDED[row.status], message=row.reason)
    # A bound that holds only without copies is none for plans with copies.
    holds = report.host is None or report.claim.copies is Copies.ANY
    return Row(
        _LINE,
        row.asked,
        row.budget_bytes,
        Ended.PLAN,
        peak_bytes=report.replay.peak_bytes,
        cost=report.replay.time,
        overhead=report.overhead,
        computes=sum(report.replay.times),
        lower_bound=report.claim.lower_bound if holds else None,
        scope=report.claim.scope.value if holds else None,
        optimal=row.status == "optimal",
    )


def _table(comparison: Comparison, rows: Sequence[CurveRow]) -> Table[tuple[CurveRow, Row]]:
    """Every budget with its plan; the rows of ``comparison`` are those of ``rows``."""
    columns: list[Column[tuple[CurveRow, Row]]] = [
        Column("budget", lambda pair: pair[0].asked, numeric=False),
        Column("in bytes", lambda pair: pair[0].budget_bytes, size_column),
        Column("over no-remat", lambda pair: pair[1].overhead, each(percent_over)),
        Column("peak", lambda pair: pair[1].peak_bytes, size_column),
        Column("result", lambda pair: MISSING.get(pair[1].ended, pair[1].proof.value), numeric=False),
        *bound_columns(comparison.graph.total_cost, lambda pair: pair[1]),
        Column("made by", lambda pair: None if pair[0].report is None else maker(pair[0].report), numeric=False),
    ]
    return Table(columns, list(zip(rows, comparison.rows, strict=True)))
