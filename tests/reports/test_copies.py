"""Plans with copies in reports: the three queues on a page, kinds of memory, and the explanation of a node."""

import json
import random
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from copies import random_plan
from families import varied_graph

from remat_cli.graph.model import Graph
from remat_cli.plan.check import Report, check
from remat_cli.plan.explanation import explain
from remat_cli.plan.host import Host
from remat_cli.plan.model import Claim, ClaimStatus, Copies, Plan, Prefetch, Scope
from remat_cli.plan.occupancy import Kind, lifetimes, occupancy
from remat_cli.plan.queues import Queue
from remat_cli.plan.replay import replay
from remat_cli.reports.chrome_trace import plan_trace
from remat_cli.reports.explanation import explanation_document, explanation_text
from remat_cli.reports.style import Style
from remat_cli.reports.web import queues
from remat_cli.reports.web.page import render_page
from remat_cli.reports.web.plan import plan_page
from remat_cli.reports.web.queues import queues_section

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "explanation-v1.json").read_text())


def plan_of(seed: int) -> tuple[Plan, Report]:
    """A random plan with copies back, and its report."""
    graph: Graph = replace(varied_graph(seed, 6, 14), cost_unit="ms", name="copied")
    rng = random.Random(seed)
    plans = (random_plan(graph, rng) for _ in range(50))
    statements = next(plan for plan in plans if any(isinstance(statement, Prefetch) for statement in plan))
    host = Host(300.0, 500.0, 0.0005)
    claim = Claim(
        ClaimStatus.FEASIBLE, replay(graph, statements, host=host).time, 0.0, Scope.ANY_ORDER, copies=Copies.ANY
    )
    plan = Plan(graph, statements, None, claim, "by-hand", host=host)
    return plan, check(plan)


@pytest.mark.parametrize("seed", range(6))
def test_the_chart_of_the_queues_shows_all_that_runs(seed: int) -> None:
    plan, report = plan_of(seed)
    timing = report.replay.timing
    assert timing is not None
    [section] = queues_section(report, plan)
    [chart] = section.charts
    bars = [trace for trace in chart.traces if trace["type"] == "bar"]
    factor = timing.time / chart.layout["xaxis"]["range"][1]
    for queue, lane in ((Queue.COMPUTE, 2), (Queue.OUT, 1), (Queue.IN, 0)):
        drawn = sum(
            x * factor
            for trace in bars
            if trace["name"] != "computations wait"
            for x, y in zip(trace["x"], trace["y"], strict=True)
            if y == lane
        )
        assert drawn == pytest.approx(timing.busy(queue))
    waits = [x * factor for trace in bars if trace["name"] == "computations wait" for x in trace["x"]]
    assert sum(waits) == pytest.approx(timing.stalled)
    host = next(trace for trace in chart.traces if trace["name"] == "host memory")
    assert max(host["y"]) <= report.replay.host_peak_bytes


def test_many_spans_are_joined_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, report = plan_of(3)
    timing = report.replay.timing
    assert timing is not None
    monkeypatch.setattr(queues, "_MOST", 3)
    [section] = queues_section(report, plan)
    [chart] = section.charts
    bars = [trace for trace in chart.traces if trace["type"] == "bar" and trace["name"] != "computations wait"]
    factor = timing.time / chart.layout["xaxis"]["range"][1]
    assert sum(len(trace["x"]) for trace in bars) < len(timing.spans)
    assert sum(x * factor for trace in bars for x in trace["x"]) == pytest.approx(sum(map(timing.busy, Queue)))


def test_a_page_without_copies_has_no_queues() -> None:
    plan, report = plan_of(0)
    assert "When everything runs" in render_page(plan_page(report, plan), "c")
    bare = replace(plan, statements=(), host=None)
    assert "When everything runs" not in render_page(plan_page(check(bare), bare), "c")


@pytest.mark.parametrize("seed", range(6))
def test_what_came_back_from_the_host_is_a_kind_of_its_own(seed: int) -> None:
    plan, report = plan_of(seed)
    seen = occupancy(plan.graph, plan.statements, report.replay.profile)
    assert [sum(moment.bytes.values()) for moment in seen.moments] == list(report.replay.profile)
    assert Kind.FETCHED in seen.kinds()
    back = sum(isinstance(statement, Prefetch) for statement in plan.statements)
    assert sum(life.kind is Kind.FETCHED for life in lifetimes(plan.graph, plan.statements)) == back


def test_copies_are_part_of_the_explanation_of_a_node() -> None:
    plan, report = plan_of(1)
    told = sent = 0
    for node in range(len(plan.graph.nodes)):
        explanation = explain(plan, report, node)
        jsonschema.validate(explanation_document(explanation), SCHEMA)
        text = explanation_text(explanation, Style(120, False, True))
        back = sum(life.fetched for life in explanation.lives)
        assert text.count("copied back from the host") == back
        assert text.count("copied to the host") == sum(len(life.sent) for life in explanation.lives)
        assert ("No change was tried" in text) == any(life.fetched or life.sent for life in explanation.lives)
        assert explanation.keep == explanation.drop == ()
        told, sent = told + back, sent + sum(len(life.sent) for life in explanation.lives)
    assert told == sum(isinstance(statement, Prefetch) for statement in plan.statements)
    assert sent


def test_the_trace_counts_host_memory() -> None:
    plan, report = plan_of(2)
    events = json.loads(plan_trace(report, plan))["traceEvents"]
    counted = [event["args"]["bytes"] for event in events if event["name"] == "host memory in use"]
    assert 0 < max(counted) <= report.replay.host_peak_bytes
