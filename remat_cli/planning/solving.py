"""From a graph and a budget to a plan that has been replayed: recalled from a cache, or found by a search."""

from collections.abc import Callable, Sequence

from remat_cli.control import Ending, Progress
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.planning.cache import PlanCache
from remat_cli.planning.job import Job
from remat_cli.planning.options import OPTIMAL_GAP, SolveOptions
from remat_cli.planning.refusals import STOPPED, no_plan, refuse_impossible
from remat_cli.planning.solution_pool import PooledRuns, SolutionPool
from remat_cli.planning.solved import Solved, replayed
from remat_cli.planning.splitting import cheapest_split
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
    cache: PlanCache | None = None,
    dask: str | None = None,
    listener: Callable[[Progress], None] | None = None,
    near: Sequence[WarmStart] = (),
) -> Solved:
    """The cheapest plan of ``graph`` within ``budget`` that the strategy finds; see :func:`remat_cli.solve`.

    ``near`` are plans to start from, besides that of ``options``; the answer costs no more than any that fits.
    """
    asked = None if budget is None else as_budget(budget)
    options = options or SolveOptions()

    def search(starts: Sequence[WarmStart]) -> Solved:
        plans = (*near, *starts)
        if not (graph.splits and options.split):
            return _search(graph, asked, options, dask, listener, plans)

        def solve_one(choice: Graph, how: SolveOptions) -> Solved:
            return _search(choice, asked, how, dask, listener, plans if choice is graph else ())

        return cheapest_split(graph, options, solve_one)

    return search(()) if cache is None else cache.recall_or_search(graph, asked, options, search)


def _search(
    graph: Graph,
    asked: Budget | None,
    options: SolveOptions,
    dask: str | None,
    listener: Callable[[Progress], None] | None,
    near: Sequence[WarmStart],
) -> Solved:
    """A plan by a search, replayed."""
    budget_bytes = None if asked is None else asked.bytes_for(no_remat_peak(graph.whole))
    job = Job.of(graph, options, listener, near)
    if budget_bytes is not None:
        refuse_impossible(graph, budget_bytes, asked)
    task, control = job.task(budget_bytes), job.context.control
    with interruptible(control):
        if dask is None or budget_bytes is None or not job.strategy.minds_budget:
            answer, ending = job.attempt(task)
        else:
            answer, ending = _on_cluster(dask, job, budget_bytes, listener)
        if isinstance(answer, NotFound):
            raise no_plan(graph, asked, budget_bytes, answer, control)
        return replayed(job, task, answer, ending, asked)


def _on_cluster(
    address: str, job: Job, budget_bytes: int, listener: Callable[[Progress], None] | None
) -> tuple[Found | NotFound, Ending]:
    """Search on the workers of a Dask cluster."""
    from remat_cli.planning.dask_cluster import search_on_cluster  # most searches need no cluster

    pool = SolutionPool(job.graph, job.options.host)
    for start in job.starts:
        pool.add(start.found)
    outcomes = search_on_cluster(address, PooledRuns(job, pool), [budget_bytes], listener)
    answer = pool.answer(budget_bytes) or NotFound(STOPPED)
    return answer, Ending(outcomes[budget_bytes])
