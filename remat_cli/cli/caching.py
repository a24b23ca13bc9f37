"""``remat solve --cache``: a plan that an earlier run made, instead of another search."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from remat_cli.cli.output import Output
from remat_cli.control import Ending, Outcome, Progress
from remat_cli.errors import UsageError
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.plan.check import check
from remat_cli.planning.cache import PlanCache
from remat_cli.planning.job import Job, Solved
from remat_cli.planning.least_peak import solve_smallest
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.solving import solve
from remat_cli.tolerances import SAME_COST
from remat_cli.units import Budget


def solve_or_recall(
    graph: Graph,
    budget: Budget | None,
    options: SolveOptions,
    *,
    least_peak: bool,
    folder: Path | None,
    out: Output,
    dask: str | None,
    listener: Callable[[Progress], None],
) -> tuple[Solved, str | None]:
    """A plan, and the file of the cache that it was found in; None for the file if it was made now.

    A plan from the cache is replayed before it is used. It is the answer if its search came to its end, unless a
    cheaper one within the budget is in the cache, for a smaller budget. Else the search starts from what is there.

    Args:
        graph: The graph.
        budget: The budget; None for none.
        options: How to solve. If a model or a solver's log is to be written, nothing is taken from the cache.
        least_peak: Whether to ask for the least peak instead of the least cost.
        folder: The folder of the cache; None for no cache.
        out: Gets a note if the plan cannot be kept.
        dask: Address of a Dask scheduler; None for this machine.
        listener: Receives the progress of the search.

    Raises:
        RematError: As the two ways of solving.
    """
    budget_bytes = None if budget is None else budget.bytes_for(no_remat_peak(graph))
    cache = None if folder is None else PlanCache(folder)
    path = None if cache is None else cache.path(graph, budget_bytes, options, least_peak=least_peak)
    near = () if cache is None or least_peak else cache.near(graph, budget_bytes, options)
    if cache is not None and path is not None and options.write_model is None and options.solver_log is None:
        job = Job.of(graph, options, None)  # refuses what a search would refuse
        plan = cache.find(path, graph, budget_bytes, complete=True)
        if plan is not None and not (near and near[0].cost < plan.claim.cost * (1 - SAME_COST)):
            text = None if budget is None else budget.text
            plan = replace(plan, provenance={**plan.provenance, "budget": text})
            report = check(plan, budget_bytes=budget_bytes, budget_text=text or "")
            return Solved(plan, report, Ending(Outcome.FINISHED), time.monotonic() - job.started_s), str(path)
    solved = (
        solve_smallest(graph, options, listener=listener)
        if least_peak
        else solve(graph, budget, options, dask=dask, listener=listener, near=near)
    )
    if cache is not None and path is not None:
        try:
            cache.keep(path, solved.plan)
        except UsageError as error:
            out.note(f"remat: the plan was not cached: {error.message}")
    return solved, None
