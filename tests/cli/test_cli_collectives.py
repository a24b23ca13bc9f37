"""Graphs with collectives, from the plan to its check, its reports, page and trace."""

import json
from pathlib import Path

import jsonschema
import pytest
from cli_process import read

from remat_cli.graph.document import load_schema

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "sharded.yaml"


@pytest.fixture
def plan(remat, tmp_path: Path) -> str:
    """The plan of ``fsdp``, which is the same every time."""
    path = str(tmp_path / "step.plan.json")
    remat("solve", str(EXAMPLE), "-b", "100%", "--strategy", "fsdp", "-o", path)
    return path


def test_the_report_has_the_queue_and_its_waits(remat, plan: str) -> None:
    told = remat("check", plan).out
    assert "cost         85 ms, 4.938% over no-remat; recomputation +8 ms; stalls 12 ms for collectives" in told
    assert "collectives  6, which take 24 ms" in told
    assert "busy         compute 85.9%, communication 28.2%" in told
    assert "the only known bound is the time of the busier queue" in told
    document = read(plan)
    assert document["schema"] == "remat-plan/1"
    assert document["claim"]["cost"] == 85


def test_the_report_as_a_document(remat, plan: str) -> None:
    [report] = [entry["report"] for entry in remat("check", plan, "--format", "json").json()["plans"]]
    jsonschema.validate(report, load_schema("report"))
    assert (report["time"], report["cost"], report["no_remat_cost"]) == (85, 97, 81)
    assert set(report["queues"]) == {"compute", "communication"}
    assert report["queues"]["communication"] == {"spans": 6, "busy": 24, "critical": 12}
    assert sum(stall["time"] for stall in report["stalls"]) == 12
    assert report["overhead"] == pytest.approx(85 / 81 - 1)


def test_explain_says_when_a_collective_runs_and_who_waits(remat, plan: str) -> None:
    told = remat("explain", plan, "layers.0/gather").out
    assert "computed for the first time: 0 ms to 4 ms, communication queue" in told
    assert "computations wait 4 ms for it" in told
    assert "recomputed in the stage of" in told


def test_page_and_trace_have_a_queue_for_collectives(remat, plan: str, tmp_path: Path) -> None:
    page, trace = tmp_path / "step.html", tmp_path / "step.trace.json"
    remat("show", plan, "--format", "html", "-o", str(page))
    text = page.read_text(encoding="utf-8")
    assert "When everything runs" in text
    assert "Two queues over 85 ms: compute 85.9%, communication 28.2%" in text
    remat("show", plan, "--format", "trace", "-o", str(trace))
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    threads = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    assert threads == {"compute": 1, "communication": 2}
    gathers = [event for event in events if event["name"] == "layers.0/gather"]
    assert [event["tid"] for event in gathers] == [2, 2]
    assert gathers[0]["dur"] == 4000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("solve", "-b", "90%", "--host-bandwidth", "25GB/s"), "copies to a host are not planned"),
        (("solve", "-b", "90%", "--reorder"), "run in the document's order"),
        (("solve", "-b", "90%", "--strategy", "optimal"), "optimal adds up costs"),
        (("worth", "-b", "90%"), "links to a host are not compared"),
        (("max-batch", "--memory", "1GB", "--batch", "1"), "the largest batch is not searched"),
        (("policy", "-b", "90%", "--to", "torch-checkpoint"), "module-checkpoint adds up costs"),
    ],
)
def test_what_is_not_for_collectives_is_refused(remat, words: tuple[str, ...], message: str) -> None:
    command, *options = words
    budget = ["--budgets" if command == "worth" and word == "-b" else word for word in options]
    done = remat(command, str(EXAMPLE), *budget, code=2)
    assert message in done.err
    assert done.err.count("hint:") == 1


def test_strategies_are_compared_by_time(remat) -> None:
    asked = (
        "compare",
        str(EXAMPLE),
        "--budgets",
        "100%",
        "--strategies",
        "keep-all,fsdp,fsdp{reshard=false}",
        "--format",
    )
    rows = remat(*asked, "json").json()["rows"]
    assert {row["strategy"]: row["cost"] for row in rows} == {
        "keep-all": 85,
        "fsdp": 85,
        "fsdp{reshard=false}": 81,
    }
    everything = remat("compare", str(EXAMPLE), "--budgets", "50%", "--strategies", "all", "--format", "json", code=1)
    names = {row["strategy"].partition("{")[0] for row in everything.json()["rows"]}
    assert names == {"auto", "overlap", "fsdp", "min-cut", "every-n-layers", "keep-all", "checkpoint-all"}
