"""Comparisons of strategies at several budgets, and what memory and a faster link to a host are worth."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path

from remat_cli.api.arguments import as_number, as_path, as_text
from remat_cli.api.documents import Source, as_graph
from remat_cli.errors import wrong_type
from remat_cli.graph.model import Graph
from remat_cli.plan.comparison import Comparison, Linked, Row, Worth
from remat_cli.plan.host import Host
from remat_cli.planning import comparison
from remat_cli.planning.executors import Executor
from remat_cli.planning.options import Limits
from remat_cli.spec import split_specs
from remat_cli.strategies.base import Needs
from remat_cli.strategies.registry import STRATEGIES
from remat_cli.tracebacks import door
from remat_cli.units import Budget, as_budgets, as_size, parse_bandwidths

LINKS = "pcie3,pcie4,pcie5,nvlink-c2c"
"""Links to compare if none are named."""


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
    chosen, wanted = _limits(limits), as_graph(graph)
    return comparison.compare(
        wanted,
        as_budgets(budgets),
        _strategies(strategies, wanted, host=chosen.host is not None),
        chosen,
        _execution(executor, results, listener, note),
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
        latency_s: Seconds that every copy takes, whatever its size.
        memory: Host memory for values, ``"64GiB"`` or bytes; None for no limit.
        executor: As for :func:`compare`.
        results: As for :func:`compare`.
        listener: As for :func:`compare`; rows are counted for each link.
        note: As for :func:`compare`.

    Raises:
        UsageError: If a link, strategy or budget is invalid, or costs are not times, or the file cannot be written.
        InputError: If the graph's document or the results file is invalid.
    """
    wanted = as_graph(graph)
    return comparison.compare_links(
        wanted,
        as_budgets(budgets),
        _strategies(strategies, wanted, host=True),
        _links(links, latency_s, memory),
        _limits(limits),
        _execution(executor, results, listener, note),
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
        latency_s: Seconds that every copy takes, whatever its size.
        memory: Host memory for values, ``"64GiB"`` or bytes; None for no limit.
        executor: As for :func:`compare`.
        results: As for :func:`compare`.
        listener: As for :func:`compare`; rows are counted for each link.
        note: As for :func:`compare`.

    Raises:
        UsageError: If a link or a budget is invalid, or costs are not times, or the file cannot be written.
        InputError: If the graph's document or the results file is invalid.
    """
    return comparison.worth(
        as_graph(graph),
        as_budgets(budgets),
        _links(links, latency_s, memory),
        _limits(limits),
        _execution(executor, results, listener, note),
    )


def _limits(value: Limits | None) -> Limits:
    """How every cell is solved; as by default for None.

    Raises:
        UsageError: If it is of another type.
    """
    if value is not None and not isinstance(value, Limits):
        raise wrong_type("limits", value, "Limits", hint="write remat.Limits(time_limit_s=60)")
    return value or Limits()


def _execution(
    executor: Executor | None,
    results: str | PathLike[str] | None,
    listener: Callable[[Row, int, int], None] | None,
    note: Callable[[str], None] | None,
) -> comparison.Execution:
    """How the cells are run."""
    file = None if results is None else Path(as_path(results, "results"))
    return comparison.Execution(executor, file, listener=listener, note=note)


def _links(links: Iterable[str] | str, latency_s: float, memory: str | float | None) -> list[tuple[str, Host]]:
    """The links with their names, and the hosts behind them."""
    if not isinstance(links, Iterable):
        raise wrong_type("links", links, 'names or bandwidths such as "pcie4,25GB/s"')
    names = [as_text(name, "links").strip() for name in (links.split(",") if isinstance(links, str) else links)]
    waits_s = as_number(latency_s, "latency_s", "a number of seconds such as 0.00001")
    room = None if memory is None else as_size(memory, "memory")
    return [(name, Host(*parse_bandwidths(name), waits_s, room)) for name in names]


def _strategies(value: Iterable[str] | str, graph: Graph, *, host: bool) -> list[str]:
    """The strategies that ``given`` stands for; ``all`` are those that can be asked with a host, or without."""
    if isinstance(value, str):
        if value != "all":
            return split_specs(value)
        classes = [(name, STRATEGIES.load(name)) for name in STRATEGIES.names()]
        if graph.overlaps:
            return [name for name, kind in classes if kind.overlaps]
        beside = (Needs.HOST, Needs.COLLECTIVES)
        return [name for name, kind in classes if (kind.copies if host else kind.needs not in beside)]
    return list(value) if isinstance(value, Iterable) else [value]
