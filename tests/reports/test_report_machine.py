"""Reports for machines: JSON, GitHub workflow commands, JUnit."""

import dataclasses
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from report_cases import checkpointed, plan_of, training_chain

from remat_cli.graph.model import Graph, Node
from remat_cli.graph.summary import summarize
from remat_cli.plan.check import Checked, Report, check
from remat_cli.plan.derive import peak
from remat_cli.plan.model import ClaimStatus
from remat_cli.plan.replay import Finding, Severity
from remat_cli.reports.checks import checks_junit, command, plan_github
from remat_cli.reports.documents import document_json, report_document
from remat_cli.reports.graph import graph_summary_document

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "report-v1.json").read_text())
GRAPH = training_chain()
COMPUTES = checkpointed()
PEAK = peak(GRAPH, COMPUTES)
GOOD = check(plan_of(GRAPH, COMPUTES, PEAK + 1, asked="90%"))
OVER = check(plan_of(GRAPH, COMPUTES, PEAK - 1))


def broken() -> Report:
    plan = plan_of(GRAPH, COMPUTES, PEAK)
    return check(dataclasses.replace(plan, statements=plan.statements[:3]))


def with_findings(*findings: Finding) -> Report:
    return dataclasses.replace(GOOD, findings=findings)


def no_line(statement: int) -> None:
    return None


@pytest.mark.parametrize("report", [GOOD, OVER, broken()], ids=["good", "over", "broken"])
def test_document_follows_the_schema(report: Report) -> None:
    jsonschema.validate(report_document(report), SCHEMA, cls=jsonschema.Draft202012Validator)


def test_document_says_what_was_seen_and_what_was_claimed() -> None:
    document = report_document(GOOD)
    assert document["valid"] is True
    assert document["within_budget"] is True
    assert (document["budget"], document["budget_asked"]) == (PEAK + 1, "90%")
    assert (document["peak_memory"], document["fixed_memory"]) == (PEAK, 1_230_000_000)
    assert document["peak_node"] == "grad_conv1_1"
    assert sum(v["bytes"] for v in document["peak_values"]) + 1_230_000_000 == PEAK
    assert document["cost"] == document["lower_bound"] == 8.5e12
    assert document["gap"] == 0
    assert document["overhead"] == pytest.approx(8.5 / 7.2 - 1)
    assert document["recomputed"][0] == {"node": "conv1_0", "times": 2, "cost": 3e11}
    assert document["claim"]["scope"] == "frontier"
    assert document["findings"] == []


def test_document_leaves_unknown_numbers_out() -> None:
    free = Graph("free", (Node("a", 0.0, (), (1,)),), (0,))
    document = report_document(check(plan_of(free, [0], None, status=ClaimStatus.FEASIBLE)))
    assert document["within_budget"] is None
    assert document["overhead"] is None
    assert document["lower_bound"] is None
    assert document["gap"] is None
    jsonschema.validate(document, SCHEMA, cls=jsonschema.Draft202012Validator)


def test_json_has_stable_bytes() -> None:
    text = document_json(report_document(GOOD))
    assert text == document_json(report_document(check(plan_of(GRAPH, COMPUTES, PEAK + 1, asked="90%"))))
    assert text.endswith("}\n")
    assert text.isascii()
    assert list(json.loads(text)) == sorted(json.loads(text))


def test_summary_as_json() -> None:
    summary = summarize(GRAPH)
    document = json.loads(document_json(graph_summary_document(summary)))
    assert document == json.loads(json.dumps(graph_summary_document(summary)))
    assert document["schema"] == "remat-graph-summary/1"
    assert document["phases"] == {"forward": 12, "loss": 1, "backward": 12}
    assert document["working_sets"][0] == {"name": "grad_conv0_1", "bytes": 8557352940}


def test_github_notice_when_all_is_well() -> None:
    text = plan_github(GOOD, plan_path="plans/a.json", line_of=no_line)
    assert text == ("::notice file=plans/a.json,title=remat::fits: peak 10.84 GB of 10.84 GB, 18.1%25 over no-remat\n")


def test_github_names_the_line() -> None:
    text = plan_github(OVER, plan_path="p.json", line_of=lambda statement: statement + 3)
    at = OVER.replay.peak_statement
    assert at is not None
    assert text == (
        f"::error file=p.json,line={at + 3},title=remat%3A over-budget::statement {at}: peak memory 10.84 GB is 1 B "
        f"over the budget of 10.84 GB ({PEAK} bytes, budget {PEAK - 1})\n"
    )


def test_github_escapes() -> None:
    assert command("error", "50%\r\n::warning::x", file="a,b:c%\n.json", line=None, title="t") == (
        "::error file=a%2Cb%3Ac%25%0A.json,title=t::50%25%0D%0A::warning::x"
    )
    assert command("notice", "hi") == "::notice::hi"
    report = with_findings(Finding("c", "evil\n::set-output name=x::1", None))
    text = plan_github(report, plan_path="p\n::x", line_of=no_line)
    assert text == "::error file=p%0A%3A%3Ax,title=remat%3A c::evil%0A::set-output name=x::1\n"


def test_github_errors_come_first_and_are_limited() -> None:
    warnings = [Finding("w", f"w{i}", i, Severity.WARNING) for i in range(10)]
    errors = [Finding("e", f"e{i}", i) for i in range(15)]
    lines = plan_github(with_findings(*warnings, *errors), plan_path="p", line_of=no_line).splitlines()
    assert len(lines) == 21
    assert all(line.startswith("::error ") for line in lines[:15])
    assert all(line.startswith("::warning ") for line in lines[15:])
    assert lines[-1].endswith("::and 5 more findings")


def test_github_warnings_do_not_hide_the_notice() -> None:
    text = plan_github(with_findings(Finding("w", "w", None, Severity.WARNING)), plan_path="p", line_of=no_line)
    assert [line.split(" ")[0] for line in text.splitlines()] == ["::warning", "::notice"]


def suite_of(report: Report, path: str = "p.json") -> dict[str, ElementTree.Element]:
    text = checks_junit([Checked(path, report)])
    assert text == checks_junit([Checked(path, report)])
    root = ElementTree.fromstring(text.encode())
    assert root.tag == "testsuites"
    suite = root[0]
    assert (suite.get("tests"), suite.get("errors")) == ("3", "0")
    assert suite.get("failures") == root.get("failures") == str(len(suite.findall("testcase/failure")))
    assert suite.get("skipped") == str(len(suite.findall("testcase/skipped")))
    return {str(case.get("name")): case for case in suite}


def kinds(case: ElementTree.Element) -> list[str]:
    return [child.tag for child in case]


def test_junit_passes() -> None:
    cases = suite_of(GOOD)
    assert list(cases) == ["valid plan", "within budget", "claim"]
    assert all(kinds(case) == ["system-out"] for case in cases.values())
    assert cases["claim"].findtext("system-out", "").startswith("as claimed: proven optimal among")


def test_junit_over_budget_fails_one_case() -> None:
    cases = suite_of(OVER)
    assert kinds(cases["valid plan"]) == ["system-out"]
    failure: Any = cases["within budget"].find("failure")
    assert failure.get("type") == "over-budget"
    assert "is 1 B over the budget" in failure.get("message")


def test_junit_invalid_plan() -> None:
    cases = suite_of(broken())
    failure: Any = cases["valid plan"].find("failure")
    assert "errors: " in failure.get("message")
    assert failure.text.endswith("more")
    assert kinds(cases["within budget"]) == ["system-out"]
    assert kinds(cases["claim"]) == ["failure", "system-out"]


def test_junit_without_budget_skips_that_case() -> None:
    cases = suite_of(check(plan_of(GRAPH, COMPUTES, None)))
    assert kinds(cases["within budget"]) == ["skipped", "system-out"]


def test_junit_escapes_what_xml_forbids_or_a_terminal_obeys() -> None:
    report = with_findings(Finding("odd", "a\x00b\x1b<&>\ud800\ufffe\n]]>", 0))
    failure: Any = suite_of(report, path='p"\x08<.json')["valid plan"].find("failure")
    assert failure.get("message") == r"a\x00b\x1b<&>\ud800\ufffe\n]]>"
    assert failure.text == r"odd: a\x00b\x1b<&>\ud800\ufffe\n]]>"
