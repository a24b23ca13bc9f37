"""``remat check`` on several plans, and patterns."""

import ast
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import pytest
from cli_process import TOY

from remat_cli.graph.document import load_schema
from remat_cli.plan import check as check_module
from remat_cli.plan import replay as replay_module
from remat_cli.reports.checks import RULES, UNREADABLE

FORMATS = ["text", "json", "github", "junit", "sarif"]


@pytest.fixture
def plans(remat):
    """``plans/``: a good plan, one that is over 210 MB, one whose third statement is gone, and one that is cut."""
    Path("plans/deep").mkdir(parents=True)
    assert remat("solve", TOY, "-b", "80%", "-q", "-o", "plans/good.json").code == 0
    assert remat("solve", TOY, "-b", "none", "-q", "-o", "plans/deep/keep.json").code == 0
    text = Path("plans/good.json").read_text(encoding="utf-8")
    document = json.loads(text)
    del document["statements"][2]
    Path("plans/broken.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    Path("plans/cut.json").write_text(text[:-100], encoding="utf-8")


def test_a_row_for_each_and_a_sum(remat, plans):
    checked = remat("check", "plans/**/*.json", "--budget", "210MB")
    assert (checked.code, checked.err) == (2, "")
    lines = checked.out.splitlines()
    assert [line.split()[1:3] for line in lines[:4]] == [
        ["plans/broken.json", "invalid"],
        ["plans/cut.json", "unreadable"],
        ["plans/deep/keep.json", "over"],
        ["plans/good.json", "fits"],
    ]
    assert lines[-1] == "4 plans: 1 is fine, 2 are not, 1 cannot be read"
    assert "[missing-register]" in checked.out
    assert "plans/cut.json:" in checked.out


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (("plans/good.json", "plans/deep/keep.json"), 0),
        (("plans/good.json", "plans/broken.json"), 1),
        (("plans/cut.json", "plans/broken.json", "plans/good.json"), 2),
        (("plans/g*.json",), 0),
        (("plans/b*.json",), 1),
        (("plans/c*.json",), 2),
        (("plans/x*.json",), 2),
        (("plans/good.json", "plans/x*.json"), 2),
        (("plans/good.json", "none.json"), 2),
        (("plans/good.json", "plans"), 2),
    ],
)
@pytest.mark.parametrize("form", FORMATS)
def test_the_exit_code_is_the_worst_in_every_form(remat, plans, names, code, form):
    checked = remat("check", *names, "--format", form)
    assert (checked.code, checked.err) == (code, "")
    assert checked.out


def test_machines_read_the_same_for_a_file_by_name_and_by_pattern(remat, plans):
    for name in ("good", "broken", "cut"):
        for form in FORMATS[1:]:
            by_name = remat("check", f"plans/{name}.json", "--format", form)
            assert by_name == remat("check", f"plans/[{name[0]}]{name[1:]}.json", "--format", form)
            assert (by_name.err, name in by_name.out) == ("", True)


def test_people_read_more_of_a_file_by_name(remat, plans):
    assert "At the peak" in remat("check", "plans/good.json").out
    assert "At the peak" not in remat("check", "plans/goo?.json").out
    unreadable = remat("check", "plans/cut.json")
    assert (unreadable.code, unreadable.out) == (2, "")


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(remat, plans):
    Path("plans/good.json").rename("a[1].json")
    assert "At the peak" in remat("check", "a[1].json").out


def test_a_folder_stands_for_the_plans_in_it(remat, plans):
    Path("plans/good.json").rename("plans/good.plan.json")
    Path("plans/deep/keep.json").rename("plans/deep/keep.plan.json")
    assert remat("convert", "plans/good.plan.json", "-o", "plans/deep/a[1]/again.plan.yaml").code == 0
    told = remat("check", "plans", "plans/deep/a[1]", "--format", "json")
    assert told.code == 0
    paths = [plan["path"] for plan in json.loads(told.out)["plans"]]
    assert paths == ["plans/deep/a[1]/again.plan.yaml", "plans/deep/keep.plan.json", "plans/good.plan.json"]
    Path("none").mkdir()
    empty = remat("check", "none")
    assert (empty.code, "no plan in this folder" in empty.out) == (2, True)


def test_every_file_once_in_the_order_of_the_names(remat, plans):
    told = remat("check", "plans/good.json", "plans/*.json", "-", "plans/good.json", "-", "--format", "json")
    paths = [plan["path"] for plan in json.loads(told.out)["plans"]]
    assert paths == ["plans/good.json", "plans/broken.json", "plans/cut.json", "-"]


def test_many_as_json_follow_their_schema(remat, plans):
    document = json.loads(remat("check", "plans/**/*.json", "nothing*", "--format", "json").out)
    jsonschema.Draft202012Validator(load_schema("checks")).validate(document)
    reports = [plan["report"] for plan in document["plans"] if plan["report"]]
    assert len(reports) == 3
    for report in reports:
        jsonschema.Draft202012Validator(load_schema("report")).validate(report)
    assert (document["ok"], document["counts"]) == (False, {"ok": 2, "no": 1, "unreadable": 2})
    assert document["plans"][-1]["problems"][0]["message"] == "no file matches this pattern"


def test_many_for_github_and_junit(remat, plans):
    told = remat("check", "plans/**/*.json", "--format", "github").out.splitlines()
    assert sum(line.startswith("::error file=plans/cut.json,line=") for line in told) == 1
    assert any(line.startswith("::error file=plans/broken.json,line=") for line in told)
    assert told[-1] == "::error title=remat check::4 plans: 2 are fine, 1 is not, 1 cannot be read"
    root = ET.fromstring(remat("check", "plans/**/*.json", "--format", "junit").out)
    assert [suite.get("name") for suite in root] == [
        "plans/broken.json",
        "plans/cut.json",
        "plans/deep/keep.json",
        "plans/good.json",
    ]
    assert {k: root.get(k) for k in ("tests", "errors", "skipped")} == {"tests": "10", "errors": "1", "skipped": "1"}
    assert root[1][0][0].get("type") == "unreadable"


def test_all_are_held_against_one_graph(remat, plans):
    assert remat("check", "plans/g*.json", "plans/deep/*.json", "--graph", TOY).code == 0
    graph = Path(TOY).read_text(encoding="utf-8").replace("cost: 3.0e7", "cost: 3.1e7")
    told = remat("check", "plans/g*.json", "plans/deep/*.json", "--graph", "-", stdin=graph)
    assert told.code == 1
    assert told.out.count("[other-graph]") == 2
    assert remat("check", "plans/*.json", "-", "--graph", "-").code == 2


def sarif(text: str) -> dict:
    """The one run of a SARIF log whose structure is as SARIF 2.1.0 has it (sections 3.13 to 3.30)."""
    log = json.loads(text)
    assert (log["version"], set(log)) == ("2.1.0", {"$schema", "version", "runs"})
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "remat"
    rules = [rule["id"] for rule in driver["rules"]]
    assert len(set(rules)) == len(rules)
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"].endswith(".")
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in {"none", "note", "warning", "error"}
        assert result["message"]["text"]
        (location,) = result["locations"]
        place = location["physicalLocation"]
        assert {"location": place["artifactLocation"]}.items() <= next(
            a for a in run["artifacts"] if a["location"] == place["artifactLocation"]
        ).items()
        if "region" in place:
            assert place["region"]["startLine"] >= 1
            assert place["region"]["startColumn"] >= 1
    return run


def test_sarif_of_one_plan_and_of_many(remat, plans):
    assert sarif(remat("check", "plans/good.json", "--format", "sarif").out)["results"] == []
    told = remat("check", "plans/*.json", "--format", "sarif", "-b", "200MB")
    run = sarif(told.out)
    codes = {result["ruleId"] for result in run["results"]}
    assert {"over-budget", "missing-register", UNREADABLE} <= codes
    files = {r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in run["results"]}
    assert files == {"plans/good.json", "plans/broken.json", "plans/cut.json"}
    first = next(r for r in run["results"] if r["ruleId"] == "missing-register")
    line = first["locations"][0]["physicalLocation"]["region"]["startLine"]
    assert "compute" in "".join(Path("plans/broken.json").read_text().splitlines()[line - 1 : line + 2])
    assert told.out == remat("check", "plans/*.json", "--format", "sarif", "-b", "200MB").out


def test_sarif_names_odd_files_as_uris(remat, plans, tmp_path):
    Path("plans/good.json").rename("plans/a b#ü.json")
    run = sarif(remat("check", "plans/a b#ü.json", str(tmp_path / "plans/broken.json"), "--format", "sarif").out)
    first, second = (artifact["location"] for artifact in run["artifacts"])
    assert first == {"uri": "plans/a%20b%23%C3%BC.json", "uriBaseId": "%SRCROOT%"}
    assert second["uri"] == (tmp_path / "plans/broken.json").as_uri()


def test_every_code_of_a_finding_is_a_rule():
    codes = set()
    for module in (check_module, replay_module):
        for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in {"complain", "Finding"} and isinstance(node.args[0], ast.Constant):
                    codes.add(node.args[0].value)
    assert len(codes) > 15
    assert codes | {check_module.OVER_BUDGET, UNREADABLE} == set(RULES)
