"""From a graph and a budget to a plan that has been replayed."""

from __future__ import annotations

from collections.abc import Callable

from remat_cli.control import Progress
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.planning.job import Job, Solved
from remat_cli.planning.options import OPTIMAL_GAP, SolveOptions
from remat_cli.planning.refusals import no_plan, refuse_impossible
from remat_cli.running import interruptible
from remat_cli.strategies.base import NotFound
from remat_cli.units import Budget, parse_budget

__all__ = ["OPTIMAL_GAP", "SolveOptions", "Solved", "solve"]


def solve(
    graph: Graph,
    budget: Budget | str | int | None,
    options: SolveOptions | None = None,
    *,
    listener: Callable[[Progress], None] | None = None,
) -> Solved:
    """The cheapest plan of ``graph`` within ``budget`` that the strategy finds.

    >>> import remat_cli as remat
    >>> graph = remat.build_graph("unit-chain{n=17}")
    >>> solved = remat.solve(graph, "6B", remat.SolveOptions(strategy="optimal", time_limit_s=60))
    >>> claim = solved.plan.claim
    >>> claim.status.value, claim.cost, claim.lower_bound
    ('optimal', 21.0, 21.0)
    >>> remat.solve(graph, "2B")
    Traceback (most recent call last):
    ...
    remat_cli.errors.Infeasible: ...

    Args:
        graph: The graph.
        budget: ``"16GB"``, ``"80%"`` (of the no-remat peak), bytes, or None for no limit; fixed memory included.
        options: How to solve.
        listener: Receives the progress, from any thread.

    Raises:
        Infeasible: If no plan fits, with the reason.
        LimitReached, Interrupted: If the search has to stop before it has found a plan.
        UsageError, SolverUnavailable, SolverFailed, StrategyMismatch, InvalidStrategyPlan: As their names say.
    """
    asked = parse_budget(str(budget)) if isinstance(budget, str | int) else budget
    budget_bytes = None if asked is None else asked.bytes_for(no_remat_peak(graph))
    job = Job.of(graph, options or SolveOptions(), listener)
    if budget_bytes is not None:
        refuse_impossible(graph, budget_bytes, asked)
    task = job.task(budget_bytes)
    control = job.context.control
    with interruptible(control):
        answer, ending = job.attempt(task)
    if isinstance(answer, NotFound):
        raise no_plan(graph, asked, budget_bytes, answer, control)
    return job.solved(task, answer, ending, asked)
