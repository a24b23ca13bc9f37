"""Reports on several plans and on one node: whatever the plans are, they fit, are well-formed and draw nothing."""

import json
from fractions import Fraction
from xml.etree import ElementTree

import jsonschema
from hypothesis import given, settings
from hypothesis import strategies as st
from report_cases import STYLES, plans
from test_report_any import assert_fits

from remat_cli.errors import Problem
from remat_cli.graph.document import load_schema
from remat_cli.plan.check import Checked, check
from remat_cli.plan.difference import beyond, compare_plans
from remat_cli.plan.explanation import explain
from remat_cli.plan.model import Plan
from remat_cli.reports.checks import checks_document, checks_github, checks_junit, checks_text, plans_sarif
from remat_cli.reports.diff import diff_document, diff_github, diff_markdown, diff_text
from remat_cli.reports.documents import document_json
from remat_cli.reports.explanation import explanation_document, explanation_text
from remat_cli.reports.style import Style

NAMES = st.sampled_from(["a.plan.json", "plans/" + "x" * 200, "[red]ü[/red]", "\x1b[31mbell\x07", "-"])


def _object(required: list[str], **properties: object) -> dict[str, object]:
    """An object that has no other properties, as everywhere in SARIF."""
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


def _list(items: dict[str, object], *, unique: bool = False) -> dict[str, object]:
    return {"type": "array", "items": items, "uniqueItems": unique}


_MESSAGE = _object(["text"], text={"type": "string", "minLength": 1})
_URI = {"type": "string", "pattern": r"^([A-Za-z0-9._~!$&'()*+,;=:@/?#-]|%[0-9A-Fa-f]{2})+$"}  # RFC 3986, loosely
_ARTIFACT = _object(["uri"], uri=_URI, uriBaseId={"enum": ["%SRCROOT%"]})
_POSITION = {"type": "integer", "minimum": 1}
_REGION = _object(["startLine"], startLine=_POSITION, startColumn=_POSITION)
_LOCATION = _object(
    ["physicalLocation"], physicalLocation=_object(["artifactLocation"], artifactLocation=_ARTIFACT, region=_REGION)
)
_RULE = _object(["id"], id={"type": "string", "minLength": 1}, shortDescription=_MESSAGE)
_RESULT = _object(
    ["message"],
    ruleId={"type": "string"},
    ruleIndex={"type": "integer", "minimum": -1},
    level={"enum": ["none", "note", "warning", "error"]},
    message=_MESSAGE,
    locations=_list(_LOCATION),
)
_DRIVER = _object(["name"], name={"const": "remat"}, version={"type": "string"}, rules=_list(_RULE, unique=True))
_RUN = _object(
    ["tool"],
    tool=_object(["driver"], driver=_DRIVER),
    artifacts=_list(_object([], location=_ARTIFACT), unique=True),
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    results=_list(_RESULT),
)
SARIF = jsonschema.Draft202012Validator(
    _object(["version", "runs"], **{"$schema": {"type": "string"}, "version": {"const": "2.1.0"}, "runs": _list(_RUN)})
)
"""What SARIF 2.1.0 (OASIS, sections 3.13 to 3.52) says of the properties that are used here, and no others."""


def assert_junit(root: ElementTree.Element) -> None:
    """As readers of JUnit's XML have it: suites of cases, a case with at most one verdict, then what it said."""
    numbers = {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}
    assert root.tag == "testsuites"
    for suite in root:
        assert suite.tag == "testsuite"
        assert set(suite.attrib) == {"name", *numbers}
        for case in suite:
            assert (case.tag, set(case.attrib)) == ("testcase", {"classname", "name"})
            verdicts = [part for part in case if part.tag in {"failure", "error", "skipped"}]
            assert len(verdicts) <= 1
            assert [part.tag for part in case] in (
                [v.tag for v in verdicts],
                [*(v.tag for v in verdicts), "system-out"],
            )
            assert all(v.get("message") and (v.get("type") or v.tag == "skipped") for v in verdicts)
    for element in (root, *root):
        for number, tag in numbers.items():
            assert int(element.get(number)) == len(list(element.iter(tag)))


@settings(max_examples=80)
@given(old=plans(), new=plans(), style=STYLES, name=NAMES, percent=st.none() | st.integers(0, 50))
def test_differences(old: Plan, new: Plan, style: Style, name: str, percent: int | None) -> None:
    difference = compare_plans(check(old), check(new))
    allowed = None if percent is None else Fraction(percent)
    found = beyond(difference, max_cost_increase=allowed, max_peak_increase=allowed)
    assert_fits(diff_text(difference, found, style), style)
    told = diff_markdown(difference, found, old_path=name, new_path=name)
    assert all(c == "\n" or c.isprintable() for c in told)
    document = diff_document(difference, found, old_path=name, new_path=name)
    jsonschema.Draft202012Validator(load_schema("diff")).validate(document)
    json.dumps(document, allow_nan=False)
    for line in diff_github(difference, found, new_path=name).splitlines():
        assert line.startswith(("::error ", "::notice ", "::warning "))


@settings(max_examples=80)
@given(some=st.lists(st.tuples(plans(), NAMES), max_size=3), style=STYLES, name=NAMES)
def test_many(some: list[tuple[Plan, str]], style: Style, name: str) -> None:
    problem = Problem("\x1b[31m is no plan", pointer="/a\x07", line=3, column=None, hint="write one")
    many = [*(Checked(path, check(plan)) for plan, path in some), Checked(name, problems=(problem,) * 30)]
    assert_fits(checks_text(many, style), style)
    jsonschema.Draft202012Validator(load_schema("checks")).validate(checks_document(many))
    assert len(ElementTree.fromstring(checks_junit(many).encode())) == len(many)
    log = json.loads(plans_sarif(many))
    SARIF.validate(log)
    assert len(log["runs"][0]["artifacts"]) == len({one.name for one in many})
    assert_junit(ElementTree.fromstring(checks_junit(many).encode()))
    assert all(line.startswith("::") for line in checks_github(many).splitlines())


@settings(max_examples=80)
@given(plan=plans(), style=STYLES, data=st.data())
def test_explanations(plan: Plan, style: Style, data: st.DataObject) -> None:
    node = data.draw(st.integers(0, len(plan.graph.nodes) - 1))
    told = explain(plan, check(plan), node)
    assert_fits(explanation_text(told, style), style)
    document = json.loads(document_json(explanation_document(told)))
    jsonschema.Draft202012Validator(load_schema("explanation")).validate(document)
    assert [len(document[kind]) for kind in ("keep", "drop")] == [len(told.keep), len(told.drop)]
