"""Searches and comparisons on a real Dask scheduler with real worker processes."""

import gc
import os
import signal

import bruteforce
import pytest

from remat_cli.control import Outcome
from remat_cli.errors import Infeasible, LimitReached, UsageError
from remat_cli.plan.comparison import Ended
from remat_cli.planning.comparison import Execution, compare
from remat_cli.planning.curve import PointStatus, solve_curve
from remat_cli.planning.executors import DaskExecutor
from remat_cli.planning.options import Limits, SolveOptions
from remat_cli.planning.solving import solve
from remat_cli.units import parse_budgets
from remat_cli.zoo.registry import build_graph

pytestmark = pytest.mark.filterwarnings("ignore")  # Dask's own: busy ports, workers that it restarts

CHAIN = build_graph("unit-chain{n=9}")


@pytest.fixture
def cluster():
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as made:
        yield made
    gc.collect()  # what Dask leaves open is said here, and not in a later test


@pytest.mark.parametrize("killed", [0, 1, 2])
def test_a_curve_on_a_cluster_is_that_of_one_machine_also_if_workers_are_lost(cluster, killed):
    victims = [worker.pid for worker in cluster.workers.values()][:killed]
    assert len(victims) == killed

    def kill(progress):
        while victims:
            os.kill(victims.pop(), signal.SIGKILL)

    budgets = (2, 3, 4, 5, 6)
    curve = solve_curve(CHAIN, [f"{b}B" for b in budgets], dask=cluster.scheduler_address, listener=kill)
    assert not victims
    assert curve.outcome is Outcome.FINISHED
    found = [point.solved and point.solved.plan.claim.cost for point in curve.points]
    assert found == [bruteforce.cheapest(CHAIN, b) for b in budgets]
    assert {point.status for point in curve.points if point.solved} == {PointStatus.OPTIMAL}


def test_one_budget_on_a_cluster(cluster):
    solved = solve(CHAIN, "4B", SolveOptions(time_limit_s=30), dask=cluster.scheduler_address)
    assert solved.plan.claim.cost == bruteforce.cheapest(CHAIN, 4)
    assert solved.plan.claim.status == "optimal"
    with pytest.raises(Infeasible):
        solve(CHAIN, "2B", dask=cluster.scheduler_address)


def test_time_limits_hold_on_a_cluster(cluster):
    graph = build_graph("linear{n=40,backward=operator}")
    try:
        solved = solve(graph, "30%", SolveOptions(time_limit_s=3, gap=0), dask=cluster.scheduler_address)
    except LimitReached:
        return  # no plan so soon on a busy machine
    assert solved.wall_s < 15
    assert solved.report.within_budget


def test_no_scheduler_there(monkeypatch):
    monkeypatch.setattr("remat_cli.planning.dask_cluster.CONNECT_S", 1)
    with pytest.raises(UsageError, match="no Dask scheduler answers"):
        solve(CHAIN, "4B", dask="tcp://127.0.0.1:9")
    with pytest.raises(UsageError, match="no Dask scheduler answers"):
        compare(CHAIN, parse_budgets("4"), ["keep-all"], execution=Execution(DaskExecutor("tcp://127.0.0.1:9")))


# Comparisons


def compared(cluster, listener):
    return compare(
        CHAIN,
        parse_budgets("3:6:1"),
        ["checkmate-ilp", "optimal", "keep-all"],
        Limits(time_limit_s=120),
        Execution(DaskExecutor(cluster.scheduler_address), listener=listener),
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_lost_workers_take_no_row_along(cluster, workers):
    """Nor the only copies of the graph: those of all workers are lost when both are."""
    victims = [worker.pid for worker in cluster.workers.values()][:workers]
    assert len(victims) == workers

    def kill(row, done, whole):
        while victims:
            os.kill(victims.pop(), signal.SIGKILL)

    comparison = compared(cluster, kill)
    assert not victims
    assert not comparison.interrupted
    assert {row.ended for row in comparison.rows} == {Ended.PLAN, Ended.NONE}, comparison.rows
    assert [row.cost for row in comparison.by_strategy()["optimal"]] == [
        bruteforce.cheapest(CHAIN, b) for b in (3, 4, 5, 6)
    ]


def test_a_lost_scheduler_is_said_in_every_row_that_was_not_there_yet(cluster):
    comparison = compared(cluster, lambda row, done, whole: cluster.close())
    first, *others = sorted(comparison.rows, key=lambda row: row.ended is Ended.FAILED)
    assert first.ended in {Ended.PLAN, Ended.NONE}
    assert {row.ended for row in others} == {Ended.FAILED}
    for row in others:
        assert row.message.startswith("on the cluster: FutureCancelledError: ")
        assert "scheduler-connection-lost" in row.message
        assert "\n" not in row.message
