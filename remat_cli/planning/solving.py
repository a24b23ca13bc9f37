"""From a graph and a budget to a plan that has been replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from remat_cli.control import Ending, Progress
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.planning.job import Job, Solved
from remat_cli.planning.options import OPTIMAL_GAP, SolveOptions
from remat_cli.planning.pooled_runs import PooledRuns
from remat_cli.planning.refusals import STOPPED, no_plan, refuse_impossible
from remat_cli.planning.solution_pool import SolutionPool
from remat_cli.planning.warm_start import WarmStart
from remat_cli.running import interruptible
from remat_cli.strategies.base import Found, NotFound
from remat_cli.units import Budget, as_budget

__all__ = ["OPTIMAL_GAP", "SolveOptions", "Solved", "solve"]


def solve(
    graph: Graph,
    budget: Budget | str | float | None,
    options: SolveOptions | None = None,
    *,
    dask: str | None = None,
    listener: Callable[[Progress], None] | None = None,
    near: Sequence[WarmStart] = (),
) -> Solved:
    """The cheapest plan of ``graph`` within ``budget`` that the strategy finds.

    Args:
        graph: The graph.
        budget: As :func:`as_budget` takes it, or None for no limit; fixed memory included.
        options: How to solve.
        dask: Address of a Dask scheduler, on whose workers to search with several seeds; None for this machine.
        listener: Receives the progress, from any thread.
        near: Plans of the graph to start from, beside that of ``options``: the answer costs no more than any that fits.

    Raises:
        Infeasible: If no plan fits, with the reason.
        LimitReached, Interrupted: If the search has to stop before it has found a plan.
        UsageError, SolverUnavailable, SolverFailed, StrategyMismatch, InvalidStrategyPlan: As their names say.
    """
    asked = None if budget is None else as_budget(budget)
    budget_bytes = None if asked is None else asked.bytes_for(no_remat_peak(graph))
    job = Job.of(graph, options or SolveOptions(), listener, near)
    if budget_bytes is not None:
        refuse_impossible(graph, budget_bytes, asked)
    task = job.task(budget_bytes)
    control = job.context.control
    with interruptible(control):
        if dask is None or task.budget_bytes is None or not job.strategy.minds_budget:
            answer, ending = job.attempt(task)
        else:
            answer, ending = _spread(dask, job, task.budget_bytes, listener)
        if isinstance(answer, NotFound):
            raise no_plan(graph, asked, budget_bytes, answer, control)
        return job.solved(task, answer, ending, asked)


def _spread(
    address: str, job: Job, budget_bytes: int, listener: Callable[[Progress], None] | None
) -> tuple[Found | NotFound, Ending]:
    """Search on the workers of a Dask cluster."""
    from remat_cli.planning.cluster.dask import search_on_cluster

    pool = SolutionPool(job.graph, job.options.host)
    for start in (job.start, *job.near):
        if start is not None:
            pool.add(start.found)
    outcomes = search_on_cluster(address, PooledRuns(job, pool), [budget_bytes], listener)
    answer = pool.answer(budget_bytes) or NotFound(STOPPED)
    return answer, Ending(outcomes[budget_bytes])
