"""Compares strategies at several budgets on one graph, without a host and with links to one; what memory is worth.

An executor runs the cells, and a results file keeps their rows.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from remat_cli.control import Control
from remat_cli.errors import UsageError
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.plan.comparison import Cell, Comparison, Ended, Linked, Row, Worth, offers
from remat_cli.plan.host import Host, seconds_in
from remat_cli.planning.comparison_results import ResultsFile, facts_of
from remat_cli.planning.executors import Executor, LocalExecutor
from remat_cli.planning.options import Limits
from remat_cli.running import interruptible
from remat_cli.spec import format_spec
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.units import Budget

_RECOMPUTE, _COPY, _BOTH = "auto", "offload{recompute=false}", "offload"
"""The strategies whose plans say what memory is worth."""


@dataclass(frozen=True, slots=True)
class Execution:
    """How the cells of a comparison are run, and who is notified.

    Attributes:
        executor: Runs the cells; None for all cores of this machine. Its processes are spawned, so a script must keep
            its call under ``if __name__ == "__main__"``.
        results: File of finished rows, one JSON object per line; one for all links. Rows in it of the same graph,
            strategy, budget and limits are reused. New rows are appended as they finish. Damaged lines are left out.
        control: Stops the comparison; the rows finished by then are returned.
        listener: Receives every new row, with the number of finished rows and of all rows of its link.
        note: Receives a line of text for every damaged line of ``results``.
    """

    executor: Executor | None = None
    results: Path | None = None
    control: Control | None = None
    listener: Callable[[Row, int, int], None] | None = None
    note: Callable[[str], None] | None = None


_ON_ALL_CORES = Execution()


def compare(
    graph: Graph,
    budgets: Iterable[Budget],
    strategies: Iterable[str],
    limits: Limits | None = None,
    execution: Execution = _ON_ALL_CORES,
) -> Comparison:
    """Solve ``graph`` with every strategy at every budget; see :func:`remat_cli.compare`."""
    limits = limits or Limits()
    control = execution.control or Control.within(None)
    cells = _cells(strategies, budgets, no_remat_peak(graph))
    file = ResultsFile(execution.results, facts_of(graph, limits), execution.note)
    saved = file.read()
    # A row of an earlier run has the budget as it is written now.
    done = {cell: replace(saved[_mark(cell)], budget=cell.budget) for cell in cells if _mark(cell) in saved}
    left = {_mark(cell): cell for cell in cells if cell not in done}
    executor = execution.executor or LocalExecutor()
    with interruptible(control):
        if left:
            with closing(executor.run(list(left.values()), graph, limits, control)) as rows:
                for row in rows:
                    done[left[row.strategy, row.budget_bytes]] = row
                    file.add(row)
                    if execution.listener is not None:
                        execution.listener(row, len(done), len(cells))
                    if control.stopping():
                        break
    return _comparison(graph, limits, cells, done)


def compare_links(
    graph: Graph,
    budgets: Sequence[Budget],
    strategies: Sequence[str],
    links: Sequence[tuple[str, Host]],
    limits: Limits | None = None,
    execution: Execution = _ON_ALL_CORES,
) -> Linked:
    """:func:`compare` for every link to a host, given by name; the host of ``limits`` is not used."""
    _check_links(graph, links)
    comparisons = _by_link(graph, budgets, strategies, links, limits or Limits(), execution)
    stopped = len(comparisons) < len(links) or comparisons[-1].interrupted
    return Linked(tuple(links[: len(comparisons)]), tuple(comparisons), interrupted=stopped)


def worth(
    graph: Graph,
    budgets: Sequence[Budget],
    links: Sequence[tuple[str, Host]],
    limits: Limits | None = None,
    execution: Execution = _ON_ALL_CORES,
) -> Worth:
    """Plans that recompute, copy, and do both, for every budget and link; see :func:`remat_cli.worth`."""
    _check_links(graph, links)
    links = sorted(links, key=lambda link: link[1].out_bytes_per_s + link[1].in_bytes_per_s)
    limits = replace(limits or Limits(), host=None)
    plain = compare(graph, budgets, [_RECOMPUTE], limits, execution)
    linked = [] if plain.interrupted else _by_link(graph, budgets, [_COPY, _BOTH], links, limits, execution)
    reached = tuple(links[: len(linked)])
    amounts = [amount for _, amount in plain.budgets]
    table = offers(
        reached,
        plain.budgets,
        [plain.row(_RECOMPUTE, amount).cost for amount in amounts],
        [[comparison.row(_COPY, amount).cost for amount in amounts] for comparison in linked],
        [[comparison.row(_BOTH, amount).cost for amount in amounts] for comparison in linked],
        [[comparison.bound(amount) for amount in amounts] for comparison in linked],
    )
    complete = len(linked) == len(links) and not linked[-1].interrupted
    return Worth(graph, reached, plain.budgets, table, interrupted=not complete)


def _check_links(graph: Graph, links: Sequence[tuple[str, Host]]) -> None:
    """Refuse links that make no sense for ``graph``.

    Raises:
        UsageError: If costs are not times, or there is no link, or two have the same name, or there are collectives.
    """
    seconds_in(graph.cost_unit)
    if graph.overlaps:
        raise UsageError(
            "links to a host are not compared for a graph with nodes in the communication queue",
            hint="compare budgets, without links",
        )
    names = [name for name, _ in links]
    if not links or len(set(names)) < len(names):
        raise UsageError("links need names of their own, at least one", hint="write pcie4,pcie5 or 25GB/s,50GB/s")


def _by_link(
    graph: Graph,
    budgets: Sequence[Budget],
    strategies: Sequence[str],
    links: Sequence[tuple[str, Host]],
    limits: Limits,
    execution: Execution,
) -> list[Comparison]:
    """A comparison for each link, up to the first that is interrupted."""
    comparisons: list[Comparison] = []
    for _, host in links:
        comparisons.append(compare(graph, budgets, strategies, replace(limits, host=host), execution))
        if comparisons[-1].interrupted:
            break
    return comparisons


def _comparison(graph: Graph, limits: Limits, cells: list[Cell], done: dict[Cell, Row]) -> Comparison:
    """The comparison with a row for each of ``cells``; unfinished ones are marked as interrupted."""
    rows = [done.get(cell) or Row.without_plan(cell, Ended.INTERRUPTED, "not run") for cell in cells]
    return Comparison(
        graph,
        no_remat_peak(graph),
        tuple(dict.fromkeys(cell.strategy for cell in cells)),
        tuple(sorted({(cell.budget, cell.budget_bytes) for cell in cells}, key=lambda pair: pair[1])),
        limits.facts(),
        tuple(rows),
        interrupted=len(done) < len(cells),
    )


def _cells(strategies: Iterable[str], budgets: Iterable[Budget], peak: int) -> list[Cell]:
    """All cells, each once: by strategy in the order given, then by rising budget."""
    names = []
    for text in strategies:
        strategy = strategy_from_spec(text)
        names.append(format_spec(strategy.name, strategy))
    amounts: dict[int, str] = {}
    for budget in budgets:
        amounts.setdefault(budget.bytes_for(peak), budget.text)
    if not names or not amounts:
        raise UsageError("there is nothing to compare", hint="give at least one strategy and one budget")
    return [Cell(name, amount, amounts[amount]) for name in dict.fromkeys(names) for amount in sorted(amounts)]


def _mark(cell: Cell) -> tuple[str, int]:
    return cell.strategy, cell.budget_bytes
