"""What lives in memory over time, and R and S as pictures, against the judge and the matrices themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_cases import checkpointed, plan_of, plans, training_chain

from remat_cli.plan.check import check
from remat_cli.plan.matrices import AGAIN, FIRST, matrices_of, raster
from remat_cli.plan.model import Compute, Plan
from remat_cli.plan.occupancy import NAMED, Kind, occupancy


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
