"""The report on several plans checked at once, in every format of the report on one plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from remat_cli.plan.check import Checked
from remat_cli.reports.style import Style, render, title
from remat_cli.reports.table import Table, text_columns
from remat_cli.reports.words import count, overhead_words, peak_words, verdict
from remat_cli.units import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType

_WIDE = 72
"""Columns needed to show budgets and overheads."""
_SHOWN = 5
"""Findings of each plan that are listed; the others are counted."""


def status(checked: Checked) -> str:
    """``ok``, ``no`` (invalid or over budget) or ``unreadable``."""
    if checked.report is None:
        return "unreadable"
    return "ok" if checked.ok else "no"


def summary(plans: Sequence[Checked]) -> str:
    """``4 plans: 2 are fine, 1 is not, 1 cannot be read``."""
    counts = Counter(map(status, plans))
    good, bad, unread = counts["ok"], counts["no"], counts["unreadable"]
    parts = [f"{good or 'none'} {'are' if good > 1 else 'is'} fine"]
    parts += [f"{bad:,} {'is' if bad == 1 else 'are'} not"] if bad else []
    parts += [f"{unread:,} cannot be read"] if unread else []
    return f"{count(len(plans), 'plan')}: {', '.join(parts)}"


def checks_text(plans: Sequence[Checked], style: Style) -> str:
    """A row for each plan, the findings of the plans that have any, and a summary."""
    from rich.text import Text

    parts: list[RenderableType] = []
    if plans:
        shown = 5 if style.columns >= _WIDE else 3  # the names of files matter most
        columns = text_columns("plan", "verdict", "peak", "budget", "overhead")[:shown]
        parts.append(Table(columns, [_row(checked, style) for checked in plans]).text(style, head=False))
    for checked in plans:
        parts += _details(checked, style)
    good = all(checked.ok for checked in plans)
    return render(style, *parts, "", Text(summary(plans), style="bold green" if good else "bold red"))


def _row(checked: Checked, style: Style) -> tuple[str, ...]:
    mark = style.verdict(checked.ok)
    report = checked.report
    if report is None:
        return (f"{mark} {checked.name}", "unreadable", "", "", "")
    word = "invalid" if not report.valid else "over" if not report.within_budget else "fits"
    budget = "no budget" if report.budget_bytes is None else f"of {format_bytes(report.budget_bytes)}"
    overhead = overhead_words(report).removesuffix(" over no-remat") if report.recomputed else "0%"
    return (
        f"{mark} {checked.name}",
        "valid" if word == "fits" and report.budget_bytes is None else word,
        format_bytes(report.replay.peak_bytes),
        budget,
        f"+{overhead}" if report.valid and overhead.endswith("%") else "",
    )


def _details(checked: Checked, style: Style) -> list[RenderableType]:
    """The findings of one plan; empty if it has none."""
    from rich.padding import Padding
    from rich.text import Text

    report = checked.report
    if report is None:
        head = "cannot be read"
        lines = [problem.text(checked.name) for problem in checked.problems]
    else:
        head = f"{verdict(report)}: {peak_words(report)}"
        lines = [f"{f.severity.value}: {f.message} [{f.code}]" for f in report.findings]
        if report.ok and not lines:
            return []
    if len(lines) > _SHOWN:
        lines[_SHOWN:] = [f"and {len(lines) - _SHOWN:,} more"]
    shown = [Padding(Text(style.clean(line), overflow="fold"), (0, 0, 0, 2)) for line in lines]
    return [title(style.clean(checked.name), f": {head}"), *shown]


def checks_document(plans: Sequence[Checked]) -> dict[str, Any]:
    """The ``remat-checks/1`` document (schemas/checks-v1.json)."""
    from remat_cli.reports.documents import report_document

    counts = Counter(map(status, plans))
    return {
        "schema": "remat-checks/1",
        "ok": all(checked.ok for checked in plans),
        "counts": {name: counts[name] for name in ("ok", "no", "unreadable")},
        "plans": [
            {
                "path": checked.path,
                "status": status(checked),
                "report": None if checked.report is None else report_document(checked.report),
                "problems": [asdict(problem) for problem in checked.problems],
            }
            for checked in plans
        ],
    }


def checks_json(plans: Sequence[Checked]) -> str:
    """:func:`checks_document` as text with stable bytes."""
    from remat_cli.reports.documents import document_json

    return document_json(checks_document(plans))


def worst_code(plans: Sequence[Checked]) -> int:
    """The exit code for all plans: 2 if any cannot be read, else 1 if any is invalid or over budget, else 0."""
    return max(({"ok": 0, "no": 1, "unreadable": 2}[status(checked)] for checked in plans), default=0)
