"""Compares strategies at several budgets on one graph of the zoo: plain numbers for tables and figures."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.frame import Column, Row, columns
from benchmarks.lanes import Cell
from benchmarks.paper.plots import Panel

CELLS = (
    *columns("text", graph="graph", strategy="strategy"),
    *columns("number", percent="budget, % of no-remat peak", overhead="overhead, %", peak="peak, % of no-remat"),
    *columns("number", bound="proven bound, %", wall_s="time, s"),
    Column("ending", "ended"),
)
"""What the rows of :func:`compared` hold, as the columns of a table."""
_LEAST = columns("number", least="proven least overhead, %", above="cost above the least, %")
SHOWN_CELLS = (*CELLS[:5], *_LEAST, *CELLS[6:])
"""The same with what :func:`with_distances` adds, and without the bound of each strategy's own."""
LEAST_NOTE = (
    "The proven least holds for all plans that compute nodes first in document order, as all plans here do. Where it "
    "is 0, nothing else is known."
)


def compared(
    spec: str,
    budgets: Iterable[float | str],
    strategies: Iterable[str],
    time_limit_s: float,
    *,
    graph: Any = None,
    cost: str = "flops",
    executor: Any = None,
    results: Path | None = None,
) -> list[Row]:
    """A row for every strategy and budget; a failure is a row as well.

    Args:
        spec: The graph, as the zoo names it.
        budgets: Budgets: numbers in percent of the no-remat peak, or texts such as ``16GB``.
        strategies: Strategies with options.
        time_limit_s: Limit for each cell.
        graph: The graph itself, if it is not of the zoo.
        cost: Costs of a graph of the zoo.
        executor: Runs the cells; None for one at a time on this machine.
        results: File of finished rows, which are not measured again; None for none.

    Returns:
        Rows with the keys of ``CELLS``: overhead and proven bound in percent over the cost without recomputation, peak
        in percent of the no-remat peak. A bound that holds for fewer schedules than those in document order is None.
    """
    from remat_cli.api import build_graph, compare
    from remat_cli.plan.model import Scope
    from remat_cli.planning.executors import LocalExecutor
    from remat_cli.planning.options import Limits
    from remat_cli.units import parse_budget

    graph = build_graph(spec, cost=cost) if graph is None else graph
    asked = [parse_budget(budget if isinstance(budget, str) else f"{budget:g}%") for budget in budgets]
    limits = Limits(time_limit_s=time_limit_s, threads=1)
    executor = executor or LocalExecutor(jobs=1)
    comparison = compare(graph, asked, strategies, limits, executor=executor, results=results)
    whole = comparison.no_remat_peak_bytes
    rows: list[Row] = []
    for row in comparison.rows:
        wide = row.lower_bound is not None and row.scope in {Scope.ANY_ORDER, Scope.DOCUMENT_ORDER}
        proven = round(100 * (row.lower_bound / graph.total_cost - 1), 4) if wide else None
        share = row.budget.endswith("%")
        rows.append(
            {
                "graph": spec,
                "strategy": row.strategy,
                "percent": float(row.budget.rstrip("%")) if share else round(100 * row.budget_bytes / whole, 3),
                "overhead": None if row.overhead is None else round(100 * row.overhead, 4),
                "peak": None if row.peak_bytes is None else round(100 * row.peak_bytes / whole, 3),
                "bound": proven,
                "wall_s": row.wall_s,
                "ending": row.message.partition(";")[0],
            }
        )
    return rows


def cells_of(
    table: str, spec: str, budgets: Sequence[float | str], strategies: Iterable[str], limit_s: float, **given: Any
) -> list[Cell]:
    """The cells of a table on one graph, those of each strategy together; ``given`` is what :func:`compared` takes."""

    def measure(strategy: str) -> list[Row]:
        return [{"table": table, **row} for row in compared(spec, budgets, [strategy], limit_s, **given)]

    return [Cell(f"{table} {spec} {strategy}", partial(measure, strategy)) for strategy in strategies]


def above(overhead: float | None, bound: float | None) -> float | None:
    """How far a cost is above the proven least, in percent; both are given as overheads in percent."""
    known = overhead is not None and bound is not None
    return round(100 * ((100 + overhead) / (100 + bound) - 1), 4) if known else None


def share_of(graph: Any, budget: str) -> float:
    """A budget of bytes in percent of the no-remat peak, as cells have it."""
    from remat_cli.graph.analysis import no_remat_peak
    from remat_cli.units import parse_budget

    whole = no_remat_peak(graph)
    return round(100 * parse_budget(budget).bytes_for(whole) / whole, 3)


def with_distances(rows: Sequence[Row], best: str | None) -> list[Row]:
    """The cells with the greatest bound that ``best`` (None: any) proves at their budget, and the distance to it."""
    least: dict[tuple[str, float], float] = {}
    for row in rows:
        if best is None or row["strategy"] == best:
            at = row["graph"], row["percent"]
            least[at] = max(least.get(at, 0.0), row["bound"] or 0.0)
    bounds = [least.get((row["graph"], row["percent"])) for row in rows]
    return [row | {"least": b, "above": above(row["overhead"], b)} for row, b in zip(rows, bounds, strict=True)]


def distance(rows: Sequence[Row], strategy: str) -> float | None:
    """The geometric mean of cost over proven least cost, of cells with distances; None if there are none."""
    logs = [math.log1p(row["above"] / 100) for row in rows if row["strategy"] == strategy and row["above"] is not None]
    return round(math.exp(math.fsum(logs) / len(logs)), 4) if logs else None


def geometric_ratio(rows: Sequence[Mapping[str, Any]], strategy: str, best: str) -> tuple[float | None, int]:
    """Geometric mean of the cost of ``strategy`` over that of ``best``, and the number of budgets.

    The mean is over the budgets at which both have a plan; None if there are none.
    """
    costs = {
        (row["strategy"], row["percent"]): 1 + row["overhead"] / 100 for row in rows if row["overhead"] is not None
    }
    logs = [
        math.log(cost / costs[best, percent])
        for (name, percent), cost in costs.items()
        if name == strategy and (best, percent) in costs
    ]
    return (round(math.exp(math.fsum(logs) / len(logs)), 4), len(logs)) if logs else (None, 0)


def curves(rows: Sequence[Mapping[str, Any]], table: str, graphs: Iterable[str], up: str = "overhead") -> list[Panel]:
    """A panel for each graph: ``up`` against the budget, a line for each strategy, and what is proven impossible."""
    panels = []
    for graph in graphs:
        mine = [row for row in rows if row["table"] == table and row["graph"] == graph]
        lines: dict[str, list[tuple[float, float]]] = {row["strategy"]: [] for row in mine}
        for row in mine:
            if row[up] is not None:
                lines[row["strategy"]].append((row["percent"], row[up]))
        floor = sorted({(row["percent"], row["least"]) for row in mine if row["least"] is not None})
        panels.append(Panel(graph, lines, floor, steps=True))
    return panels
