"""A comparison on a real Dask scheduler with real worker processes."""

import os
import signal
import warnings

import bruteforce
import pytest

from remat_cli.api.comparing.cell import Limits
from remat_cli.api.comparing.engines import DaskEngine
from remat_cli.api.comparing.sweep import compare
from remat_cli.errors import UsageError
from remat_cli.plan.comparison import Ended
from remat_cli.units import parse_budgets
from remat_cli.zoo.registry import build_graph

CHAIN = build_graph("unit-chain{n=9}")


def test_a_lost_worker_takes_no_row_along():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Dask's own: busy ports, workers that it restarts
        from distributed import LocalCluster

        cluster = LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        )
        try:
            victims = [worker.pid for worker in cluster.workers.values()]
            lost = []

            def kill_one(row, done, whole):
                if not lost:
                    lost.append(victims[0])
                    os.kill(victims[0], signal.SIGKILL)

            comparison = compare(
                CHAIN,
                parse_budgets("3:6:1"),
                ["checkmate-ilp", "optimal", "keep-all"],
                Limits(time_limit_s=120),
                engine=DaskEngine(cluster.scheduler_address),
                listener=kill_one,
            )
        finally:
            cluster.close()
    assert lost
    assert not comparison.interrupted
    assert {row.ended for row in comparison.rows} == {Ended.PLAN, Ended.NONE}
    assert [row.cost for row in comparison.by_strategy()["optimal"]] == [
        bruteforce.cheapest(CHAIN, b) for b in (3, 4, 5, 6)
    ]


def test_no_scheduler_there(monkeypatch):
    monkeypatch.setattr("remat_cli.api.comparing.engines._CONNECT_S", 1)
    with pytest.raises(UsageError, match="no Dask scheduler answers"):
        compare(
            build_graph("unit-chain{n=5}"), parse_budgets("4"), ["keep-all"], engine=DaskEngine("tcp://127.0.0.1:9")
        )
