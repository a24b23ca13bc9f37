"""``--host-bandwidth`` and its kin, from the question to the plan, its check and its report; ``remat worth``."""

import csv
import io
import json
import math
import random
import re
from pathlib import Path

import jsonschema
import pytest
from cli_process import read

from remat_cli.graph.document import load_schema
from remat_cli.graph.model import Graph, Node
from remat_cli.plan.comparison import Slope, Worth, offers
from remat_cli.plan.host import Host

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


@pytest.fixture
def step(tmp_path: Path) -> str:
    """The same with nodes that are computed once, so that copies are worth more."""
    path = tmp_path / "once.yaml"
    path.write_text(re.sub(r"(id: [bcd].*)}", r"\1, recompute: false}", GRAPH))
    return str(path)


def test_a_plan_with_copies_is_written_checked_and_shown(remat, graph: str, tmp_path: Path) -> None:
    plan = str(tmp_path / "step.plan.json")
    done = remat("solve", graph, "-b", "14B", "--host-bandwidth", "4B/s:1B/s", "-o", plan)
    assert "copies    1 copy to host, 1 copy from host; at most 8 B of host memory" in done.out
    assert "host      4 B/s out, 1 B/s in, memory without limit" in done.out
    assert "busy      compute 100.0%, to host 6.897%, from host 27.6%" in done.out
    document = read(plan)
    assert document["schema"] == "remat-plan/2"
    assert document["host"] == {"bandwidth_out": 4, "bandwidth_in": 1, "latency": 0, "memory": None}
    assert (document["claim"]["copies"], document["claim"]["cost"]) == ("any", 29)
    assert "29 s" in remat("check", plan).out
    done = remat("check", plan, "--format", "json")
    [report] = [plan["report"] for plan in done.json()["plans"]]
    assert (report["time"], report["cost"], report["host_peak_memory"], report["stalls"]) == (29, 29, 8, [])
    assert report["queues"]["to host"] == {"busy": 2, "critical": 0, "spans": 1}
    for format in ("text", "json", "svg", "html", "trace"):
        shown = str(tmp_path / f"shown.{format}")
        done = remat("show", plan, "--format", format, "-o", shown)


def test_without_a_bandwidth_nothing_changes(remat, graph: str, tmp_path: Path) -> None:
    plan = tmp_path / "step.plan.json"
    assert "host" not in remat("solve", graph, "-b", "14B", "-o", str(plan)).out
    assert "host" not in json.loads(plan.read_text())["provenance"]


def test_host_memory_is_a_limit(remat, graph: str, tmp_path: Path) -> None:
    plan = str(tmp_path / "step.plan.json")
    rest = ("--host-bandwidth", "4B/s:1B/s", "--host-memory", "7B", "--time-limit", "5s", "-o", plan)
    assert "copies    none" in remat("solve", graph, "-b", "14B", *rest).out
    assert read(plan)["claim"]["cost"] == 30


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
    assert message in remat("solve", graph, "-b", "14B", *options, code=2).err


def test_costs_have_to_be_times(remat, tmp_path: Path) -> None:
    path = tmp_path / "step.yaml"
    path.write_text(GRAPH.replace("cost_unit: s", "cost_unit: flops"))
    done = remat("solve", str(path), "-b", "14B", "--host-bandwidth", "4B/s", code=2)
    assert "costs are flops, and copies take time" in done.err
    assert "remat profile" in done.err
    assert "costs are flops, and copies take time" in remat("worth", str(path), "--budgets", "14B", code=2).err


def test_one_alone_is_compared_with_both(remat, graph: str) -> None:
    strategies = "offload,offload{recompute=false},offload{copy=false}"
    rest = ("--host-bandwidth", "4B/s:1B/s", "--time-limit", "5s", "--jobs", "1", "--format", "json")
    done = remat("compare", graph, "--budgets", "14B", "--strategies", strategies, *rest)
    assert [row["cost"] for row in done.json()["rows"]] == [29, 29, 30]


def test_the_trace_has_three_queues(remat, graph: str, tmp_path: Path) -> None:
    plan, trace = str(tmp_path / "step.plan.json"), tmp_path / "step.json"
    remat("solve", graph, "-b", "14B", "--host-bandwidth", "4B/s:1B/s", "-o", plan)
    remat("show", plan, "--format", "trace", "-o", str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    copies = [(names[e["tid"]], e["name"], e["dur"]) for e in events if e["ph"] == "X" and e["name"] == "a:0"]
    assert copies == [("to host", "a:0", 2e6), ("from host", "a:0", 8e6)]
    assert [e["name"] for e in events if e["ph"] == "X" and names[e["tid"]] == "compute"] == ["a", "b", "c", "d", "e"]


# ``remat worth``: times by link and budget, and their slopes


def test_links_and_budgets_with_their_slopes(remat, step: str, tmp_path: Path) -> None:
    results = str(tmp_path / "rows.jsonl")
    rest = ("--links", "1B/s,4B/s:1B/s", "--time-limit", "6s", "--jobs", "1", "--results", results)
    done = remat("worth", step, "--budgets", "12B,14B,16B", *rest, "--format", "json")
    document = done.json("worth")
    rows = {(row["link"], row["budget"]): row for row in document["rows"]}
    assert [key for key, _ in rows] == ["1B/s"] * 3 + ["4B/s:1B/s"] * 3
    assert rows["1B/s", "14B"]["recompute"] == 30
    assert rows["4B/s:1B/s", "14B"]["copy"] == rows["4B/s:1B/s", "14B"]["both"] == 29
    assert {row["both"] for row in rows.values() if row["budget"] == "16B"} == {29}
    for row in rows.values():
        assert row["lower_bound"] <= row["both"] <= min(row["recompute"] or math.inf, row["copy"] or math.inf)
    for format in ("text", "csv"):  # from the saved rows
        done = remat("worth", step, "--budgets", "12B,14B,16B", *rest, "--format", format)
        if format == "csv":
            assert [row["link"] for row in csv.DictReader(io.StringIO(done.out))] == [key for key, _ in rows]
        else:
            assert "a step takes 29 s" in done.out
            assert "next GB" in done.out
            assert "from, to" in done.out


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("worth", ("--links", "pcie6"), '"pcie6" is not a bandwidth'),
        ("worth", ("--links", "pcie4,pcie4"), "links need names of their own"),
        ("worth", ("--links", ","), "is not a bandwidth"),
        ("compare", ("--links", "pcie6"), '"pcie6" is not a bandwidth'),
        ("compare", ("--links", "pcie4,pcie4"), "links need names of their own"),
        ("compare", ("--links", "pcie4", "--host-bandwidth", "25GB/s"), "--links has bandwidths of its own"),
    ],
)
def test_links_that_make_no_sense_are_refused(remat, graph: str, command: str, options: list[str], message: str):
    assert message in remat(command, graph, "--budgets", "14B", *options, code=2).err


def test_strategies_without_copies_have_no_plan_on_a_link(remat, step: str) -> None:
    rest = ("--links", "pcie4", "--strategies", "chen-sqrt", "--time-limit", "5s", "--jobs", "1")
    remat("compare", step, "--budgets", "14B", *rest, code=1)


def test_a_comparison_for_each_of_several_links(remat, step: str, tmp_path: Path) -> None:
    rest = ("--strategies", "offload,offload{copy=false}", "--time-limit", "20s", "--jobs", "1", "-q")
    rest = (*rest, "--results", str(tmp_path / "rows.jsonl"))
    asked = ("compare", step, "--budgets", "14B,16B", "--links", "0.1B/s,4B/s:1B/s", *rest)
    costs = {}
    for link in remat(*asked, "--format", "json").json("comparisons")["links"]:
        jsonschema.validate(link["comparison"], load_schema("comparison"))
        costs |= {(link["link"], row["strategy"], row["budget"]): row["cost"] for row in link["comparison"]["rows"]}
    assert costs["0.1B/s", "offload", "14B"] == costs["4B/s:1B/s", "offload{copy=false}", "14B"] == 30
    assert costs["4B/s:1B/s", "offload", "14B"] == 29
    for format in ("text", "csv", "svg", "html"):  # from the saved rows
        target = tmp_path / f"links.{format}"
        remat(*asked, "--format", format, "-o", str(target))
        text = target.read_text()
        assert "0.1B/s" in text
        assert "4B/s:1B/s" in text
        if format == "csv":
            assert len(text.splitlines()) == 1 + 2 * 2 * 2
            assert text.startswith("link,bandwidth_out,bandwidth_in,latency_s,memory,strategy,")


def test_a_link_has_a_name_everywhere(remat, graph: str) -> None:
    done = remat("solve", graph, "-b", "14B", "--host-bandwidth", "PCIe4", "--time-limit", "5s", "-o", "-", "-q")
    assert done.json()["host"]["bandwidth_out"] == 25_000_000_000


def test_what_is_known_of_one_offer_serves_the_others() -> None:
    """Random times and bounds: offers get better with memory and speed, and hold what each alone says."""
    rng = random.Random(0)
    budgets = [("1GB", 10**9), ("2GB", 2 * 10**9), ("4GB", 4 * 10**9)]
    links = [("a", Host(1e9, 1e9)), ("b", Host(4e9, 0.5e9)), ("c", Host(4e9, 4e9))]

    def times() -> list[list[float | None]]:
        return [[rng.choice((None, rng.uniform(10, 20))) for _ in budgets] for _ in links]

    for _ in range(50):
        [again], copy, both = times()[:1], times(), times()
        bound = [[rng.uniform(0, 10) for _ in budgets] for _ in links]
        made = offers(links, budgets, again, copy, both, bound)
        worth = Worth(Graph("g", (Node("a", 1.0, (), (1,)),), (0,), cost_unit="s"), tuple(links), tuple(budgets), made)
        for at in range(3):
            for place in range(3):
                offer = worth.offer(at, place)
                known = [time for time in (offer.recompute, offer.copy) if time is not None]
                assert offer.both is not None or not known
                assert offer.both is None or offer.bound <= offer.both <= min(known, default=math.inf)
                assert offer.bound >= bound[at][place]
                if place:
                    smaller = worth.offer(at, place - 1)
                    assert smaller.both is None or offer.both <= smaller.both
                    assert smaller.bound >= offer.bound
        # a is slower than c in both directions, b only in one of them than a.
        assert worth.offer(2, 0).bound <= min(worth.offer(0, 0).bound, worth.offer(1, 0).bound)
        slope = worth.memory(0, 1)
        if slope is not None:
            assert 0 <= slope.least <= slope.found + 1e-9 <= slope.most + 2e-9
            found = (worth.offer(0, 1).both - worth.offer(0, 2).both) / 2
            assert slope.found == pytest.approx(found)
        assert worth.memory(0, 2) is None
        assert worth.speed(2, 0) is None
        if (faster := worth.speed(0, 0)) is not None:
            assert isinstance(faster, Slope)
