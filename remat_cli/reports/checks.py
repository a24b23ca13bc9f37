"""The report on several plans checked at once: as text, as a document, and for continuous integration.

Workflow commands of GitHub annotate the file of a plan in a pull request. Test dashboards read JUnit XML. Code scanning
of GitHub and GitLab, and editors, read SARIF 2.1.0 (OASIS, 27 March 2020); its rules are the codes of findings, which
never change. The documents have no times and no absolute paths, so the same plans give the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from xml.etree import ElementTree

from remat_cli.errors import SHOWN_PROBLEMS, Problem, on_command_line
from remat_cli.plan.check import OVER_BUDGET, Checked, Report
from remat_cli.plan.replay import Finding, Severity
from remat_cli.printable import printable
from remat_cli.reports.documents import document_json, report_document
from remat_cli.reports.style import Style, render, title
from remat_cli.reports.table import Table, text_columns
from remat_cli.reports.words import certainty, cost_words, count, overhead_words, peak_words, verdict
from remat_cli.units import format_bytes
from remat_cli.version import __version__

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


def worst_code(plans: Sequence[Checked]) -> int:
    """The exit code for all plans: 2 if any cannot be read, else 1 if any is invalid or over budget, else 0."""
    return max(({"ok": 0, "no": 1, "unreadable": 2}[status(checked)] for checked in plans), default=0)


def plan_github(report: Report, *, plan_path: str, line_of: Callable[[int], int | None]) -> str:
    """One ``::error`` or ``::warning`` per finding, the first 20 and then a count; a ``::notice`` if there are none."""
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


def checks_github(plans: Sequence[Checked]) -> str:
    """The annotations of every plan in turn, and a notice or an error with the summary."""
    text = ""
    for checked in plans:
        if checked.report is not None:
            text += plan_github(checked.report, plan_path=checked.name, line_of=checked.line_of)
            continue
        for problem in checked.problems[:SHOWN_PROBLEMS]:
            words, place = _problem_words(problem), {"line": problem.line, "col": problem.column}
            text += command("error", words, file=checked.name, **place, title="remat: unreadable") + "\n"
        if rest := checked.problems[SHOWN_PROBLEMS:]:
            text += command("error", f"and {len(rest)} more problems", file=checked.name, title="remat") + "\n"
    level = "notice" if all(checked.ok for checked in plans) else "error"
    return text + command(level, summary(plans), title="remat check") + "\n"


def command(name: str, message: str, **properties: str | int | None) -> str:
    """The workflow command ``::name key=value,...::message``, escaped for GitHub; None values are left out."""
    texts = {key: _data(str(value)) for key, value in properties.items() if value is not None}
    pairs = ",".join(f"{key}={text.replace(':', '%3A').replace(',', '%2C')}" for key, text in texts.items())
    return f"::{name}{' ' if pairs else ''}{pairs}::{_data(message)}"


def _data(text: str) -> str:
    return printable(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))


def checks_junit(plans: Sequence[Checked]) -> str:
    """A test suite for each plan, with the cases ``valid plan``, ``within budget`` and ``claim``.

    Without a budget, ``within budget`` is skipped. A file that cannot be read is a suite with the one case
    ``readable``, an error. There are no times in it, so that the same plans give the same bytes.
    """
    return _document([_unreadable(c) if c.report is None else _suite(c.report, c.name) for c in plans])


def _document(suites: Sequence[ElementTree.Element]) -> str:
    """The suites as one document, with totals."""
    root = ElementTree.Element("testsuites", name="remat check")
    root.extend(suites)
    for number in ("tests", "failures", "errors", "skipped"):
        root.set(number, str(sum(int(suite.get(number, "0")) for suite in suites)))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _unreadable(checked: Checked) -> ElementTree.Element:
    name = printable(checked.name)
    suite = ElementTree.Element("testsuite", name=name, tests="1", failures="0", errors="1", skipped="0")
    case = ElementTree.SubElement(suite, "testcase", classname=name, name="readable")
    lines = [problem.text(checked.name) for problem in checked.problems[:SHOWN_PROBLEMS]]
    if len(checked.problems) > SHOWN_PROBLEMS:
        lines.append(f"and {len(checked.problems) - SHOWN_PROBLEMS} more")
    error = ElementTree.SubElement(case, "error", message=printable(lines[0]), type="unreadable")
    error.text = "\n".join(map(printable, lines))
    return suite


def _suite(report: Report, plan_path: str) -> ElementTree.Element:
    """The cases of one plan."""
    budget = [f for f in report.findings if f.code == OVER_BUDGET]
    claim = [f for f in report.findings if f.code.startswith("claimed-")]
    plan = [f for f in report.findings if f.code != OVER_BUDGET and not f.code.startswith("claimed-")]
    suite = ElementTree.Element("testsuite", name=printable(plan_path))
    cost = cost_words(report.replay.time, report.graph.cost_unit)
    failed = [
        _case(suite, plan_path, "valid plan", plan, f"cost {cost}, {overhead_words(report)}"),
        _case(suite, plan_path, "within budget", budget, peak_words(report), skipped=report.budget_bytes is None),
        _case(suite, plan_path, "claim", claim, f"as claimed: {certainty(report)}"),
    ]
    suite.attrib |= {"tests": "3", "failures": str(sum(failed)), "errors": "0"}
    suite.set("skipped", str(int(report.budget_bytes is None)))
    return suite


def _case(
    suite: ElementTree.Element, path: str, name: str, findings: Sequence[Finding], output: str, *, skipped: bool = False
) -> bool:
    """Add a test case; it fails if a finding is an error. Warnings go to its output, after ``output``."""
    case = ElementTree.SubElement(suite, "testcase", classname=printable(path), name=name)
    errors = [f for f in findings if f.severity is Severity.ERROR]
    if errors:
        message = errors[0].message if len(errors) == 1 else f"{count(len(errors), 'error')}: {errors[0].message}"
        failure = ElementTree.SubElement(case, "failure", message=printable(message), type=printable(errors[0].code))
        lines = [f"{f.code}: {f.message}" for f in errors[:SHOWN_PROBLEMS]]
        if len(errors) > SHOWN_PROBLEMS:
            lines.append(f"and {len(errors) - SHOWN_PROBLEMS} more")
        failure.text = "\n".join(map(printable, lines))
    if skipped:
        ElementTree.SubElement(case, "skipped", message=printable(output))
    lines = [output, *(f"warning: {f.message}" for f in findings if f.severity is not Severity.ERROR)]
    ElementTree.SubElement(case, "system-out").text = "\n".join(map(printable, lines))
    return bool(errors)


UNREADABLE = "unreadable"
RULES = {
    "claimed-bound": "The claimed lower bound is above the cost of the plan itself.",
    "claimed-cost": "The claimed cost differs from the replayed cost.",
    "claimed-gap": "The claimed gap does not follow from the claimed cost and lower bound.",
    "claimed-optimal": "The plan claims to be optimal, but its own bound leaves a gap.",
    "claimed-peak": "The claimed bound on the peak is above the peak of the plan itself.",
    "double-free": "A register is freed that is not allocated.",
    "double-release": "A host slot is released that holds nothing.",
    "freed-unused": "A register is freed before anything was computed into it.",
    "left-over": "A register is never freed, although it holds no output of the graph.",
    "missing-input": "A node is computed while one of its inputs is not in memory.",
    "missing-output": "An output of the graph is not in memory at the end.",
    "missing-register": "A node writes into a register that is not allocated.",
    "missing-slot": "A host slot is read that holds nothing.",
    "never-computed": "A node of the graph is never computed.",
    "no-host": "The plan copies values to a host, and was made for none.",
    "offload-empty": "A register is copied to the host before anything was computed into it.",
    "offload-forbidden": "A value is copied to the host although the graph forbids it.",
    "other-graph": "The plan is for a different graph.",
    "out-of-order": "A node is computed for the first time after a later node of the document.",
    "over-budget": "The peak memory of the plan is above the budget.",
    "overwritten": "A node writes into a register that already holds its value.",
    "recomputed": "A node that may be computed only once is computed again.",
    "register-count": "The number of registers of a compute differs from the number of outputs of its node.",
    "register-reused": "A register name is allocated twice.",
    "slot-left-over": "A host slot is never released.",
    "slot-reused": "A host slot is used a second time.",
    UNREADABLE: "The file contains no readable plan.",
    "value-live-twice": "A value is allocated while another register still holds it.",
    "wrong-register": "A node writes a value into a register that was allocated for another value.",
    "wrong-size": "The size of an allocation differs from the size of its value in the graph.",
}
"""The meaning of every code of a finding."""

_CODES = list(RULES)
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def plans_sarif(plans: Sequence[Checked]) -> str:
    """One run with a result for every finding and every problem; plans without any are only listed as artifacts."""
    results = []
    for checked in plans:
        for problem in checked.problems if checked.report is None else ():
            place = None if problem.line is None else (problem.line, problem.column or 1)
            results.append(_result(checked, UNREADABLE, "error", _problem_words(problem), place))
        for finding in () if checked.report is None else checked.report.findings:
            place = None if finding.statement is None else checked.place_of(finding.statement)
            results.append(_result(checked, finding.code, finding.severity.value, finding.message, place))
    used = sorted({str(result["ruleId"]) for result in results})
    driver = {
        "name": "remat",
        "version": __version__,
        "rules": [{"id": code, "shortDescription": {"text": RULES.get(code, code)}} for code in _CODES]
        + [{"id": code, "shortDescription": {"text": code}} for code in used if code not in RULES],
    }
    run = {
        "tool": {"driver": driver},
        # Each file once, as the standard demands, even if it is named twice.
        "artifacts": [{"location": location} for location in {c.name: _artifact(c) for c in plans}.values()],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return document_json({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})


def _problem_words(problem: Problem) -> str:
    words = ": ".join(part for part in (problem.pointer, problem.message) if part)
    return words + (f" ({on_command_line(problem.hint)})" if problem.hint else "")


def _result(checked: Checked, code: str, level: str, words: str, place: tuple[int, int] | None) -> dict[str, Any]:
    location: dict[str, Any] = {"artifactLocation": _artifact(checked)}
    if place is not None:
        location["region"] = {"startLine": place[0], "startColumn": place[1]}
    rule = {"ruleIndex": _CODES.index(code)} if code in RULES else {}
    return {
        "ruleId": code,
        **rule,
        "level": level,
        "message": {"text": words},
        "locations": [{"physicalLocation": location}],
    }


def _artifact(checked: Checked) -> dict[str, str]:
    """The file's location: relative to the root of the sources, unless its path is absolute."""
    path = PurePath(checked.name)
    if path.is_absolute():
        return {"uri": path.as_uri()}
    return {"uri": quote(path.as_posix()), "uriBaseId": "%SRCROOT%"}
