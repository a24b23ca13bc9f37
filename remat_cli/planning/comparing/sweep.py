"""A comparison of strategies at several budgets: an executor runs the cells, a results file keeps the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from remat_cli.control import Control
from remat_cli.errors import UsageError
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.plan.comparison import Cell, Comparison, Ended, Row
from remat_cli.planning.comparing.cell import Limits
from remat_cli.planning.comparing.executors import Executor, LocalExecutor
from remat_cli.planning.comparing.results import ResultsFile, facts_of
from remat_cli.running import interruptible
from remat_cli.spec import format_spec
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.units import Budget, as_budgets


def compare(
    graph: Graph,
    budgets: Iterable[Budget | str | float] | Budget | str | float,
    strategies: Iterable[str],
    limits: Limits | None = None,
    *,
    executor: Executor | None = None,
    results: Path | None = None,
    control: Control | None = None,
    listener: Callable[[Row, int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> Comparison:
    """Solve ``graph`` with every strategy at every budget; a strategy that fails is a row, not an error.

    Args:
        graph: The graph.
        budgets: As :func:`as_budgets` takes them; percentages are of the no-remat peak.
        strategies: Strategies with options.
        limits: How every cell is solved.
        executor: Runs the cells; None for all cores of this machine. Its processes are spawned, so a script must keep
            its call under ``if __name__ == "__main__"``.
        results: File of finished rows, one JSON object per line. Rows in it of the same graph, strategy, budget and
            limits are reused. New rows are appended as they finish. Damaged lines are left out.
        control: Stops the comparison; the rows finished by then are returned.
        listener: Receives every new row, with the number of finished rows and of all rows.
        note: Receives a line of text for every damaged line of ``results``.

    Raises:
        UsageError: If a strategy or budget is invalid, or the results file cannot be written.
        InputError: If the file is not a results file.
    """
    limits = limits or Limits()
    limits.options("auto")
    control = control or Control.within(None)
    cells = _cells(strategies, as_budgets(budgets), no_remat_peak(graph))
    file = ResultsFile(results, facts_of(graph, limits), note)
    known = file.read()
    done = {cell: _as_asked(known[_mark(cell)], cell) for cell in cells if _mark(cell) in known}
    left = [cell for cell in cells if cell not in done]
    by_name = {_mark(cell): cell for cell in left}
    with interruptible(control):
        if left:
            with closing((executor or LocalExecutor()).run(left, graph, limits, control)) as news:
                for row in news:
                    done[by_name[row.strategy, row.budget_bytes]] = row
                    file.add(row)
                    if listener is not None:
                        listener(row, len(done), len(cells))
                    if control.stopping():
                        break
    return _comparison(graph, limits, cells, done)


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


def _as_asked(row: Row, cell: Cell) -> Row:
    """A row of an earlier run, with the budget as it is written now."""
    return replace(row, budget=cell.budget)
