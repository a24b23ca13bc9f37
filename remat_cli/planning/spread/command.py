"""One command on a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from remat_cli.control import Outcome, Progress
from remat_cli.planning.runs import Runs
from remat_cli.planning.spread.course import Course
from remat_cli.planning.spread.dask import dask_cluster


def spread_on(
    address: str, runs: Runs, budgets: Iterable[int], listener: Callable[[Progress], None] | None = None
) -> dict[int, Outcome]:
    """Search on the Dask cluster of the scheduler at ``address``; how the searches for each budget ended.

    Args:
        address: ``tcp://host:8786``.
        runs: Its pool gets what is found.
        budgets: Bytes.
        listener: Receives the progress.

    Raises:
        SolverUnavailable: If ``distributed`` is not installed.
        UsageError: If no scheduler answers.
    """
    with dask_cluster(address, runs.job.graph, runs.job.options) as cluster:
        return Course.of(runs, cluster, budgets, listener).run()
