"""The searches, for graphs and budgets in every form in which people have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from remat_cli.api.arguments import as_number, as_path, as_text, as_whole, options_of
from remat_cli.api.reading import Source, as_graph
from remat_cli.errors import UsageError, Worded, wrong_type
from remat_cli.graph.batched import Batched
from remat_cli.graph.model import Graph
from remat_cli.tracebacks import door
from remat_cli.units import Budget, as_budget, as_size, parse_budget

if TYPE_CHECKING:
    from remat_cli.control import Progress
    from remat_cli.plan.comparison import Comparison, Row
    from remat_cli.plan.host import Host
    from remat_cli.plan.linked import Linked
    from remat_cli.plan.worth import Worth
    from remat_cli.planning.batches import MaxBatch
    from remat_cli.planning.comparing.cell import Limits
    from remat_cli.planning.comparing.executors import Executor
    from remat_cli.planning.curve import Curve
    from remat_cli.planning.job import Solved
    from remat_cli.planning.options import SolveOptions
    from remat_cli.strategies.base import Strategy

LINKS = "pcie3,pcie4,pcie5,nvlink-c2c"
"""Links to compare if none are named."""
ONE_FORWARD = "one-forward"
"""The limit of cost that allows to recompute one forward pass."""


@door
def solve(
    graph: Graph | Source,
    budget: Budget | str | float | None,
    options: SolveOptions | None = None,
    *,
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
        dask: Address of a Dask scheduler, such as ``tcp://host:8786``, on whose workers to search with several seeds.
        listener: Receives the progress, from any thread.

    Raises:
        Infeasible: If no plan fits, with the reason.
        LimitReached, Interrupted: If the search has to stop before it has found a plan.
        InputError: If the graph's document is invalid.
        UsageError, SolverUnavailable, SolverFailed, StrategyMismatch, InvalidStrategyPlan: As their names say.
    """
    from remat_cli.planning import solving

    asked = None if budget is None else as_budget(budget)
    return solving.solve(
        as_graph(graph),
        asked,
        options_of(options),
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
        UsageError, SolverUnavailable, StrategyMismatch, InvalidStrategyPlan: As their names say.
        SolverFailed: If the solver failed and there is no plan for any budget.
        InputError: If the graph's document is invalid.
    """
    from remat_cli.planning import curve

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
    listener: Callable[[Progress], None] | None = None,
) -> Solved:
    """The cheapest plan that the strategy finds at the least peak that any search finds.

    The budget of the plan is that peak. Its claim has a lower bound on every peak, and the plans for which it holds.

    Args:
        graph: As :func:`solve` takes it.
        options: How to solve; the strategy only searches for the cheapest plan at the least peak.
        listener: Receives the progress, from any thread.

    Raises:
        UsageError, SolverUnavailable, StrategyMismatch, InvalidStrategyPlan: As their names say.
        Infeasible: If the strategy ignores the budget, and its plan has a larger peak.
        InputError: If the graph's document is invalid.
    """
    from remat_cli.planning import smallest

    return smallest.solve_smallest(as_graph(graph), options_of(options), listener=listener)


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
    from remat_cli.planning import batch_graphs, batches

    memory_bytes = as_size(memory, "memory")
    if callable(graph) or isinstance(graph, list | tuple):
        if most_cost is not None:
            raise UsageError(
                "most_cost is for one graph, since every batch has another cost",
                hint='give a percentage as max_overhead="30%"',
            )
        family = _family(graph, graph_batch)
        return batch_graphs.max_batch_of(
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


def _address(dask: Any) -> str | None:
    return None if dask is None else as_text(dask, "dask")


@door
def one_forward(graph: Graph | Source) -> float:
    """The cost of one training step of ``graph`` with one more forward pass, a common limit on recomputation.

    Raises:
        UsageError: If no node says that it is forward.
        InputError: If the graph's document is invalid.
    """
    from remat_cli.planning import batches

    return batches.one_forward(as_graph(graph))


@door
def compare(
    graph: Graph | Source,
    budgets: Iterable[Budget | str | float] | Budget | str | float,
    strategies: Iterable[str] | str = "all",
    limits: Limits | None = None,
    *,
    executor: Executor | None = None,
    results: str | PathLike[str] | None = None,
    listener: Callable[[Row, int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> Comparison:
    """Solve ``graph`` with every strategy at every budget; a strategy that fails is a row, not an error.

    >>> import remat_cli as remat
    >>> compared = remat.compare(remat.build_graph("unit-chain{n=17}"), "60%", "keep-all,optimal")
    >>> for row in compared.rows:
    ...     print(row.strategy, row.budget, row.ended, row.cost)
    keep-all 60% none None
    optimal 60% plan 21.0

    Args:
        graph: As :func:`solve` takes it.
        budgets: Budgets, each as :func:`solve` takes it, or all as text: ``"50%:90%:10%"``.
        strategies: Names with options, one by one or as text with commas between them; ``"all"`` for all there are.
        limits: How every cell is solved; by default with HiGHS and for at most 60 seconds.
        executor: Runs the cells; None for all cores of this machine. Its processes are spawned, so a script must keep
            its call under ``if __name__ == "__main__"``.
        results: File of finished rows, one JSON object per line. Rows in it of the same graph, strategy, budget and
            limits are reused. New rows are appended as they finish. Damaged lines are left out.
        listener: Receives every new row, with the number of finished rows and of all rows.
        note: Receives a line of text for every damaged line of ``results``.

    Raises:
        UsageError: If a strategy or budget is invalid, or the results file cannot be written.
        InputError: If the graph's document or the results file is invalid.
    """
    from remat_cli.planning.comparing import sweep
    from remat_cli.planning.comparing.cell import Limits
    from remat_cli.units import as_budgets

    if limits is not None and not isinstance(limits, Limits):
        raise wrong_type("limits", limits, "Limits", hint="write remat.Limits(time_limit_s=60)")
    return sweep.compare(
        as_graph(graph),
        as_budgets(budgets),
        _strategies(strategies, host=limits is not None and limits.host is not None),
        limits,
        executor=executor,
        results=None if results is None else Path(as_path(results, "results")),
        listener=listener,
        note=note,
    )


@door
def compare_links(
    graph: Graph | Source,
    budgets: Iterable[Budget | str | float] | Budget | str | float,
    links: Iterable[str] | str = LINKS,
    strategies: Iterable[str] | str = "all",
    limits: Limits | None = None,
    *,
    latency_s: float = 0.0,
    memory: str | float | None = None,
    executor: Executor | None = None,
    results: str | PathLike[str] | None = None,
    listener: Callable[[Row, int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> Linked:
    """:func:`compare` for each of several links to a host.

    Args:
        graph: As :func:`solve` takes it; its costs are times.
        budgets: As for :func:`compare`.
        links: As for :func:`worth`.
        strategies: As for :func:`compare`; ``"all"`` are those that can be asked with a host.
        limits: How every cell is solved, as for :func:`compare`; its host is not used.
        latency_s: Seconds that every copy takes beside its bytes.
        memory: Host memory for values, ``"64GiB"`` or bytes; None for no limit.
        executor: As for :func:`compare`.
        results: As for :func:`compare`.
        listener: As for :func:`compare`; rows are counted for each link.
        note: As for :func:`compare`.

    Raises:
        UsageError: If a link, strategy or budget is invalid, or costs are not times, or the file cannot be written.
        InputError: If the graph's document or the results file is invalid.
    """
    from remat_cli.planning.comparing import linked
    from remat_cli.planning.comparing.cell import Limits as Given
    from remat_cli.units import as_budgets

    if limits is not None and not isinstance(limits, Given):
        raise wrong_type("limits", limits, "Limits", hint="write remat.Limits(time_limit_s=60)")
    return linked.compare_links(
        as_graph(graph),
        as_budgets(budgets),
        _strategies(strategies, host=True),
        _links(links, latency_s, memory),
        limits,
        executor=executor,
        results=None if results is None else Path(as_path(results, "results")),
        listener=listener,
        note=note,
    )


@door
def worth(
    graph: Graph | Source,
    budgets: Iterable[Budget | str | float] | Budget | str | float,
    links: Iterable[str] | str = LINKS,
    limits: Limits | None = None,
    *,
    latency_s: float = 0.0,
    memory: str | float | None = None,
    executor: Executor | None = None,
    results: str | PathLike[str] | None = None,
    listener: Callable[[Row, int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> Worth:
    """What the next GB of device memory, and a faster link to the host, are worth.

    Args:
        graph: As :func:`solve` takes it; its costs are times.
        budgets: As for :func:`compare`.
        links: Links to the host: ``pcie3``, ``pcie4``, ``pcie5``, ``nvlink-c2c``, or bandwidths such as
            ``25GB/s:20GB/s``; one by one, or as text with commas between them.
        limits: How every plan is solved, as for :func:`compare`; its host is not used.
        latency_s: Seconds that every copy takes beside its bytes.
        memory: Host memory for values, ``"64GiB"`` or bytes; None for no limit.
        executor: As for :func:`compare`.
        results: As for :func:`compare`.
        listener: As for :func:`compare`; rows are counted for each link.
        note: As for :func:`compare`.

    Raises:
        UsageError: If a link or a budget is invalid, or costs are not times, or the file cannot be written.
        InputError: If the graph's document or the results file is invalid.
    """
    from remat_cli.planning import worth as planning
    from remat_cli.planning.comparing.cell import Limits as Given
    from remat_cli.units import as_budgets

    if limits is not None and not isinstance(limits, Given):
        raise wrong_type("limits", limits, "Limits", hint="write remat.Limits(time_limit_s=60)")
    return planning.worth(
        as_graph(graph),
        as_budgets(budgets),
        _links(links, latency_s, memory),
        limits,
        executor=executor,
        results=None if results is None else Path(as_path(results, "results")),
        listener=listener,
        note=note,
    )


def _links(links: Iterable[str] | str, latency_s: float, memory: str | float | None) -> list[tuple[str, Host]]:
    """The links with their names, and the hosts behind them."""
    from remat_cli.plan.host import Host
    from remat_cli.units import parse_bandwidths

    if not isinstance(links, Iterable):
        raise wrong_type("links", links, 'names or bandwidths such as "pcie4,25GB/s"')
    names = [as_text(name, "links").strip() for name in (links.split(",") if isinstance(links, str) else links)]
    waits_s = as_number(latency_s, "latency_s", "a number of seconds such as 0.00001")
    room = None if memory is None else as_size(memory, "memory")
    return [(name, Host(*parse_bandwidths(name), waits_s, room)) for name in names]


def _strategies(given: Iterable[str] | str, *, host: bool) -> list[str]:
    """The strategies that ``given`` stands for; ``all`` are those that can be asked with a host, or without."""
    from remat_cli.spec import split_specs
    from remat_cli.strategies.registry import STRATEGIES

    if isinstance(given, str):
        if given != "all":
            return split_specs(given)
        return [name for name in STRATEGIES.names() if _fits(STRATEGIES.load(name), host=host)]
    return list(given) if isinstance(given, Iterable) else [given]


def _fits(strategy: type[Strategy], *, host: bool) -> bool:
    """Whether a strategy can be asked with a host, or without."""
    from remat_cli.strategies.base import Needs

    return strategy.copies if host else strategy.needs is not Needs.HOST


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
    return graph.total_cost * (1 + float(share.amount) / 100)


def _family(given: Sequence[Graph | Source] | Callable[[int], Graph], batches: Any) -> Batched | Callable[[int], Graph]:
    """Graphs of several batches, or the function that makes them.

    Raises:
        UsageError: If they cannot be one network's, or ``batches`` does not have a number for each.
        InputError: If a document is invalid.
    """
    if callable(given):
        if batches is not None:
            raise UsageError("a function makes the graph of any batch", hint="leave graph_batch out")
        return given
    graphs = [as_graph(one, f"graph[{i}]") for i, one in enumerate(given)]
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
