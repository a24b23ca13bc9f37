"""What lives in memory over time, and R and S as pictures, against the judge and the matrices themselves."""

import random
from itertools import pairwise

import pytest
from families import random_graph
from hypothesis import given
from hypothesis import strategies as st
from report_cases import checkpointed, plan_of, plans, training_chain

from remat_cli.plan import occupancy as module
from remat_cli.plan.check import check
from remat_cli.plan.matrices import AGAIN, FIRST, matrices_of, raster
from remat_cli.plan.model import Allocate, Compute, Plan
from remat_cli.plan.occupancy import NAMED, Band, Kind, bands, lifetimes, occupancy
from remat_cli.reports.web.lifetimes import lifetimes_section


@given(plans(), st.sampled_from([2, 7, 2000]))
def test_bytes_of_all_kinds_are_what_the_judge_counted(plan: Plan, at_most: int):
    replay = check(plan).replay
    seen = occupancy(plan.graph, plan.statements, replay.profile, at_most)
    assert len(seen.moments) <= at_most
    for moment in seen.moments:
        group = range(moment.first, min(moment.first + seen.each, len(plan.statements)))
        assert moment.statement in group
        assert sum(moment.bytes.values()) == replay.profile[moment.statement] == max(replay.profile[at] for at in group)
    if seen.moments:
        assert max(sum(m.bytes.values()) for m in seen.moments) == replay.peak_bytes
        assert seen.statements == len(replay.profile)


@given(plans())
def test_the_largest_values_at_the_peak_are_the_judge_s(plan: Plan):
    replay = check(plan).replay
    seen = occupancy(plan.graph, plan.statements, replay.profile)
    if replay.peak_statement is not None and replay.valid:
        moment = seen.moments[replay.peak_statement]
        assert sorted(size for _, size, _ in moment.largest) == sorted(s for _, s in replay.residents[:NAMED])
        assert moment.values == len(replay.residents)


def test_kinds_tell_recomputation_and_phases_apart():
    graph = training_chain()
    computes = checkpointed()
    plan = plan_of(graph, computes, None)
    seen = occupancy(graph, plan.statements, check(plan).replay.profile)
    assert set(seen.kinds()) == {
        Kind.FIXED, Kind.FORWARD, Kind.LOSS, Kind.BACKWARD, Kind.RECOMPUTED, Kind.WORKSPACE,
    }  # fmt: skip
    doing = {}
    for at, statement in enumerate(plan.statements):
        if isinstance(statement, Compute):
            again = statement.node in doing.values()
            doing[at] = statement.node
            phase = graph.nodes[statement.node].phase
            assert seen.moments[at].doing is (Kind.RECOMPUTED if again else Kind(phase.value))
    covered = [run for kind in Kind for run in seen.runs(kind)]
    assert sum(last - first for first, last in covered) == len(plan.statements)
    # A bucket in which anything is computed again says so.
    coarse = occupancy(graph, plan.statements, check(plan).replay.profile, 1)
    assert [m.doing for m in coarse.moments] == [Kind.RECOMPUTED]


def test_matrices_as_pictures_have_every_entry():
    graph = training_chain()
    computes = checkpointed()
    plan = plan_of(graph, computes, None)
    exact = matrices_of(graph, computes)
    fine, coarse = raster(plan), raster(plan, 6)
    n = len(graph.nodes)
    assert fine.each == 1
    assert fine.computed.shape == (n + 1, n)
    for t in range(n + 1):
        for i in range(n):
            said = FIRST if t == i else AGAIN
            assert fine.computed[t, i] == (said if (t, i) in exact.computed else 0)
            values = graph.values_of(i)
            assert fine.kept[t, i] == any(s < t <= e for v in values for s, e in exact.kept[v])
    assert coarse.each == -(-n // 6)
    for t in range(coarse.kept.shape[0]):
        for i in range(coarse.kept.shape[1]):
            block = slice(t * coarse.each, (t + 1) * coarse.each), slice(i * coarse.each, (i + 1) * coarse.each)
            assert coarse.kept[t, i] == fine.kept[block].max(initial=0)
            assert coarse.computed[t, i] == fine.computed[block].max(initial=0)


def test_a_plan_without_stages_has_no_matrices():
    graph = training_chain()
    plan = plan_of(graph, checkpointed(), None)
    computes = [s for s in plan.statements if isinstance(s, Compute)]
    assert raster(plan) is not None
    assert raster(plan_of(graph, [], None)) is None
    broken = Plan(graph, (computes[3],), None, plan.claim, "keep-all")
    assert raster(broken) is None


@pytest.mark.parametrize("statements", [0, 1])
def test_next_to_nothing(statements: int):
    graph = training_chain(1)
    plan = plan_of(graph, [0], None)
    cut = plan.statements[:statements]
    profile = check(Plan(graph, cut, None, plan.claim, "keep-all")).replay.profile
    assert len(occupancy(graph, cut, profile).moments) == statements


# Values as bands


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
