import json
from pathlib import Path

import pytest
from cli_process import TOY


@pytest.fixture
def plan(remat):
    """A plan of the toy graph at 80%, which computes conv1 twice."""
    remat("solve", TOY, "-b", "80%", "-q", "-o", "toy.plan.json")
    return Path("toy.plan.json").read_text(encoding="utf-8")


def test_a_node_and_its_changes(remat, plan):
    told = remat("explain", "toy.plan.json", "conv1")
    assert told.err == ""
    assert "conv1 (conv2d, forward): computed 2 times" in told.out
    assert "conv1:0 dropped" in told.out
    assert "54.11 MB over the budget" in told.out
    assert "saves 1.2 G flops" in told.out


@pytest.mark.parametrize("name", ["bn1", "bn1:0", "bn1:1"])
def test_a_node_is_known_by_its_values_too_and_a_plan_may_come_through_a_pipe(remat, plan, name):
    assert remat("explain", "-", name, stdin=plan).out.startswith("bn1 (batch_norm, forward): computed 1 time")


def test_every_node_of_a_plan_can_be_explained(remat, plan):
    for node in json.loads(plan)["graph"]["nodes"]:
        remat("explain", "toy.plan.json", node["id"])


def test_a_prefix_comes_before_a_likeness_and_long_names_are_cut(remat, plan):
    assert (
        "did you mean grad/conv2 or grad/relu1 or grad/bn1?" in remat("explain", "toy.plan.json", "grad/", code=2).err
    )
    assert len(remat("explain", "toy.plan.json", "x" * 5000, code=2).err) < 300


def test_close_names_are_offered(remat, plan):
    told = remat("explain", "toy.plan.json", "con1", code=2)
    assert 'there is no node "con1"' in told.err
    assert "did you mean conv1" in told.err
    assert "graph.nodes" in remat("explain", "toy.plan.json", "completely else", code=2).err


def test_an_invalid_plan_is_said_to_be(remat, plan):
    document = json.loads(plan)
    del document["statements"][2]
    Path("broken.json").write_text(json.dumps(document), encoding="utf-8")
    told = remat("explain", "broken.json", "conv1", code=1)
    assert "This plan is invalid" in told.out
    assert "If it were" not in told.out


@pytest.mark.parametrize(
    ("arguments", "format"),
    [
        (("explain", "toy.plan.json", "conv1"), "json"),
        (("check", "toy.plan.json"), "text"),
        (("check", "toy.plan.json"), "sarif"),
        (("diff", "toy.plan.json", "toy.plan.json"), "markdown"),
    ],
)
def test_reports_go_to_a_file_too_and_say_so_unless_quiet(remat, plan, arguments, format):
    printed = remat(*arguments, "--format", format)
    written = remat(*arguments, "--format", format, "-o", "report.out", code=printed.code)
    assert (written.out, written.err) == ("", "wrote report.out\n")
    assert Path("report.out").read_text(encoding="utf-8") == printed.out
    quiet = remat(*arguments, "--format", format, "-q", "-o", "report.out", code=printed.code)
    assert (quiet.out, quiet.err) == ("", "")
    assert "Traceback" not in remat(*arguments, "-o", "toy.plan.json/report.out", code=2).err
