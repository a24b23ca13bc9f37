"""The report on a plan as text, after ``remat solve`` and ``remat check``, and its two tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from remat_cli.control import Ending
from remat_cli.errors import SHOWN_PROBLEMS
from remat_cli.graph.splitting import parts_words
from remat_cli.plan.check import OVER_BUDGET, Report
from remat_cli.plan.queues import Queue
from remat_cli.plan.replay import Severity
from remat_cli.reports.style import Mark, Style, cells, fields, render, ruler, title
from remat_cli.reports.table import Column, Table, each
from remat_cli.reports.words import (
    certainty,
    cost_column,
    cost_words,
    count,
    critical_words,
    ending_words,
    exact_bytes,
    graph_words,
    least_peak_words,
    maker,
    overhead_words,
    peak_words,
    queue_words,
    share_column,
    share_words,
    size_column,
    stall_words,
    verdict,
)
from remat_cli.units import format_bytes, format_duration, format_percent

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


SHOWN_ROWS = 8
"""Rows of every table; the others are counted."""


def plan_text(
    report: Report,
    style: Style,
    *,
    run: Mapping[str, Any] | None = None,
    ending: Ending | None = None,
    checking: bool = False,
    cached: str | None = None,
) -> str:
    """The report on a plan: budget, peak, cost, claim, values at the peak, and recomputed nodes.

    Args:
        report: The plan as replayed.
        style: The layout.
        run: Timings in seconds under names that end in ``_s``; the largest is the whole.
        ending: How the search ended; None for a plan that comes from a file.
        checking: Whether a plan is checked rather than made, so that its claim is only reported.
        cached: Name of the file of the plan cache that it was found in; None for a plan that was just made.
    """
    parts: list[RenderableType] = [verdict_line(report, style)]
    if ending is not None and (ended := ending_words(ending)):
        parts.append(_plain(style.clean(ended)))
    if not report.valid:
        parts += findings_lines(report, style)
    parts += ["", fields(_summary(report, style, run or {}, checking, cached), style), ""]
    parts += memory_bar(report, style.columns, style)
    parts += peak_section(report, style)
    parts += recomputed_section(report, style)
    if report.valid:
        parts += findings_lines(report, style)
    return render(style, *parts)


def verdict_line(report: Report, style: Style) -> Text:
    """The answer, with the peak and the overhead."""
    from rich.text import Text

    good = report.ok
    tail = f": {peak_words(report)}" + (f", {overhead_words(report)}" if report.valid else "")
    return Text.assemble((f"{style.verdict(good)} {verdict(report)}", "bold green" if good else "bold red"), tail)


def _plain(words: str) -> Text:
    from rich.text import Text

    return Text(words)


def _summary(
    report: Report, style: Style, run: Mapping[str, Any], checking: bool, cached: str | None
) -> list[tuple[str, str]]:
    """The budget and the results, as labelled lines."""
    graph = report.graph
    rows = [("graph", f"{style.clean(graph.name)}: {graph_words(graph)}"), ("made by", style.clean(maker(report)))]
    rows += budget_rows(report, style)
    peak = report.replay.peak_bytes
    before = report.no_remat_peak_bytes
    against = "the same as no-remat" if peak == before else f"{share_words(peak, before)} of no-remat" if before else ""
    rows.append(("peak", f"{exact_bytes(peak)}{', ' if against else ''}{against}"))
    rows += cost_rows(report, style)
    if report.queues:
        rows += queue_rows(report)
    if report.order is not None:
        rows.append(("order", f"not the document's; found by {style.clean(report.order)}"))
    rows.append(("claim" if checking else "optimal?", claim_line(report, style, checking=checking)))
    if report.valid and report.claim.peak is not None:
        rows.append(("least peak?", least_peak_words(report)))
    if cached:
        rows.append(("cached", f"not solved again, only replayed: {style.clean(cached)}"))
    elif timing := _timing(run):
        rows.append(("time", timing))
    return rows


def budget_rows(report: Report, style: Style) -> list[tuple[str, str]]:
    """The budget as asked and in bytes, and its two parts."""
    if report.budget_bytes is None:
        return [("budget", "none given")]
    budget, fixed = report.budget_bytes, report.graph.fixed_memory
    asked = ""
    if report.budget_text and report.budget_text != str(budget):
        asked = f"{style.clean(report.budget_text)} = "
        if report.budget_text.endswith("%"):
            asked = f"{style.clean(report.budget_text)} of no-remat {format_bytes(report.no_remat_peak_bytes)} = "
    if fixed == 0:
        parts = "all of it for values and workspace (no fixed memory)"
    elif budget >= fixed:
        parts = f"{format_bytes(fixed)} fixed memory + {format_bytes(budget - fixed)} for values and workspace"
    else:
        parts = f"fixed memory alone takes {format_bytes(fixed)}"
    return [("budget", asked + exact_bytes(budget)), ("", parts)]


def cost_rows(report: Report, style: Style) -> list[tuple[str, str]]:
    """The cost, and what of it is for regions in parts."""
    graph, rows = report.graph, [("cost", cost_line(report))]
    if graph.origin is not None:
        more = cost_words(graph.total_cost - graph.whole.total_cost, graph.cost_unit)
        rows.append(("in parts", f"{style.clean(parts_words(graph))}: {'' if more.startswith('-') else '+'}{more}"))
    return rows


def cost_line(report: Report) -> str:
    """The cost and the part of it that is recomputation."""
    graph, cost = report.graph.whole, report.replay.time
    words = cost_words(cost, graph.cost_unit)
    if report.queues and report.valid:
        again = report.replay.cost - graph.total_cost
        extra = f"recomputation +{cost_words(again, graph.cost_unit)}" if report.recomputed else "nothing is recomputed"
        return f"{words}, {format_percent(report.overhead)} over no-remat; {extra}; {stall_words(report)}"
    if not report.valid and cost < graph.no_remat_cost:
        return f"{words}; computing every node once costs {cost_words(graph.no_remat_cost, graph.cost_unit)}"
    once = "" if report.recomputed else "; nothing is recomputed"
    if once and graph is report.graph:
        return f"{words}{once}"
    if graph.no_remat_cost == 0 or (report.recomputed and all(r.extra_cost == 0 for r in report.recomputed)):
        return f"{words}; recomputation costs nothing"
    extra = cost_words(cost - graph.no_remat_cost, graph.cost_unit)
    return f"{words}, {format_percent(report.overhead)} over no-remat (+{extra}){once}"


def queue_rows(report: Report) -> list[tuple[str, str]]:
    """The collectives, the host and what is copied, and how busy the queues are."""
    replay, host = report.replay, report.host
    if replay.timing is None:
        return []
    rows = []
    spans_of = {queue: [s for s in replay.timing.spans if s.queue is queue] for queue in report.queues}
    if collectives := spans_of.get(Queue.COMMUNICATION):
        takes = cost_words(replay.timing.busy(Queue.COMMUNICATION), report.graph.cost_unit)
        rows.append(("collectives", f"{len(collectives):,}, which take {takes}"))
    if host is not None:
        rows.append(("host", host.words))
        copies = {queue: spans_of[queue] for queue in (Queue.OUT, Queue.IN)}
        if not any(copies.values()):
            rows.append(("copies", "none"))
            if not collectives:
                return rows
        else:
            counts = ", ".join(f"{count(len(s), 'copy', 'copies')} {queue.value}" for queue, s in copies.items())
            rows.append(("copies", f"{counts}; at most {exact_bytes(replay.host_peak_bytes)} of host memory"))
    rows.append(("busy", queue_words(report)))
    rows.append(("critical", f"path of the time: {critical_words(report)}"))
    return rows


def claim_line(report: Report, style: Style, *, checking: bool) -> str:
    """How certain it is that no cheaper plan fits; in a check, as a claim."""
    if not report.valid:
        return "void: the plan is invalid"
    words = certainty(report)
    if checking and not words.startswith("certainly"):
        return f"{words}. Claimed by the strategy for {_made_for(report)}; not verified here"
    return words


def _made_for(report: Report) -> str:
    """The budget for which the claim holds, with its size if the report is about another budget."""
    if report.made_for_bytes is None:
        return "an unlimited budget"
    own = "the plan's own budget"
    return own if report.made_for_bytes == report.budget_bytes else f"{own} of {exact_bytes(report.made_for_bytes)}"


def _timing(run: Mapping[str, Any]) -> str:
    """``12.3 s (build 1.20 s, solver 10.1 s)``: the longest is the whole."""
    seconds = {
        str(name).removesuffix("_s").replace("_", " "): float(value)
        for name, value in run.items()
        if str(name).endswith("_s") and isinstance(value, int | float) and not isinstance(value, bool)
    }
    if not seconds:
        return ""
    whole = max(seconds, key=lambda name: seconds[name])
    parts = ", ".join(f"{name} {format_duration(value)}" for name, value in seconds.items() if name != whole)
    return format_duration(seconds[whole]) + (f" ({parts})" if parts else "")


def peak_section(report: Report, style: Style) -> list[RenderableType]:
    """The statement of the peak and the largest values in memory there."""
    at = report.replay.peak_statement
    if at is None:
        return []
    node = "" if report.peak_node is None else f", node {style.short(report.peak_node, style.columns // 2)}"
    heading = title("At the peak", f": statement {at:,} of {len(report.replay.profile):,}{node}")
    table = peak_table(report, SHOWN_ROWS)
    return [heading, table.text(style, head=False) if table.rows else _plain("  nothing")]


def recomputed_section(report: Report, style: Style) -> list[RenderableType]:
    """The recomputed nodes with the largest extra cost."""
    if not report.recomputed:
        return []
    heading = title("Recomputed", f": {recomputed_words(report)}")
    return [heading, recomputed_table(report, SHOWN_ROWS).text(style, head=False)]


def findings_lines(report: Report, style: Style) -> list[RenderableType]:
    """The first findings, and the number of the others."""
    from rich.text import Text

    findings = [f for f in report.findings if f.code != OVER_BUDGET]  # the verdict has that one
    if not findings:
        return []
    errors = sum(f.severity is Severity.ERROR for f in findings)
    warnings = len(findings) - errors
    counts = [count(errors, "error")] if errors else []
    counts += [count(warnings, "warning")] if warnings else []
    lines: list[RenderableType] = [title("Findings", f": {', '.join(counts)}")]
    table = [
        (
            Text(f"{f.severity.value}", style="red" if f.severity is Severity.ERROR else "yellow"),
            Text.assemble(style.clean(f.message), (f" [{style.clean(f.code)}]", "dim")),
        )
        for f in findings[:SHOWN_PROBLEMS]
    ]
    lines.append(_hanging(table))
    if len(findings) > SHOWN_PROBLEMS:
        lines.append(_plain(f"  and {len(findings) - SHOWN_PROBLEMS:,} more"))
    return lines


def _hanging(rows: list[tuple[Text, Text]]) -> RenderableType:
    from rich.table import Table as RichTable

    grid = RichTable.grid(padding=(0, 1, 0, 0), expand=True)
    grid.add_column(width=1)
    grid.add_column(width=max(len(label) for label, _ in rows), no_wrap=True)
    grid.add_column(ratio=1, overflow="fold")
    for label, message in rows:
        grid.add_row("", label, message)
    return grid


def peak_table(report: Report, most: int) -> Table[tuple[str, int]]:
    """Size and share of the ``most`` largest values in memory at the peak; then the others as one row, and the rest."""
    peak = report.replay.peak_bytes
    rows = [(r.value, r.size_bytes) for r in report.peak_values[:most]]
    if rest := report.peak_values[most:]:
        rows.append((f"and {len(rest):,} more", sum(r.size_bytes for r in rest)))
    if report.replay.workspace_bytes:
        rows.append(("workspace", report.replay.workspace_bytes))
    if report.graph.fixed_memory:
        rows.append(("fixed memory", report.graph.fixed_memory))
    columns: list[Column[tuple[str, int]]] = [
        Column("value", itemgetter(0), numeric=False),
        Column("size", itemgetter(1), size_column),
        Column("of the peak", itemgetter(1), lambda sizes: share_column(sizes, peak)),
    ]
    return Table(columns, rows, share=lambda row: row[1] / peak if peak else 0.0)


def recomputed_table(report: Report, most: int) -> Table[tuple[str, int | None, float]]:
    """Computations and extra cost of the ``most`` most expensive nodes computed again; then the others as one row."""
    nodes, unit = report.recomputed, report.graph.cost_unit
    extra = math.fsum(r.extra_cost for r in nodes)
    rows: list[tuple[str, int | None, float]] = [(r.node, r.times, r.extra_cost) for r in nodes[:most]]
    if rest := nodes[most:]:
        rows.append((f"and {len(rest):,} more", None, math.fsum(r.extra_cost for r in rest)))
    columns: list[Column[tuple[str, int | None, float]]] = [
        Column("node", itemgetter(0), numeric=False),
        Column("times computed", itemgetter(1), each("{:,}".format), unit="times"),
        Column("extra cost", itemgetter(2), lambda costs: cost_column(costs, unit)),
        Column("of all extra cost", itemgetter(2), lambda costs: share_column(costs, extra)),
    ]
    return Table(columns, rows, share=lambda row: row[2] / extra if extra else 0.0)


def recomputed_words(report: Report) -> str:
    """``3 nodes, 5 extra computations``."""
    again = sum(r.times - 1 for r in report.recomputed)
    return f"{count(len(report.recomputed), 'node')}, {count(again, 'extra computation')}"


def memory_bar(report: Report, width: int, style: Style) -> list[Text]:
    """Peak and budget as a bar: fixed memory, the rest of the peak, the unused or missing part, the no-remat peak."""
    fixed, peak, budget = report.graph.fixed_memory, report.replay.peak_bytes, report.budget_bytes
    before = report.no_remat_peak_bytes
    scale = max(fixed, peak, budget or 0, before)
    if budget is not None and budget > 4 * max(peak, before):  # a budget far away would squeeze all the rest
        budget, scale = None, max(fixed, peak, before)
    if scale == 0:
        return []
    limit = peak if budget is None else budget
    kinds = (
        (fixed, style.glyph("▒", "="), "blue"),
        (min(peak, limit), style.glyph("█", "#"), "cyan"),
        (peak, style.glyph("▓", "!"), "red"),
        (limit, style.glyph("░", "."), "dim"),
        (scale, style.glyph("·", " "), "dim"),
    )
    bar = [
        next(
            ((glyph, colour) for upto, glyph, colour in kinds if (2 * column + 1) * scale <= 2 * width * upto),
            (" ", ""),
        )
        for column in range(width)
    ]

    def column_of(amount: int) -> int:
        return min(width - 1, max(0, (2 * width * amount + scale) // (2 * scale) - 1))

    marks = [Mark(column_of(peak), f"peak {format_bytes(peak)}", leftward=budget is not None and budget > peak)]
    if budget is not None:
        at = column_of(budget)
        if budget == peak:
            marks = [Mark(at, f"peak = budget {format_bytes(budget)}", "bold")]
        else:
            marks.append(Mark(at, f"budget {format_bytes(budget)}", "bold", leftward=budget < peak))
        bar[at] = (style.glyph("┃", "|"), "bold")
    if 0 < fixed < peak:
        marks.append(Mark(column_of(fixed), f"fixed {format_bytes(fixed)}", "blue"))
    if before != peak:
        marks.append(Mark(column_of(before), f"no-remat {format_bytes(before)}", "dim", leftward=True))
    return [cells(bar), *ruler(marks, width, style)]
