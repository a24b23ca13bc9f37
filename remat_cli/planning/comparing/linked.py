"""A comparison for each of several links to a host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from remat_cli.errors import UsageError
from remat_cli.graph.model import Graph
from remat_cli.plan.comparison import Comparison, Row
from remat_cli.plan.host import Host, seconds_in
from remat_cli.plan.linked import Linked
from remat_cli.planning.comparing.cell import Limits
from remat_cli.planning.comparing.executors import Executor
from remat_cli.planning.comparing.sweep import compare
from remat_cli.units import Budget


def compare_links(
    graph: Graph,
    budgets: Iterable[Budget | str | float] | Budget | str | float,
    strategies: Iterable[str],
    links: Sequence[tuple[str, Host]],
    limits: Limits | None = None,
    *,
    executor: Executor | None = None,
    results: Path | None = None,
    listener: Callable[[Row, int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> Linked:
    """:func:`compare` for every link.

    Args:
        graph: The graph; its costs are times.
        budgets: As :func:`compare` takes them.
        strategies: As :func:`compare` takes them.
        links: Names and hosts, at least one.
        limits: How every cell is solved; its host is not used.
        executor: As for :func:`compare`.
        results: As for :func:`compare`; one file for all links.
        listener: Receives every new row, with the number of finished rows and of all rows of its link.
        note: As for :func:`compare`.

    Raises:
        UsageError: If costs are not times, or there is no link, or two have the same name; or as :func:`compare`.
        InputError: If the results file is none.
    """
    check_links(graph, links)
    asked = list(budgets) if isinstance(budgets, Iterable) and not isinstance(budgets, str) else budgets
    names, found = list(strategies), list[Comparison]()
    for _, host in links:
        if found and found[-1].interrupted:
            break
        given = replace(limits or Limits(), host=host)
        found.append(
            compare(graph, asked, names, given, executor=executor, results=results, listener=listener, note=note)
        )
    stopped = len(found) < len(links) or found[-1].interrupted
    return Linked(tuple(links[: len(found)]), tuple(found), interrupted=stopped)


def check_links(graph: Graph, links: Sequence[tuple[str, Host]]) -> None:
    """Refuse links that make no sense for ``graph``.

    Raises:
        UsageError: If costs are not times, or there is no link, or two have the same name.
    """
    seconds_in(graph.cost_unit)
    names = [name for name, _ in links]
    if not links or len(set(names)) < len(names):
        raise UsageError("links need names of their own, at least one", hint="write pcie4,pcie5 or 25GB/s,50GB/s")
