"""Bands of lifetimes: with the fixed memory below and the rest above they fill the memory in use exactly."""

import random
from itertools import pairwise

import pytest
from families import random_graph
from hypothesis import given
from report_cases import checkpointed, plan_of, plans, training_chain

from remat_cli.plan import occupancy as module
from remat_cli.plan.check import check
from remat_cli.plan.model import Allocate, Compute, Plan
from remat_cli.plan.occupancy import Band, Kind, bands, lifetimes
from remat_cli.reports.web.lifetimes import lifetimes_section


def floors(band: Band) -> dict[int, int]:
    """The lower edge of a band at each statement."""
    ends = [*(at for at, _ in band.steps[1:]), band.lifetime.end]
    return {at: low for (first, low), end in zip(band.steps, ends, strict=True) for at in range(first, end)}


def check_stack(plan: Plan) -> None:
    seen, profile = bands(plan.graph, plan.statements), check(plan).replay.profile
    edges = [floors(band) for band in seen.drawn]
    for at, used in enumerate(profile):
        level = plan.graph.fixed_memory
        for band, own in zip(seen.drawn, edges, strict=True):
            if at in own:
                assert own[at] == level
                level += plan.graph.size[band.lifetime.value]
        assert level == seen.tops[at]
        workspace = plan.graph.nodes[s.node].workspace if isinstance(s := plan.statements[at], Compute) else 0
        assert level + sum(bytes_of[at] for bytes_of in seen.rest.values()) + workspace == used


@given(plans())
def test_bands_lie_on_each_other_and_with_the_rest_are_what_the_judge_counted(plan: Plan):
    check_stack(plan)


@given(plans())
def test_lifetimes_are_the_allocations_of_the_plan(plan: Plan):
    found = lifetimes(plan.graph, plan.statements)
    if check(plan).valid:
        made = [(s.value, at) for at, s in enumerate(plan.statements) if isinstance(s, Allocate)]
        assert [(life.value, life.first) for life in found] == made
        for value in range(len(plan.graph.size)):
            own = [life for life in found if life.value == value]
            assert all(one.end <= other.first for one, other in pairwise(own))
            assert [life.kind is Kind.RECOMPUTED for life in own] == [k > 0 for k in range(len(own))]


def test_of_many_values_the_largest_have_bands(monkeypatch):
    graph = random_graph(random.Random(1), 600, phases=True)
    plan = plan_of(graph, list(range(600)), None)
    whole = bands(graph, plan.statements)
    assert len(whole.drawn) == 400
    assert len(whole.lifetimes) == 600
    least = min(graph.size[band.lifetime.value] for band in whole.drawn)
    left = {life.value for life in whole.lifetimes} - {band.lifetime.value for band in whole.drawn}
    assert least >= max(graph.size[value] for value in left)
    check_stack(plan)
    monkeypatch.setattr(module, "_MOST_STEPS", 300)
    fewer = bands(graph, plan.statements)
    assert 0 < sum(len(band.steps) for band in fewer.drawn) <= 300
    check_stack(plan)


def test_a_recomputed_value_has_a_band_for_each_time():
    graph = training_chain()
    seen = bands(graph, plan_of(graph, checkpointed(), None).statements)
    kinds = {}
    for band in seen.drawn:
        kinds.setdefault(band.lifetime.value, []).append(band.lifetime.kind)
    again = [found for found in kinds.values() if len(found) > 1]
    assert again
    assert all(found == [Kind.FORWARD, Kind.RECOMPUTED] for found in again)


@pytest.mark.parametrize("nodes", [12, 600])
def test_thin_bands_have_no_edges_and_every_kind_has_one_swatch(nodes):
    graph = random_graph(random.Random(1), nodes, phases=True)
    plan = plan_of(graph, list(range(nodes)), None)
    report = check(plan)
    traces = lifetimes_section(report, plan)[0].charts[0].traces
    drawn = bands(graph, plan.statements).drawn
    edged = [trace["line"]["width"] > 0 for trace in traces if "meta" in trace]
    assert len(edged) == len(drawn)
    assert any(edged) == (nodes == 12)
    for band, has_edge in zip(drawn, edged, strict=True):
        height_px = 400 * graph.size[band.lifetime.value] / report.replay.peak_bytes
        width_px = 330 * (band.lifetime.end - band.lifetime.first) / len(plan.statements)
        assert has_edge <= (min(height_px, width_px) >= 3)
    shown = [trace["name"] for trace in traces if "name" in trace and trace.get("showlegend", True)]
    assert len(shown) == len(set(shown))
