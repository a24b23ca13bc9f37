import json
import os
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import pytest
from cli_process import TOY, remat_process

from remat_cli.graph.document import load_schema

PLAN = "toy.plan.json"


@pytest.fixture
def toy_plan(remat):
    """A good plan of the toy graph at 80%, as a document; the file is ``toy.plan.json``."""
    assert remat("solve", TOY, "-b", "80%", "-q").code == 0
    return json.loads(Path(PLAN).read_text(encoding="utf-8"))


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
    assert text.code == 0
    assert "fits: peak 203.4 MB of 216.4 MB" in text.out
    assert "not verified here" in text.out
    as_json = remat("check", PLAN, "--format", "json")
    assert as_json.code == 0
    report = only_report(as_json.out)
    assert report["peak_memory"] == 203_424_260
    assert report["budget"] == 216_426_499
    assert report["cost"] == toy_plan["claim"]["cost"]
    assert report["findings"] == []
    github = remat("check", PLAN, "--format", "github")
    assert github.code == 0
    assert "::error" not in github.out
    junit = remat("check", PLAN, "--format", "junit")
    assert junit.code == 0
    assert not ET.fromstring(junit.out).findall(".//failure")


@pytest.mark.parametrize("form", ["text", "json", "github", "junit"])
def test_formats_of_a_plan_over_budget(remat, toy_plan, form):
    checked = remat("check", PLAN, "--budget", "200MB", "--format", form)
    assert checked.code == 1
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
    checked = remat("check", "broken.json", "--format", form)
    assert checked.code == 1
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
    assert remat("check", PLAN, "-b", "203424260B").code == 0
    assert remat("check", PLAN, "-b", "203424259B").code == 1
    assert remat("check", PLAN, "-b", "76%").code == 0
    assert remat("check", PLAN, "-b", "75%").code == 1
    assert remat("check", PLAN, "-b", "1GiB").code == 0


def test_a_budget_from_the_environment(remat, toy_plan, monkeypatch):
    monkeypatch.setenv("REMAT_CHECK_BUDGET", "200MB")
    monkeypatch.setenv("REMAT_CHECK_FORMAT", "json")
    checked = remat("check", PLAN)
    assert checked.code == 1
    assert only_report(checked.out)["budget"] == 200_000_000


def test_a_false_claim_is_found(remat, toy_plan):
    toy_plan["claim"] |= {"cost": 1, "lower_bound": 1, "gap": 0}
    Path("liar.json").write_text(json.dumps(toy_plan), encoding="utf-8")
    checked = remat("check", "liar.json")
    assert checked.code == 1
    assert "claims cost 1" in checked.out


def test_the_graph_of_a_plan_is_compared_with_a_graph(remat, toy_plan):
    assert remat("check", PLAN, "--graph", TOY).code == 0
    other = Path(TOY).read_text(encoding="utf-8").replace("cost: 3.0e7", "cost: 3.1e7")
    Path("other.yaml").write_text(other, encoding="utf-8")
    checked = remat("check", PLAN, "--graph", "other.yaml")
    assert checked.code == 1
    assert "different graph" in checked.out
    assert "bn1" in checked.out


def test_plan_or_graph_may_come_from_standard_input_but_not_both(remat, toy_plan):
    text = Path(PLAN).read_text(encoding="utf-8")
    assert remat("check", "-", "--graph", TOY, stdin=text).code == 0
    assert remat("check", PLAN, "--graph", "-", stdin=Path(TOY).read_text(encoding="utf-8")).code == 0
    both = remat("check", "-", "--graph", "-", stdin=text)
    assert both.code == 2
    assert "cannot both come from standard input" in both.err


def test_the_graph_may_be_node_link_json(remat):
    document = {
        "directed": True,
        "multigraph": False,
        "graph": {},
        "nodes": [{"id": "a", "weight": 1, "size": 10}, {"id": "b", "weight": 2, "size": 20}],
        "links": [{"source": "a", "target": "b"}],
    }
    Path("nx.json").write_text(json.dumps(document), encoding="utf-8")
    keys = ("--keys", "cost=weight,memory=size")
    assert remat("solve", "nx.json", "-b", "none", *keys).code == 0
    assert remat("check", "nx.plan.json", "--graph", "nx.json", *keys).code == 0
    alone = remat("check", "nx.plan.json", *keys)
    assert alone.code == 2
    assert "--keys is for the graph of --graph" in alone.err


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.5, 0.7, 0.99])
def test_a_truncated_plan_is_bad_input(remat, toy_plan, share):
    text = Path(PLAN).read_text(encoding="utf-8")
    Path("cut.json").write_text(text[: int(len(text) * share)], encoding="utf-8")
    checked = remat("check", "cut.json")
    assert checked.code == 2
    assert "cut.json" in checked.err
    assert checked.out == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"statements": [', '"statements": ['),
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
    checked = remat("check", "bad.json")
    if old == new:
        assert checked.code == 0
        return
    assert checked.code == 2
    assert "bad.json" in checked.err
    assert new.split(":")[0].strip('"') in checked.err or "bn" in checked.err


@pytest.mark.parametrize(("fits", "code"), [("100%", 0), ("200MB", 1)])
def test_a_reader_that_leaves_early_changes_no_verdict(remat, toy_plan, fits, code):
    read_end, write_end = os.pipe()
    os.close(read_end)
    checked = remat_process("check", PLAN, "--budget", fits, stdout=write_end)
    os.close(write_end)
    assert (checked.code, checked.err) == (code, "")


def test_checking_changes_nothing(remat, toy_plan):
    shutil.copy(PLAN, "copy.json")
    remat("check", PLAN)
    remat("show", PLAN)
    assert Path(PLAN).read_bytes() == Path("copy.json").read_bytes()
    assert sorted(p.name for p in Path().iterdir()) == ["copy.json", PLAN]
