"""A sweep on a cluster: by real workers that search or wait, and in simulated time."""

import heapq
import math
import pickle
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

from remat_cli.control import Outcome
from remat_cli.graph.model import Graph
from remat_cli.planning.coordinator import Coordinator, Ended, Event, Run, Update
from remat_cli.planning.dask_cluster import DaskCluster, Messenger, dask_cluster
from remat_cli.planning.job import Job
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.solution_pool import PooledRuns, SolutionPool
from remat_cli.strategies.base import Known, NotFound

_START_S = 0.03
"""Seconds between the end of one search and the start of the next on a worker, as measured with waiting workers."""
_STOP_S = 0.5
"""Seconds until a search learns that its budget is closed."""


@dataclass(slots=True)
class Simulated:
    """A cluster in simulated time, as :class:`remat_cli.planning.coordinator.Cluster` says.

    Attributes:
        workers: Its workers.
        seconds: How long the leading search for a budget takes. The others end when their budget is closed.
        now_s: The time.
        busy_s: Seconds that workers searched.
        running: End, number, begin and search of those that run.
    """

    workers: int
    seconds: dict[int, float]
    now_s: float = 0.0
    busy_s: float = 0.0
    running: list[tuple[float, int, float, Run]] = field(default_factory=list)

    def slots(self) -> int:
        """One search for each worker."""
        return self.workers

    def start(self, run: Run, known: Known | None) -> None:
        """Start at once: no more are started than there are workers."""
        begins_s = self.now_s + _START_S
        lasts_s = self.seconds[run.budget_bytes] if run.leading else math.inf
        heapq.heappush(self.running, (begins_s + lasts_s, run.number, begins_s, run))

    def send(self, budget_bytes: int, update: Update) -> None:
        """End the searches of a closed budget soon."""
        if update.closed:
            soon_s = self.now_s + _STOP_S
            self.running = [
                (
                    min(end_s, max(soon_s, begins_s)) if run.budget_bytes == budget_bytes else end_s,
                    number,
                    begins_s,
                    run,
                )
                for end_s, number, begins_s, run in self.running
            ]
            heapq.heapify(self.running)

    def events(self) -> list[Event]:
        """The next end of a search; the time goes on to it."""
        self.now_s, _, begins_s, run = heapq.heappop(self.running)
        self.busy_s += self.now_s - begins_s
        answer, outcome = NotFound("simulated"), Outcome.FINISHED if run.leading else Outcome.INTERRUPTED
        return [Ended(run, answer, outcome, self.now_s - begins_s)]

    def end(self) -> None:
        """Count the searches that run as busy until now."""
        self.busy_s += math.fsum(max(0.0, self.now_s - begins_s) for _, _, begins_s, _ in self.running)


@dataclass(slots=True)
class _Logged:
    """A cluster, and when each search was started."""

    cluster: DaskCluster
    began_s: dict[int, float] = field(default_factory=dict)

    def slots(self) -> int:
        return self.cluster.slots()

    def start(self, run: Run, known: Known | None) -> None:
        self.began_s[run.number] = time.monotonic()
        self.cluster.start(run, known)

    def send(self, budget_bytes: int, update: Update) -> None:
        self.cluster.send(budget_bytes, update)

    def events(self) -> list[Event]:
        return self.cluster.events()


def waiting(graph: Graph, options: SolveOptions, run: Run, known: Known | None, name: str) -> bytes:
    """In place of a search: wait as long as the search for the budget took, or until the budget is closed."""
    stop, began_s = threading.Event(), time.monotonic()
    lasts_s = graph.metadata[str(run.budget_bytes)] if run.leading else None
    with Messenger(run, name, stop, "").going():
        stop.wait(lasts_s)
    outcome = Outcome.FINISHED if run.leading else Outcome.INTERRUPTED
    return pickle.dumps((NotFound("it only waited"), outcome, time.monotonic() - began_s))


def _coordinator(graph: Graph, cluster: Any, budgets: list[int]) -> Coordinator:
    return Coordinator.of(PooledRuns(Job.of(graph, SolveOptions(), None), SolutionPool(graph)), cluster, budgets)


def simulated(workers: int, seconds: dict[str, float]) -> dict[str, Any]:
    """A sweep in simulated time; ``seconds`` says by budget how long its search takes."""
    from remat_cli.zoo.registry import build_graph

    cluster = Simulated(workers, {int(budget): lasts_s for budget, lasts_s in seconds.items()})
    _coordinator(build_graph("linear{n=4}"), cluster, list(cluster.seconds)).run()
    cluster.end()
    busy = cluster.busy_s / (workers * cluster.now_s)
    return {"budgets": len(seconds), "wall_s": round(cluster.now_s, 2), "busy": round(100 * busy, 1)}


def swept(spec: str, percents: list[int], workers: int, waits: dict[str, float] | None) -> dict[str, Any]:
    """A sweep on a local Dask cluster.

    Args:
        spec: The graph.
        percents: First and last budget and step, as shares of the no-remat peak.
        workers: Number of worker processes.
        waits: By budget in bytes: the seconds that its search waits; None to search.

    Returns:
        Time, share of it that workers searched, number of budgets proven optimal, and the seconds of each budget.
    """
    import warnings

    from distributed import LocalCluster

    from remat_cli.graph.analysis import no_remat_peak
    from remat_cli.zoo.registry import build_graph

    warnings.filterwarnings("ignore")  # Dask's own
    graph = build_graph(spec)
    first, last, step = percents
    budgets = [no_remat_peak(graph) * percent // 100 for percent in range(first, last + 1, step)]
    search = None if waits is None else waiting
    sent = graph if waits is None else replace(graph, metadata=waits)
    with LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as local:
        began_s = time.monotonic()
        with dask_cluster(local.scheduler_address, sent, SolveOptions(), search) as cluster:
            logged = _Logged(cluster)
            coordinator = _coordinator(graph, logged, budgets)
            coordinator.run()
            ended_s = time.monotonic()
    wall_s = ended_s - began_s
    busy_s = math.fsum(ended.worked_s for ended in coordinator.ended)
    busy_s += math.fsum(ended_s - logged.began_s[number] for number in coordinator.assignment.runs)
    leading = {str(ended.run.budget_bytes): ended.worked_s for ended in coordinator.ended if ended.run.leading}
    pool = coordinator.runs.pool
    return {
        "budgets": len(budgets),
        "wall_s": round(wall_s, 2),
        "busy": round(100 * busy_s / (workers * wall_s), 1),
        "optimal": sum(pool.proven_within(budget, 1e-4) for budget in budgets) if waits is None else None,
        "seconds": {key: round(worked_s, 3) for key, worked_s in leading.items()},
    }
