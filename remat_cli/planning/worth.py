"""What the next GB of memory and the next GB/s of a link are worth: comparisons for several links."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from remat_cli.graph.model import Graph
from remat_cli.plan.comparison import Comparison, Row
from remat_cli.plan.host import Host
from remat_cli.plan.worth import Worth, offers
from remat_cli.planning.comparing.cell import Limits
from remat_cli.planning.comparing.executors import Executor
from remat_cli.planning.comparing.linked import check_links
from remat_cli.planning.comparing.sweep import compare
from remat_cli.units import Budget

PLAIN, COPY, BOTH = "auto", "offload{recompute=false}", "offload"


def worth(
    graph: Graph,
    budgets: Iterable[Budget | str | float] | Budget | str | float,
    links: Sequence[tuple[str, Host]],
    limits: Limits | None = None,
    *,
    executor: Executor | None = None,
    results: Path | None = None,
    listener: Callable[[Row, int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> Worth:
    """Plans of ``graph`` that recompute, that copy, and that do both, for every budget and every link.

    Args:
        graph: The graph; its costs are times.
        budgets: As :func:`as_budgets` takes them.
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
    links = sorted(links, key=lambda link: link[1].out_bytes_per_s + link[1].in_bytes_per_s)
    limits = replace(limits or Limits(), host=None)
    asked = list(budgets) if isinstance(budgets, Iterable) and not isinstance(budgets, str) else budgets

    def compared(strategies: list[str], host: Host | None) -> Comparison:
        return compare(
            graph,
            asked,
            strategies,
            replace(limits, host=host),
            executor=executor,
            results=results,
            listener=listener,
            note=note,
        )

    plain = compared([PLAIN], None)
    found: list[Comparison] = []
    for _, host in links:
        if plain.interrupted or (found and found[-1].interrupted):
            break
        found.append(compared([COPY, BOTH], host))
    return _worth(graph, links, plain, found)


def _worth(graph: Graph, links: Sequence[tuple[str, Host]], plain: Comparison, found: Sequence[Comparison]) -> Worth:
    """The offers of the links that were reached."""
    complete = len(found) == len(links) and not found[-1].interrupted
    reached = links[: len(found)]
    amounts = [amount for _, amount in plain.budgets]
    made = offers(
        reached,
        plain.budgets,
        [plain.row(PLAIN, amount).cost for amount in amounts],
        [[one.row(COPY, amount).cost for amount in amounts] for one in found],
        [[one.row(BOTH, amount).cost for amount in amounts] for one in found],
        [[one.bound(amount) for amount in amounts] for one in found],
    )
    return Worth(graph, tuple(reached), plain.budgets, made, interrupted=not complete)
