"""The report on a plan as GitHub workflow commands, which annotate the plan's file in a pull request."""

from __future__ import annotations

from collections.abc import Callable

from remat_cli.errors import SHOWN_PROBLEMS
from remat_cli.plan.check import Report
from remat_cli.plan.replay import Severity
from remat_cli.printable import printable
from remat_cli.reports.words import overhead_words, peak_words, verdict


def plan_github(report: Report, *, plan_path: str, line_of: Callable[[int], int | None]) -> str:
    """One ``::error`` or ``::warning`` per finding, the first 20 and then a count; a ``::notice`` if there are none.

    Args:
        report: The plan as replayed.
        plan_path: The plan's file, relative to the root of the repository.
        line_of: Line, from 1, of the statement with an index in that file; None when unknown.
    """
    lines = []
    errors_first = sorted(report.findings, key=lambda f: f.severity is not Severity.ERROR)
    for finding in errors_first[:SHOWN_PROBLEMS]:
        line = None if finding.statement is None else line_of(finding.statement)
        level = "error" if finding.severity is Severity.ERROR else "warning"
        lines.append(command(level, finding.message, file=plan_path, line=line, title=f"remat: {finding.code}"))
    rest = errors_first[SHOWN_PROBLEMS:]
    if rest:
        level = "error" if any(f.severity is Severity.ERROR for f in rest) else "warning"
        lines.append(command(level, f"and {len(rest)} more findings", file=plan_path, title="remat"))
    if report.ok:
        summary = f"{verdict(report)}: {peak_words(report)}, {overhead_words(report)}"
        lines.append(command("notice", summary, file=plan_path, title="remat"))
    return "".join(f"{line}\n" for line in lines)


def command(name: str, message: str, **properties: str | int | None) -> str:
    """The workflow command ``::name key=value,...::message``, escaped for GitHub; None values are left out."""
    given = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items() if value is not None)
    return f"::{name}{' ' if given else ''}{given}::{_data(message)}"


def _data(text: str) -> str:
    return printable(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
