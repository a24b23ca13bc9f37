"""``--host-bandwidth`` and its kin, from the question to the plan, its check and its report."""

import json
from pathlib import Path

import pytest

GRAPH = """\
schema: remat-graph/1
cost_unit: s
nodes:
  - {id: a, inputs: [], cost: 1, memory: 8}
  - {id: b, inputs: [a], cost: 9, memory: 4}
  - {id: c, inputs: [b], cost: 9, memory: 4}
  - {id: d, inputs: [c], cost: 9, memory: 2}
  - {id: e, inputs: [a, d], cost: 1, memory: 1}
"""


@pytest.fixture
def graph(tmp_path: Path) -> str:
    path = tmp_path / "step.yaml"
    path.write_text(GRAPH)
    return str(path)


def test_a_plan_with_copies_is_written_checked_and_shown(remat, graph: str, tmp_path: Path) -> None:
    plan = str(tmp_path / "step.plan.json")
    done = remat("solve", graph, "-b", "14B", "--host-bandwidth", "4B/s:1B/s", "-o", plan)
    assert done.code == 0, done.err
    assert "copies    1 copy to host, 1 copy from host; at most 8 B of host memory" in done.out
    assert "host      4 B/s out, 1 B/s in, memory without limit" in done.out
    assert "busy      compute 100.0%, to host 6.897%, from host 27.6%" in done.out
    document = json.loads(Path(plan).read_text())
    assert document["schema"] == "remat-plan/2"
    assert document["host"] == {"bandwidth_out": 4, "bandwidth_in": 1, "latency": 0, "memory": None}
    assert (document["claim"]["copies"], document["claim"]["cost"]) == ("any", 29)
    done = remat("check", plan)
    assert done.code == 0, done.err
    assert "29 s" in done.out
    done = remat("check", plan, "--format", "json")
    [report] = [plan["report"] for plan in json.loads(done.out)["plans"]]
    assert (report["time"], report["cost"], report["host_peak_memory"], report["stalls"]) == (29, 29, 8, [])
    assert report["queues"]["to host"] == {"busy": 2, "critical": 0, "spans": 1}
    for format in ("text", "json", "svg", "html", "trace"):
        shown = str(tmp_path / f"shown.{format}")
        done = remat("show", plan, "--format", format, "-o", shown)
        assert done.code == 0, done.err


def test_without_a_bandwidth_nothing_changes(remat, graph: str, tmp_path: Path) -> None:
    plan = tmp_path / "step.plan.json"
    done = remat("solve", graph, "-b", "14B", "-o", str(plan))
    assert done.code == 0, done.err
    assert "host" not in done.out
    assert "host" not in json.loads(plan.read_text())["provenance"]


def test_host_memory_is_a_limit(remat, graph: str, tmp_path: Path) -> None:
    plan = str(tmp_path / "step.plan.json")
    rest = ("--host-bandwidth", "4B/s:1B/s", "--host-memory", "7B", "--time-limit", "5s", "-o", plan)
    done = remat("solve", graph, "-b", "14B", *rest)
    assert done.code == 0, done.err
    assert "copies    none" in done.out
    assert json.loads(Path(plan).read_text())["claim"]["cost"] == 30


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host-memory", "4GB"], "--host-memory says nothing without a bandwidth"),
        (["--host-bandwidth", "25GB"], '"25GB" is not a bandwidth'),
        (["--host-bandwidth", "25GB/s", "--strategy", "optimal"], "optimal copies nothing to a host"),
        (["--host-bandwidth", "25GB/s", "--reorder"], "with a host, nodes run in the document's order"),
    ],
)
def test_what_makes_no_sense_is_refused(remat, graph: str, options: list[str], message: str) -> None:
    done = remat("solve", graph, "-b", "14B", *options)
    assert done.code == 2, done.err
    assert message in done.err


def test_costs_have_to_be_times(remat, tmp_path: Path) -> None:
    path = tmp_path / "step.yaml"
    path.write_text(GRAPH.replace("cost_unit: s", "cost_unit: flops"))
    done = remat("solve", str(path), "-b", "14B", "--host-bandwidth", "4B/s")
    assert done.code == 2, done.err
    assert "costs are flops, and copies take time" in done.err
    assert "remat profile" in done.err


def test_one_alone_is_compared_with_both(remat, graph: str) -> None:
    strategies = "offload,offload{recompute=false},offload{copy=false}"
    rest = ("--host-bandwidth", "4B/s:1B/s", "--time-limit", "5s", "--jobs", "1", "--format", "json")
    done = remat("compare", graph, "--budgets", "14B", "--strategies", strategies, *rest)
    assert done.code == 0, done.err
    assert [row["cost"] for row in json.loads(done.out)["rows"]] == [29, 29, 30]


def test_the_trace_has_three_queues(remat, graph: str, tmp_path: Path) -> None:
    plan, trace = str(tmp_path / "step.plan.json"), tmp_path / "step.json"
    assert remat("solve", graph, "-b", "14B", "--host-bandwidth", "4B/s:1B/s", "-o", plan).code == 0
    assert remat("show", plan, "--format", "trace", "-o", str(trace)).code == 0
    events = json.loads(trace.read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    copies = [(names[e["tid"]], e["name"], e["dur"]) for e in events if e["ph"] == "X" and e["name"] == "a:0"]
    assert copies == [("to host", "a:0", 2e6), ("from host", "a:0", 8e6)]
    assert [e["name"] for e in events if e["ph"] == "X" and names[e["tid"]] == "compute"] == ["a", "b", "c", "d", "e"]
