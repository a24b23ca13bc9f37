"""Curves against the truth, against single solves, and under limits."""

import math
import os
import signal
import time

import pytest
from bruteforce import cheapest
from cli_process import GRAPHS, script
from families import chosen_graph
from seeded import seeded

from remat_cli.control import Control, Outcome
from remat_cli.errors import SolverFailed, StrategyMismatch, UsageError
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.io import load_graph
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Scope
from remat_cli.plan.replay import replay
from remat_cli.planning.curve import Curve, PointStatus, _CurveSearch, solve_curve
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.solution_pool import SolutionPool
from remat_cli.planning.solving import solve
from remat_cli.strategies.base import Bound, Found, NotFound, Schedule
from remat_cli.units import Budget, parse_budget
from remat_cli.zoo.registry import build_graph


def small(seed: int) -> Graph:
    """A random graph with room for recomputation."""
    return chosen_graph(
        seed, lambda graph: no_remat_peak(graph) - peak_bound(graph).bytes >= 2, random_outputs=seed % 3 == 0
    )


def all_budgets(graph: Graph) -> list[Budget]:
    return [parse_budget(str(b)) for b in range(peak_bound(graph).bytes - 1, no_remat_peak(graph) + 2) if b >= 0]


def well_formed(curve: Curve) -> None:
    """Rising budgets, valid plans within them, and neither cost nor bound rising."""
    budgets = [point.budget_bytes for point in curve.points]
    assert budgets == sorted(set(budgets))
    before = math.inf
    bound = math.inf
    had_one = False
    for point in curve.points:
        if point.solved is None:
            assert point.refusal is not None
            assert not had_one, "no plan though there is one for a smaller budget"
            continue
        had_one = True
        plan, report = point.solved.plan, point.solved.report
        seen = replay(curve.graph, plan.statements)
        assert seen.valid
        assert seen.peak_bytes <= point.budget_bytes == plan.budget_bytes == report.budget_bytes
        assert plan.claim.cost == seen.cost <= before
        assert plan.claim.lower_bound <= min(seen.cost, bound)
        before, bound = seen.cost, plan.claim.lower_bound


@seeded(range(6), infeasible=8, optimal=15, costlier=8)
def test_no_point_is_below_the_truth_and_what_is_called_proven_is_true(seed):
    graph = small(seed)
    curve = solve_curve(graph, all_budgets(graph), SolveOptions(threads=1, gap=1e-6))
    well_formed(curve)
    assert curve.outcome == "finished"
    for point in curve.points:
        truth = cheapest(graph, point.budget_bytes)
        if point.solved is None:
            assert point.status is PointStatus.INFEASIBLE
            passes = 1 if "frontier" in point.refusal.message else None
            assert cheapest(graph, point.budget_bytes, passes=passes) is None
            yield "infeasible"
            continue
        claim = point.solved.plan.claim
        assert truth is not None
        assert claim.cost >= truth
        passes = 1 if claim.scope is Scope.FRONTIER else None
        best = cheapest(graph, point.budget_bytes, passes=passes)
        assert claim.scope is not Scope.RESTRICTED
        assert best is None or claim.lower_bound <= best
        if point.status is PointStatus.OPTIMAL:
            assert claim.cost == best
            yield "optimal"
        if claim.cost > graph.total_cost:
            yield "costlier"


@seeded(range(20, 24), compared=10)
def test_a_curve_says_what_single_solves_say(seed):
    graph = small(seed)
    options = SolveOptions(threads=1, gap=1e-6)
    for point in solve_curve(graph, all_budgets(graph), options).points:
        if point.solved is not None:
            assert point.solved.plan.claim.cost <= solve(graph, point.budget_bytes, options).plan.claim.cost
            yield "compared"


def test_budgets_are_sorted_and_told_apart_by_bytes():
    graph = build_graph("linear{n=4}")
    top = no_remat_peak(graph)
    curve = solve_curve(graph, f"100%,{top}B,200%,{2 * top}B")
    assert [point.asked.text for point in curve.points] == ["100%", "200%"]
    assert [point.status for point in curve.points] == [PointStatus.OPTIMAL] * 2
    assert [point.solved.plan.provenance["budget"] for point in curve.points] == ["100%", "200%"]


def test_a_graph_that_nothing_fits():
    graph = build_graph("linear{n=4}")
    (point,) = solve_curve(graph, "1B").points
    assert (point.status, point.solved) == (PointStatus.INFEASIBLE, None)
    assert "too much" in point.refusal.message


def test_one_run_is_enough_for_a_strategy_that_ignores_budgets():
    graph = load_graph(str(GRAPHS / "toy.yaml"))
    curve = solve_curve(graph, "80%,90%,100%,110%", SolveOptions(strategy="keep-all"))
    assert [point.status for point in curve.points] == [PointStatus.INFEASIBLE] * 2 + [PointStatus.OPTIMAL] * 2
    assert "the plan of keep-all needs 270.5 MB" in curve.points[0].refusal.message


def test_values_kept_on_principle_count_for_the_peak():
    graph = load_graph(str(GRAPHS / "vgg16.json"))
    alone = solve(graph, None, SolveOptions(strategy="checkpoint-all{to_end=true}")).report.replay.peak_bytes
    curve = solve_curve(graph, f"{alone - 1}B,{alone}B", SolveOptions(strategy="checkpoint-all{to_end=true}"))
    assert [point.status for point in curve.points] == [PointStatus.INFEASIBLE, PointStatus.OPTIMAL]


def test_a_strategy_that_does_not_take_the_graph_says_so():
    with pytest.raises(StrategyMismatch):
        solve_curve(small(0), "100%", SolveOptions(strategy="checkpoint-all"))


def test_nonsense_is_refused():
    with pytest.raises(UsageError):
        solve_curve(build_graph("linear{n=4}"), "4GB:1GB:1GB")


def test_under_a_limit_there_are_plans_and_it_is_said():
    graph = load_graph(str(GRAPHS / "unet.json"))
    curve = solve_curve(graph, "30%:90%:20%", SolveOptions(threads=1, time_limit_s=5))
    well_formed(curve)
    assert curve.outcome == "time limit"
    assert curve.points[-1].solved is not None


def test_a_look_that_gives_up_early_is_taken_again_where_time_is_left(monkeypatch):
    tasks = []

    def solve_task(auto, task, context):
        tasks.append(task.budget_bytes)
        return NotFound("there was too little time for more")

    monkeypatch.setattr("remat_cli.strategies.searches.Auto.solve", solve_task)
    graph = build_graph("linear{n=6}")
    solve_curve(graph, "60%,70%", SolveOptions(threads=1))
    assert len(tasks) == 2
    tasks.clear()
    curve = solve_curve(graph, "60%,70%", SolveOptions(threads=1, time_limit_s=600))
    assert curve.outcome == "time limit"
    assert tasks.count(curve.points[1].budget_bytes) == 2


def test_without_time_there_are_refusals_and_no_crash():
    graph = load_graph(str(GRAPHS / "unet.json"))
    curve = solve_curve(graph, "30%,50%,100%", SolveOptions(threads=1, time_limit_s=0.001))
    well_formed(curve)
    assert [point.status for point in curve.points] == [PointStatus.UNKNOWN] * 3
    assert all("time_limit_s" in point.refusal.hint for point in curve.points)


def test_an_interruption_keeps_what_is_there():
    graph = load_graph(str(GRAPHS / "unet.json"))
    told = []

    def listener(progress):
        told.append(progress.activity)
        if progress.activity.startswith("80% (3 of 4)") and not any(a == "stop" for a in told):
            told.append("stop")
            os.kill(os.getpid(), signal.SIGINT)

    curve = solve_curve(graph, "60%:90%:10%", SolveOptions(threads=1), listener=listener)
    assert "stop" in told
    well_formed(curve)
    assert curve.outcome == "interrupted"
    assert all(point.solved is not None for point in curve.points)
    assert curve.points[-1].solved.outcome == "interrupted"
    assert curve.points[0].status is PointStatus.OPTIMAL


def test_progress_says_which_budget_it_is_about():
    graph = load_graph(str(GRAPHS / "unet.json"))
    news = []
    solve_curve(graph, "80%,90%", SolveOptions(threads=1), listener=news.append)
    places = list(dict.fromkeys(progress.activity.partition(":")[0] for progress in news))
    assert places[0] == "80% (1 of 2)"
    assert all(progress.bound is not None for progress in news)


def test_a_solver_that_fails_everywhere_is_an_error(tmp_path):
    failing = script(tmp_path / "cbc", '[ "$1" = -stop ] && echo "Version: 2" && exit\necho "out of luck"\nexit 7')
    graph = load_graph(str(GRAPHS / "toy.yaml"))
    options = SolveOptions(strategy="checkmate-ilp", solver=f"cbc{{path={failing}}}")
    with pytest.raises(SolverFailed, match="out of luck"):
        solve_curve(graph, "80%,90%", options)


# What is known at several budgets


def schedule(*computes: int) -> Found:
    return Found(Schedule(computes))


def chain_pool() -> tuple[Graph, SolutionPool]:
    graph = build_graph("unit-chain{n=9}")
    return graph, SolutionPool(graph)


def test_a_pool_keeps_what_nothing_beats():
    graph, pool = chain_pool()
    plain = tuple(range(9))
    pool.add(schedule(*plain))
    (only,) = pool.schedules
    assert (only.peak_bytes, only.cost) == (no_remat_peak(graph), graph.total_cost)
    pool.add(schedule(0, *plain))  # more expensive, and no smaller
    assert pool.schedules == [only]
    low = solve(graph, only.peak_bytes - 1)
    computes = [s.node for s in low.plan.statements if hasattr(s, "node")]
    pool.add(schedule(*computes))
    assert [entry.peak_bytes for entry in pool.schedules] == [low.report.replay.peak_bytes, only.peak_bytes]
    assert pool.within(only.peak_bytes) is only
    assert pool.within(only.peak_bytes - 1).cost == low.report.replay.cost
    assert pool.within(low.report.replay.peak_bytes - 1) is None
    assert [s.computes for s in pool.known_at(only.peak_bytes).schedules] == [plain, tuple(computes)]
    assert [s.computes for s in pool.known_at(1).schedules] == [tuple(computes)]


def test_the_answer_of_a_run_takes_the_place_of_what_it_published():
    _, pool = chain_pool()
    published, answer, late = (Found(Schedule(tuple(range(9))), used_solver=flag) for flag in (True, False, True))
    pool.add(published)
    pool.add_answer(99, answer)
    pool.add(late)
    assert [entry.found for entry in pool.schedules] == [answer]


def test_a_pool_carries_bounds_downwards_only_and_no_restricted_ones():
    _, pool = chain_pool()
    bound, restricted = Bound(10.0, Scope.FRONTIER), Bound(12.0, Scope.RESTRICTED)
    pool.add_answer(6, NotFound("none", bounds=(bound, restricted)))
    assert pool.bounds_at(6) == pool.bounds_at(5) == (bound,)
    assert pool.bounds_at(7) == ()
    assert pool.known_at(7) is None
    assert pool.known_at(6).bounds == (bound,)


def test_a_pool_finds_the_proof_that_covers_a_budget():
    _, pool = chain_pool()
    assert pool.answer(5) is None
    pool.add_answer(3, NotFound("proven at 3", scope=Scope.FRONTIER))
    pool.add_answer(5, NotFound("proven at 5", scope=Scope.FRONTIER))
    pool.add_answer(4, NotFound("out of time"))
    assert [pool.answer(budget).reason for budget in (2, 3, 4, 5)] == [
        "proven at 3",
        "proven at 3",
        "proven at 5",
        "proven at 5",
    ]
    assert pool.answer(6) is None


def test_a_plan_counts_as_proven_by_bounds_for_every_schedule_in_document_order_alone():
    graph, pool = chain_pool()
    pool.add(schedule(0, *range(9)))
    cost = graph.total_cost + graph.nodes[0].cost
    pool.add_answer(99, NotFound("x", bounds=(Bound(cost, Scope.FRONTIER),)))
    assert not pool.proven_within(99, 0.0)
    pool.add_answer(99, NotFound("x", bounds=(Bound(cost, Scope.DOCUMENT_ORDER),)))
    assert pool.proven_within(99, 0.0)
    assert not pool.proven_within(100, 0.0)


def test_a_run_that_sees_no_deadline_is_stopped_from_outside():
    whole = Control()
    clock = whole.part(most_s=0.05)
    stoppable = clock.stoppable(timed=False)
    assert stoppable.remaining_s() is None
    assert not stoppable.stopping()
    time.sleep(0.06)
    assert stoppable.stopping()
    assert not whole.stopping()


def test_a_flag_stops_its_run_alone_and_all_stop_with_the_command():
    whole = Control.within(3600)
    one, other = whole.stoppable(), whole.stoppable(timed=False)
    assert one.deadline_s == whole.deadline_s
    one.cancelled.set()
    assert (one.stopping(), other.stopping(), whole.stopping()) == (True, False, False)
    whole.cancelled.set()
    assert other.stopping()
    assert other.stopped_by() is Outcome.INTERRUPTED


@pytest.mark.parametrize(("limit_s", "timed"), [(None, False), (60.0, True)])
def test_only_under_a_time_limit_do_runs_see_a_deadline(monkeypatch, limit_s, timed):
    seen = []

    def solve_task(strategy, task, context):
        seen.append(context.control.deadline_s is not None)
        return Found(Schedule(tuple(range(len(task.graph.nodes)))))

    monkeypatch.setattr("remat_cli.strategies.searches.Auto.solve", solve_task)
    solve_curve(build_graph("linear{n=8}"), "60%,100%", SolveOptions(time_limit_s=limit_s))
    assert seen
    assert set(seen) == {timed}


@pytest.mark.parametrize("after_s", [0.0, 3600.0])
def test_several_looks_at_a_time_find_what_one_after_the_other_does(monkeypatch, after_s):
    monkeypatch.setattr("remat_cli.planning.curve._WORTH_PROCESSES", 0)
    monkeypatch.setattr("remat_cli.planning.curve._PROCESSES_AFTER_S", after_s)
    graph = build_graph("linear{n=8}")
    heard = []
    curve = solve_curve(graph, "60%:95%:10%", jobs=2, listener=heard.append)
    well_formed(curve)
    alone = solve_curve(graph, "60%:95%:10%")
    assert [p.solved.plan.claim.cost for p in curve.points] == [p.solved.plan.claim.cost for p in alone.points]
    assert curve.outcome == "finished"
    assert any("have had a first run" in progress.activity for progress in heard)


class Died(Exception):
    """What a call raises whose process died."""


@pytest.mark.parametrize(
    ("error", "said", "again"),
    [
        (Died(), "was lost with its process and is repeated", True),
        (TimeoutError(), "did not end in its time", False),
    ],
)
def test_a_first_run_that_is_lost_is_said_and_repeated_unless_it_did_not_end(monkeypatch, error, said, again):
    monkeypatch.setattr("remat_cli.planning.curve._WORTH_PROCESSES", 0)
    monkeypatch.setattr("remat_cli.planning.processes.SharedCalls.begin", lambda shared, after_s: shared.left.pop())
    monkeypatch.setattr("remat_cli.planning.processes.SharedCalls.lost", lambda shared: {len(shared.calls) - 1: error})
    budgets = []
    first_run_here = _CurveSearch._first_run_here

    def first_run(search, options, budget, most_s):
        budgets.append(search.asked[budget].text)
        return first_run_here(search, options, budget, most_s)

    monkeypatch.setattr(_CurveSearch, "_first_run_here", first_run)
    heard = []
    curve = solve_curve(build_graph("linear{n=8}"), "60%:90%:10%", jobs=2, listener=heard.append)
    assert budgets == ["70%", "80%", *(["90%"] if again else [])]
    assert f"90%: the first run {said}" in [progress.activity for progress in heard]
    assert all(point.status is PointStatus.OPTIMAL for point in curve.points)


def test_a_process_that_dies_costs_no_plan(monkeypatch):
    monkeypatch.setattr("remat_cli.planning.curve._WORTH_PROCESSES", 0)
    monkeypatch.setattr("remat_cli.planning.curve._PROCESSES_AFTER_S", 0.0)
    monkeypatch.setattr(
        "remat_cli.planning.curve._first_run", os.abort
    )  # called with arguments, it fails in its process
    curve = solve_curve(build_graph("linear{n=8}"), "60%:90%:10%", jobs=2)
    assert all(point.status is PointStatus.OPTIMAL for point in curve.points)
