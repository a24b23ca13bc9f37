"""Searches for plans: within a budget, for several budgets, at the least peak, for the largest batch, for a tool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, cast

from remat_cli.api.arguments import as_number, as_path, as_text, as_whole, options_of
from remat_cli.api.documents import Source, as_graph
from remat_cli.control import Progress
from remat_cli.errors import UsageError, Worded, wrong_type
from remat_cli.files import require_writable
from remat_cli.graph.batched import Batched
from remat_cli.graph.model import Graph
from remat_cli.planning import curve, least_peak, policies, solving
from remat_cli.planning import max_batch as batches
from remat_cli.planning.cache import PlanCache, user_folder
from remat_cli.planning.curve import Curve
from remat_cli.planning.max_batch import MaxBatch
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.policies import Policy
from remat_cli.planning.solved import Solved
from remat_cli.tracebacks import door
from remat_cli.units import Budget, as_budget, as_size, parse_budget

ONE_FORWARD = "one-forward"
"""The limit of cost that allows to recompute one forward pass."""


@door
def solve(
    graph: Graph | Source,
    budget: Budget | str | float | None,
    options: SolveOptions | None = None,
    *,
    cache: str | PathLike[str] | bool | None = None,
    dask: str | None = None,
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
        graph: The graph: an object, a path, or the data of a document.
        budget: ``"16GB"``, ``"80%"`` (of the no-remat peak), a number of bytes such as ``16e9``, or None for no limit.
            Fixed memory is included.
        options: How to solve.
        cache: A folder for plans, made if missing, or True for the user's cache folder. A plan for the same graph,
            budget, options and version of remat is not searched for again if an earlier search for it came to its end;
            ``recalled_from`` then names its file. A search starts from the newest plans for other budgets.
        dask: Address of a Dask scheduler, such as ``tcp://host:8786``, on whose workers to search with several seeds.
        listener: Receives the progress, from any thread.

    Raises:
        Infeasible: If no plan fits, with the reason.
        LimitReached, Interrupted: If the search has to stop before it has found a plan.
        InputError: If the graph's document is invalid.
        UsageError: If an argument or an option makes no sense.
        SolverUnavailable, SolverFailed: If the solver is missing, or failed before there was a plan.
        StrategyMismatch: If the strategy is not for this graph.
        InvalidStrategyPlan: If the strategy's plan does not replay, which is a defect of it.
    """
    asked = None if budget is None else as_budget(budget)
    return solving.solve(
        as_graph(graph),
        asked,
        options_of(options),
        cache=_cache_of(cache),
        dask=_address(dask),
        listener=listener,
    )


@door
def solve_curve(
    graph: Graph | Source,
    budgets: Iterable[Budget | str | float] | Budget | str | float,
    options: SolveOptions | None = None,
    *,
    jobs: int = 1,
    dask: str | None = None,
    listener: Callable[[Progress], None] | None = None,
) -> Curve:
    """The cheapest plan of ``graph`` within each of ``budgets``.

    Args:
        graph: As :func:`solve` takes it.
        budgets: Budgets, each as :func:`solve` takes it, or all as text: ``"40%:95%:5%"``, ``"4GB,8GB"``.
        options: How to solve; the time limit is for all budgets together.
        jobs: Number of first runs at the same time: one in this process, the others in processes with one thread each.
            Those import the main module, so a script must keep its call under ``if __name__ == "__main__"``.
        dask: Address of a Dask scheduler, on whose workers to search instead.
        listener: Receives the progress, from any thread.

    Raises:
        UsageError, SolverUnavailable, StrategyMismatch, InvalidStrategyPlan: As :func:`solve`.
        SolverFailed: If the solver failed and there is no plan for any budget.
        InputError: If the graph's document is invalid.
    """
    return curve.solve_curve(
        as_graph(graph),
        budgets,
        options_of(options),
        jobs=as_whole(jobs, "jobs"),
        dask=_address(dask),
        listener=listener,
    )


@door
def solve_smallest(
    graph: Graph | Source,
    options: SolveOptions | None = None,
    *,
    cache: str | PathLike[str] | bool | None = None,
    listener: Callable[[Progress], None] | None = None,
) -> Solved:
    """The cheapest plan that the strategy finds at the least peak that any search finds.

    The budget of the plan is that peak. Its claim has a lower bound on every peak, and the plans for which it holds.

    Args:
        graph: As :func:`solve` takes it.
        options: How to solve; the strategy only searches for the cheapest plan at the least peak.
        cache: As for :func:`solve`.
        listener: Receives the progress, from any thread.

    Raises:
        UsageError, SolverUnavailable, StrategyMismatch, InvalidStrategyPlan: As :func:`solve`.
        Infeasible: If the strategy ignores the budget, and its plan has a larger peak.
        InputError: If the graph's document is invalid.
    """
    return least_peak.solve_smallest(as_graph(graph), options_of(options), cache=_cache_of(cache), listener=listener)


@door
def max_batch(
    graph: Graph | Source | Sequence[Graph | Source] | Callable[[int], Graph],
    memory: str | float,
    *,
    graph_batch: int | Sequence[int] | None = None,
    max_overhead: str = ONE_FORWARD,
    most_cost: float | None = None,
    options: SolveOptions | None = None,
    listener: Callable[[Progress], None] | None = None,
) -> MaxBatch:
    """The largest batch for which some plan stays within a memory and a cost, by bisection over solves.

    >>> import remat_cli as remat
    >>> def made(batch):
    ...     return remat.build_graph(f"resnet18{{batch={batch}}}", cost="roofline:v100")
    >>> answer = remat.max_batch(made, "1GB", options=remat.SolveOptions(strategy="ap-greedy"))
    >>> answer.found > answer.without
    True

    Args:
        graph: One graph at ``graph_batch`` samples, as :func:`solve` takes it: all of it but its fixed memory grows
            with the batch. Or a list of several of one network, each with the costs that were measured at its batch:
            at other batches, costs and bytes lie on the lines through the nearest two. Or a function that makes the
            graph of a batch: its memory must not fall as the batch grows.
        memory: The memory, fixed memory included: a size such as ``"16GB"``, or a number of bytes.
        graph_batch: Samples that the graph was made for, or one number for each of several; None for what their
            metadata says.
        max_overhead: Limit on recomputation: ``"one-forward"`` (one more forward pass), or a percentage of the cost
            without recomputation, such as ``"30%"``.
        most_cost: What a plan may cost, in the unit of the one graph; replaces ``max_overhead``.
        options: How to solve; the time limit is for the whole search.
        listener: Receives the progress, from any thread.

    Raises:
        Infeasible: If fixed memory alone, or the working set of one sample, does not fit.
        UsageError: If memory does not grow with the batch, ``graph_batch`` is unknown or less than 1, the graph does
            not say which nodes are forward, or several graphs are not of one network.
        LimitReached, Interrupted: If the search has to stop before it has found any batch.
        SolverUnavailable, SolverFailed, StrategyMismatch: From the strategy.
        InputError: If the graph's document is invalid.
    """
    memory_bytes = as_size(memory, "memory")
    if callable(graph) or isinstance(graph, list | tuple):
        if most_cost is not None:
            raise UsageError(
                "most_cost is for one graph, since every batch has another cost",
                hint='give a percentage as max_overhead="30%"',
            )
        family = _family(graph, graph_batch)
        return batches.max_batch_of(
            family,
            memory_bytes,
            limit=lambda model: _cost_with(model, max_overhead),
            options=options_of(options),
            listener=listener,
        )
    model = as_graph(cast("Graph | Source", graph))
    if most_cost is None:
        most_cost = _cost_with(model, max_overhead)
    else:
        hint = 'give a percentage as max_overhead="30%"'
        most_cost = as_number(most_cost, "most_cost", "a number in the graph's cost unit", hint)
    return batches.max_batch(
        model,
        memory_bytes,
        graph_batch=_batch_of(model) if graph_batch is None else as_whole(graph_batch, "graph_batch"),
        most_cost=most_cost,
        options=options_of(options),
        listener=listener,
    )


@door
def one_forward(graph: Graph | Source) -> float:
    """The cost of one training step of ``graph`` with one more forward pass, a common limit on recomputation.

    Raises:
        UsageError: If no node says that it is forward.
        InputError: If the graph's document is invalid.
    """
    return batches.one_forward(as_graph(graph))


@door
def policy(
    graph: Graph | Source,
    budget: Budget | str | float,
    to: str,
    options: SolveOptions | None = None,
    *,
    listener: Callable[[Progress], None] | None = None,
) -> Policy:
    """The best plan of ``graph`` that the tool ``to`` can carry out, and the best of all plans to compare it with.

    Args:
        graph: The graph: an object, a path, or the data of a document, from ``remat export``.
        budget: ``"16GB"``, ``"80%"`` or a number of bytes, fixed memory included.
        to: ``torch-checkpoint`` (``torch.utils.checkpoint`` around modules), ``hf-every-n`` (every n-th layer),
            ``torch-tags`` (tags for operations), ``jax-names`` (names of values that ``jax.checkpoint`` saves),
            ``jax-scan`` (inside of scans), ``keras-layers`` (layers for ``keras.RematScope``), or, for settings of
            tools for training, ``torch-remat``, ``titan``, ``trl``, ``axolotl`` or ``megatron``.
        options: How to solve; the time limit is for both searches.
        listener: Receives the progress, from any thread.

    Raises:
        Infeasible: If nothing that the tool can express fits, with the reason.
        LimitReached, Interrupted: If the search has to stop before it has found a plan.
        InputError: If the graph's document is invalid.
        UsageError, SolverUnavailable, SolverFailed, StrategyMismatch: As :func:`solve`.
    """
    return policies.policy(
        as_graph(graph), as_budget(budget), as_text(to, "to"), options_of(options), listener=listener
    )


def _cache_of(value: str | PathLike[str] | bool | None) -> PlanCache | None:
    """The cache in a folder; True stands for the user's folder, and None, False and ``""`` for no cache.

    Raises:
        UsageError: If it is no path, or nothing can be written there.
    """
    if value is None or value is False or value == "":
        return None
    folder = user_folder() if value is True else Path(as_path(value, "cache"))
    require_writable(str(folder / "plan.json"))
    return PlanCache(folder)


def _address(dask: Any) -> str | None:
    return None if dask is None else as_text(dask, "dask")


def _cost_with(graph: Graph, max_overhead: str) -> float:
    """The limit of cost that ``max_overhead`` stands for."""
    if max_overhead == ONE_FORWARD:
        return one_forward(graph)
    hint = 'write "one-forward", or a percentage such as "30%"'
    if not isinstance(max_overhead, str):
        raise wrong_type("max_overhead", max_overhead, "a percentage", hint=hint)
    share = parse_budget(max_overhead)
    if not share.relative:
        raise UsageError(f'the overhead "{max_overhead}" is not a percentage', hint=hint)
    return graph.no_remat_cost * (1 + float(share.amount) / 100)


def _family(value: Sequence[Graph | Source] | Callable[[int], Graph], batches: Any) -> Batched | Callable[[int], Graph]:
    """Graphs of several batches, or the function that makes them.

    Raises:
        UsageError: If they cannot be one network's, or ``batches`` does not have a number for each.
        InputError: If a document is invalid.
    """
    if callable(value):
        if batches is not None:
            raise UsageError("a function makes the graph of any batch", hint="leave graph_batch out")
        return value
    graphs = [as_graph(one, f"graph[{i}]") for i, one in enumerate(value)]
    if batches is None:
        return Batched.of((_batch_of(graph), graph) for graph in graphs)
    numbers = list(batches) if isinstance(batches, list | tuple) else [batches]
    if len(numbers) != len(graphs):
        raise UsageError(
            f"{len(graphs)} graphs and {len(numbers)} batches", hint="say for which batch each graph was made, in order"
        )
    return Batched.of((as_whole(n, "graph_batch"), graph) for n, graph in zip(numbers, graphs, strict=True))


def _batch_of(graph: Graph) -> int:
    """The batch that the graph's metadata names: at the top, or among the options of the exporter."""
    metadata: Any = graph.metadata if isinstance(graph.metadata, Mapping) else {}
    options: Any = metadata.get("options")
    for place in (metadata, options if isinstance(options, Mapping) else {}):
        found = place.get("batch")
        if isinstance(found, int) and not isinstance(found, bool) and found > 0:
            return found
    raise UsageError(
        "the graph does not say for which batch it was made",
        hint=Worded("say it with graph_batch", "say it with --batch"),
    )
