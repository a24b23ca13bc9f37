"""The report on a plan as JUnit XML, for test dashboards."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from remat_cli.errors import SHOWN_PROBLEMS
from remat_cli.plan.check import OVER_BUDGET, Report
from remat_cli.plan.replay import Finding, Severity
from remat_cli.reports.words import certainty, cost_words, count, overhead_words, peak_words

_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, even escaped."""


def plan_junit(report: Report, *, plan_path: str) -> str:
    """One test suite with the cases ``valid plan``, ``within budget`` and ``claim``.

    Without a budget, ``within budget`` is skipped. There are no times in it, so that the same plan gives the
    same bytes.
    """
    budget = [f for f in report.findings if f.code == OVER_BUDGET]
    claim = [f for f in report.findings if f.code.startswith("claimed-")]
    plan = [f for f in report.findings if f.code != OVER_BUDGET and not f.code.startswith("claimed-")]
    root = ElementTree.Element("testsuites", name="remat check")
    suite = ElementTree.SubElement(root, "testsuite", name=_clean(plan_path))
    cost = cost_words(report.replay.cost, report.graph.cost_unit)
    failed = [
        _case(suite, plan_path, "valid plan", plan, f"cost {cost}, {overhead_words(report)}"),
        _case(suite, plan_path, "within budget", budget, peak_words(report), skipped=report.budget_bytes is None),
        _case(suite, plan_path, "claim", claim, f"as claimed: {certainty(report)}"),
    ]
    for element in (root, suite):
        element.attrib |= {"tests": "3", "failures": str(sum(failed)), "errors": "0"}
        element.set("skipped", str(int(report.budget_bytes is None)))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _case(
    suite: ElementTree.Element, path: str, name: str, findings: Sequence[Finding], said: str, *, skipped: bool = False
) -> bool:
    """Add a test case; it fails if a finding is an error. Warnings go to its output, beside what was ``said``."""
    case = ElementTree.SubElement(suite, "testcase", classname=_clean(path), name=name)
    errors = [f for f in findings if f.severity is Severity.ERROR]
    if errors:
        message = errors[0].message if len(errors) == 1 else f"{count(len(errors), 'error')}: {errors[0].message}"
        failure = ElementTree.SubElement(case, "failure", message=_clean(message), type=_clean(errors[0].code))
        lines = [f"{f.code}: {f.message}" for f in errors[:SHOWN_PROBLEMS]]
        if len(errors) > SHOWN_PROBLEMS:
            lines.append(f"and {len(errors) - SHOWN_PROBLEMS} more")
        failure.text = _clean("\n".join(lines))
    if skipped:
        ElementTree.SubElement(case, "skipped", message=_clean(said))
    lines = [said, *(f"warning: {f.message}" for f in findings if f.severity is not Severity.ERROR)]
    ElementTree.SubElement(case, "system-out").text = _clean("\n".join(lines))
    return bool(errors)


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("", text)
