"""The report on a plan as JUnit XML, for test dashboards."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from remat_cli.errors import SHOWN_PROBLEMS
from remat_cli.plan.check import OVER_BUDGET, Report
from remat_cli.plan.checks import Checked
from remat_cli.plan.replay import Finding, Severity
from remat_cli.printable import printable
from remat_cli.reports.words import certainty, cost_words, count, overhead_words, peak_words


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
    name = _clean(checked.name)
    suite = ElementTree.Element("testsuite", name=name, tests="1", failures="0", errors="1", skipped="0")
    case = ElementTree.SubElement(suite, "testcase", classname=name, name="readable")
    lines = [problem.text(checked.name) for problem in checked.problems[:SHOWN_PROBLEMS]]
    if len(checked.problems) > SHOWN_PROBLEMS:
        lines.append(f"and {len(checked.problems) - SHOWN_PROBLEMS} more")
    error = ElementTree.SubElement(case, "error", message=_clean(lines[0]), type="unreadable")
    error.text = "\n".join(map(_clean, lines))
    return suite


def _suite(report: Report, plan_path: str) -> ElementTree.Element:
    """The cases of one plan."""
    budget = [f for f in report.findings if f.code == OVER_BUDGET]
    claim = [f for f in report.findings if f.code.startswith("claimed-")]
    plan = [f for f in report.findings if f.code != OVER_BUDGET and not f.code.startswith("claimed-")]
    suite = ElementTree.Element("testsuite", name=_clean(plan_path))
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
    suite: ElementTree.Element, path: str, name: str, findings: Sequence[Finding], said: str, *, skipped: bool = False
) -> bool:
    """Add a test case; it fails if a finding is an error. Warnings go to its output, after ``said``."""
    case = ElementTree.SubElement(suite, "testcase", classname=_clean(path), name=name)
    errors = [f for f in findings if f.severity is Severity.ERROR]
    if errors:
        message = errors[0].message if len(errors) == 1 else f"{count(len(errors), 'error')}: {errors[0].message}"
        failure = ElementTree.SubElement(case, "failure", message=_clean(message), type=_clean(errors[0].code))
        lines = [f"{f.code}: {f.message}" for f in errors[:SHOWN_PROBLEMS]]
        if len(errors) > SHOWN_PROBLEMS:
            lines.append(f"and {len(errors) - SHOWN_PROBLEMS} more")
        failure.text = "\n".join(map(_clean, lines))
    if skipped:
        ElementTree.SubElement(case, "skipped", message=_clean(said))
    lines = [said, *(f"warning: {f.message}" for f in findings if f.severity is not Severity.ERROR)]
    ElementTree.SubElement(case, "system-out").text = "\n".join(map(_clean, lines))
    return bool(errors)


def _clean(text: str) -> str:
    """One line of text that XML 1.0 can express and that a terminal may show."""
    return printable(text)
