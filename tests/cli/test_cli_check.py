import ast
import json
import os
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import pytest
from cli_process import NODE_LINK, TOY, read, remat_process

from remat_cli.graph.document import load_schema
from remat_cli.plan import check as check_module
from remat_cli.plan import replay as replay_module
from remat_cli.reports.checks import RULES, UNREADABLE

PLAN = "toy.plan.json"


@pytest.fixture
def toy_plan(remat):
    """A good plan of the toy graph at 80%, as a document; the file is ``toy.plan.json``."""
    remat("solve", TOY, "-b", "80%", "-q")
    return read(PLAN)


def broken(document: dict) -> tuple[str, int]:
    """The text of the plan without the allocation of what relu1 writes, and the statement that therefore fails."""
    statements = document["statements"]
    at = next(k for k, s in enumerate(statements) if s.get("compute") == "relu1")
    del statements[at - 1]
    return json.dumps(document, indent=1), at - 1


def only_report(text: str) -> dict:
    """The one report in a document of checks."""
    document = json.loads(text)
    jsonschema.Draft202012Validator(load_schema("checks")).validate(document)
    (plan,) = document["plans"]
    jsonschema.Draft202012Validator(load_schema("report")).validate(plan["report"])
    return plan["report"]


def test_formats_of_a_good_plan(remat, toy_plan):
    text = remat("check", PLAN)
    assert "fits: peak 203.4 MB of 216.4 MB" in text.out
    assert "not verified here" in text.out
    as_json = remat("check", PLAN, "--format", "json")
    report = only_report(as_json.out)
    assert report["peak_memory"] == 203_424_260
    assert report["budget"] == 216_426_499
    assert report["cost"] == toy_plan["claim"]["cost"]
    assert report["findings"] == []
    assert "::error" not in remat("check", PLAN, "--format", "github").out
    assert not ET.fromstring(remat("check", PLAN, "--format", "junit").out).findall(".//failure")


@pytest.mark.parametrize("form", ["text", "json", "github", "junit"])
def test_formats_of_a_plan_over_budget(remat, toy_plan, form):
    checked = remat("check", PLAN, "--budget", "200MB", "--format", form, code=1)
    if form == "text":
        assert "3.424 MB" in checked.out
    elif form == "json":
        report = only_report(checked.out)
        assert (report["valid"], report["within_budget"]) == (True, False)
        assert [f["code"] for f in report["findings"]] == ["over-budget"]
    elif form == "github":
        assert re.search(rf"^::error file={PLAN},line=\d+", checked.out, re.MULTILINE)
    else:
        assert ET.fromstring(checked.out).findall(".//failure")


@pytest.mark.parametrize("form", ["text", "json", "github", "junit"])
def test_formats_of_a_broken_plan(remat, toy_plan, form):
    text, at = broken(toy_plan)
    Path("broken.json").write_text(text, encoding="utf-8")
    checked = remat("check", "broken.json", "--format", form, code=1)
    assert f"statement {at}: " in checked.out
    assert "relu1" in checked.out
    if form == "json":
        report = only_report(checked.out)
        assert not report["valid"]
        assert report["findings"][0]["statement"] == at
    elif form == "github":
        found = re.search(r"^::error file=broken\.json,line=(\d+)", checked.out, re.MULTILINE)
        assert found
        lines = text.splitlines()[int(found[1]) - 1 :]
        assert '"compute": "relu1"' in "".join(lines[:3])


def test_a_plan_is_held_against_another_budget(remat, toy_plan):
    remat("check", PLAN, "-b", "203424260B")
    remat("check", PLAN, "-b", "203424259B", code=1)
    remat("check", PLAN, "-b", "76%")
    remat("check", PLAN, "-b", "75%", code=1)
    remat("check", PLAN, "-b", "1GiB")


def test_a_budget_from_the_environment(remat, toy_plan, monkeypatch):
    monkeypatch.setenv("REMAT_CHECK_BUDGET", "200MB")
    monkeypatch.setenv("REMAT_CHECK_FORMAT", "json")
    assert only_report(remat("check", PLAN, code=1).out)["budget"] == 200_000_000


def test_a_false_claim_is_found(remat, toy_plan):
    toy_plan["claim"] |= {"cost": 1, "lower_bound": 1, "gap": 0}
    Path("liar.json").write_text(json.dumps(toy_plan), encoding="utf-8")
    assert "claims cost 1" in remat("check", "liar.json", code=1).out


def test_the_graph_of_a_plan_is_compared_with_a_graph(remat, toy_plan):
    remat("check", PLAN, "--graph", TOY)
    other = Path(TOY).read_text(encoding="utf-8").replace("cost: 3.0e7", "cost: 3.1e7")
    Path("other.yaml").write_text(other, encoding="utf-8")
    checked = remat("check", PLAN, "--graph", "other.yaml", code=1)
    assert "different graph" in checked.out
    assert "bn1" in checked.out


def test_plan_or_graph_may_come_from_standard_input_but_not_both(remat, toy_plan):
    text = Path(PLAN).read_text(encoding="utf-8")
    remat("check", "-", "--graph", TOY, stdin=text)
    remat("check", PLAN, "--graph", "-", stdin=Path(TOY).read_text(encoding="utf-8"))
    assert "cannot both come from standard input" in remat("check", "-", "--graph", "-", stdin=text, code=2).err


def test_the_graph_may_be_node_link_json(remat):
    Path("nx.json").write_text(json.dumps(NODE_LINK), encoding="utf-8")
    keys = ("--keys", "cost=weight,memory=size")
    remat("solve", "nx.json", "-b", "none", *keys)
    remat("check", "nx.plan.json", "--graph", "nx.json", *keys)
    assert "--keys is for the graph of --graph" in remat("check", "nx.plan.json", *keys, code=2).err


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.5, 0.7, 0.99])
def test_a_truncated_plan_is_bad_input(remat, toy_plan, share):
    text = Path(PLAN).read_text(encoding="utf-8")
    Path("cut.json").write_text(text[: int(len(text) * share)], encoding="utf-8")
    checked = remat("check", "cut.json", code=2)
    assert "cut.json" in checked.err
    assert checked.out == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"bytes": 67108864', '"bytes": -1'),
        ('"compute": "bn1"', '"compute": "bn9"'),
        ('"registers": ["%1"', '"registers": [1'),
        ('"schema": "remat-plan/1"', '"schema": "remat-plan/9"'),
        ('"status": "optimal"', '"status": "certain"'),
        ('"budget": 216426499', '"budget": "80 percent"'),
        ('"graph_sha256": "', '"graph_sha256": "0'),
        ('"value": "bn1:0"', '"value": "bn1:7"'),
    ],
)
def test_a_mangled_plan_is_bad_input_or_invalid_never_a_traceback(remat, toy_plan, old, new):
    text = Path(PLAN).read_text(encoding="utf-8")
    assert old in text
    Path("bad.json").write_text(text.replace(old, new, 1), encoding="utf-8")
    checked = remat("check", "bad.json", code=2)
    assert "bad.json" in checked.err
    assert new.split(":")[0].strip('"') in checked.err or "bn" in checked.err


@pytest.mark.parametrize(("fits", "code"), [("100%", 0), ("200MB", 1)])
def test_a_reader_that_leaves_early_changes_no_verdict(remat, toy_plan, fits, code):
    read_end, write_end = os.pipe()
    os.close(read_end)
    checked = remat_process("check", PLAN, "--budget", fits, stdout=write_end, code=code)
    os.close(write_end)
    assert checked.err == ""


def test_checking_changes_nothing(remat, toy_plan):
    shutil.copy(PLAN, "copy.json")
    remat("check", PLAN)
    remat("show", PLAN)
    assert Path(PLAN).read_bytes() == Path("copy.json").read_bytes()
    assert sorted(p.name for p in Path().iterdir()) == ["copy.json", PLAN]


# Several plans, and patterns


FORMATS = ["text", "json", "github", "junit", "sarif"]


@pytest.fixture
def plans(remat):
    """``plans/``: a good plan, one that is over 210 MB, one whose third statement is gone, and one that is cut."""
    Path("plans/deep").mkdir(parents=True)
    remat("solve", TOY, "-b", "80%", "-q", "-o", "plans/good.json")
    remat("solve", TOY, "-b", "none", "-q", "-o", "plans/deep/keep.json")
    text = Path("plans/good.json").read_text(encoding="utf-8")
    document = json.loads(text)
    del document["statements"][2]
    Path("plans/broken.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    Path("plans/cut.json").write_text(text[:-100], encoding="utf-8")


def test_a_row_for_each_and_a_sum(remat, plans):
    checked = remat("check", "plans/**/*.json", "--budget", "210MB", code=2)
    assert checked.err == ""
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
    checked = remat("check", *names, "--format", form, code=code)
    assert checked.err == ""
    assert checked.out


def test_machines_read_the_same_for_a_file_by_name_and_by_pattern(remat, plans):
    for name in ("good", "broken", "cut"):
        for form in FORMATS[1:]:
            by_name = remat("check", f"plans/{name}.json", "--format", form, code=None)
            assert by_name == remat("check", f"plans/[{name[0]}]{name[1:]}.json", "--format", form, code=None)
            assert (by_name.err, name in by_name.out) == ("", True)


def test_people_read_more_of_a_file_by_name(remat, plans):
    assert "At the peak" in remat("check", "plans/good.json").out
    assert "At the peak" not in remat("check", "plans/goo?.json").out
    assert remat("check", "plans/cut.json", code=2).out == ""


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(remat, plans):
    Path("plans/good.json").rename("a[1].json")
    assert "At the peak" in remat("check", "a[1].json").out


def test_a_folder_stands_for_the_plans_in_it(remat, plans):
    Path("plans/good.json").rename("plans/good.plan.json")
    Path("plans/deep/keep.json").rename("plans/deep/keep.plan.json")
    remat("convert", "plans/good.plan.json", "-o", "plans/deep/a[1]/again.plan.yaml")
    told = remat("check", "plans", "plans/deep/a[1]", "--format", "json")
    paths = [plan["path"] for plan in told.json()["plans"]]
    assert paths == ["plans/deep/a[1]/again.plan.yaml", "plans/deep/keep.plan.json", "plans/good.plan.json"]
    Path("none").mkdir()
    assert "no plan in this folder" in remat("check", "none", code=2).out


def test_every_file_once_in_the_order_of_the_names(remat, plans):
    told = remat("check", "plans/good.json", "plans/*.json", "-", "plans/good.json", "-", "--format", "json", code=2)
    paths = [plan["path"] for plan in told.json()["plans"]]
    assert paths == ["plans/good.json", "plans/broken.json", "plans/cut.json", "-"]


def test_many_as_json_follow_their_schema(remat, plans):
    document = remat("check", "plans/**/*.json", "nothing*", "--format", "json", code=2).json("checks")
    reports = [plan["report"] for plan in document["plans"] if plan["report"]]
    assert len(reports) == 3
    for report in reports:
        jsonschema.Draft202012Validator(load_schema("report")).validate(report)
    assert (document["ok"], document["counts"]) == (False, {"ok": 2, "no": 1, "unreadable": 2})
    assert document["plans"][-1]["problems"][0]["message"] == "no file matches this pattern"


def test_many_for_github_and_junit(remat, plans):
    told = remat("check", "plans/**/*.json", "--format", "github", code=2).out.splitlines()
    assert sum(line.startswith("::error file=plans/cut.json,line=") for line in told) == 1
    assert any(line.startswith("::error file=plans/broken.json,line=") for line in told)
    assert told[-1] == "::error title=remat check::4 plans: 2 are fine, 1 is not, 1 cannot be read"
    root = ET.fromstring(remat("check", "plans/**/*.json", "--format", "junit", code=2).out)
    assert [suite.get("name") for suite in root] == [
        "plans/broken.json",
        "plans/cut.json",
        "plans/deep/keep.json",
        "plans/good.json",
    ]
    assert {k: root.get(k) for k in ("tests", "errors", "skipped")} == {"tests": "10", "errors": "1", "skipped": "1"}
    assert root[1][0][0].get("type") == "unreadable"


def test_all_are_held_against_one_graph(remat, plans):
    remat("check", "plans/g*.json", "plans/deep/*.json", "--graph", TOY)
    graph = Path(TOY).read_text(encoding="utf-8").replace("cost: 3.0e7", "cost: 3.1e7")
    told = remat("check", "plans/g*.json", "plans/deep/*.json", "--graph", "-", stdin=graph, code=1)
    assert told.out.count("[other-graph]") == 2
    remat("check", "plans/*.json", "-", "--graph", "-", code=2)


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
    told = remat("check", "plans/*.json", "--format", "sarif", "-b", "200MB", code=2)
    run = sarif(told.out)
    codes = {result["ruleId"] for result in run["results"]}
    assert {"over-budget", "missing-register", UNREADABLE} <= codes
    files = {r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in run["results"]}
    assert files == {"plans/good.json", "plans/broken.json", "plans/cut.json"}
    first = next(r for r in run["results"] if r["ruleId"] == "missing-register")
    line = first["locations"][0]["physicalLocation"]["region"]["startLine"]
    assert "compute" in "".join(Path("plans/broken.json").read_text().splitlines()[line - 1 : line + 2])
    assert told.out == remat("check", "plans/*.json", "--format", "sarif", "-b", "200MB", code=2).out


def test_sarif_names_odd_files_as_uris(remat, plans, tmp_path):
    Path("plans/good.json").rename("plans/a b#ü.json")
    run = sarif(
        remat("check", "plans/a b#ü.json", str(tmp_path / "plans/broken.json"), "--format", "sarif", code=1).out
    )
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
