"""Compares strategies at several budgets on one graph of the zoo: plain numbers for tables and figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.frame import Column, Row
from benchmarks.paper.plots import Panel

CELLS = (
    Column("graph", "graph"),
    Column("strategy", "strategy"),
    Column("percent", "budget, % of no-remat peak", "number"),
    Column("overhead", "overhead, %", "number"),
    Column("peak", "peak, % of no-remat", "number"),
    Column("bound", "proven bound, %", "number"),
    Column("wall_s", "time, s", "number"),
    Column("ending", "ended"),
)
"""What the rows of :func:`compared` hold, as the columns of a table."""


def compared(
    spec: str, percents: Iterable[float], strategies: Iterable[str], time_limit_s: float, *, graph: Any = None
) -> list[Row]:
    """A row for every strategy and budget; a failure is a row as well.

    Args:
        spec: The graph, as the zoo names it.
        percents: Budgets in percent of the no-remat peak.
        strategies: Strategies with options.
        time_limit_s: Limit for each cell.
        graph: The graph itself, if it is not of the zoo.

    Returns:
        Rows with the keys of ``CELLS``: overhead and proven bound in percent over the cost without recomputation, peak
        in percent of the no-remat peak.
    """
    from remat_cli.api import build_graph, compare
    from remat_cli.planning.comparing.cell import Limits
    from remat_cli.planning.comparing.executors import LocalExecutor
    from remat_cli.units import parse_budget

    graph = build_graph(spec) if graph is None else graph
    budgets = [parse_budget(f"{percent:g}%") for percent in percents]
    limits = Limits(time_limit_s=time_limit_s, threads=1)
    comparison = compare(graph, budgets, strategies, limits, executor=LocalExecutor(jobs=1))
    rows: list[Row] = []
    for row in comparison.rows:
        proven = None if row.lower_bound is None else round(100 * (row.lower_bound / graph.total_cost - 1), 4)
        rows.append(
            {
                "graph": spec,
                "strategy": row.strategy,
                "percent": float(row.budget.rstrip("%")),
                "overhead": None if row.overhead is None else round(100 * row.overhead, 4),
                "peak": None
                if row.peak_bytes is None
                else round(100 * row.peak_bytes / comparison.no_remat_peak_bytes, 3),
                "bound": proven,
                "wall_s": row.wall_s,
                "ending": row.message.partition(";")[0],
            }
        )
    return rows


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
    """A panel for each graph: ``up`` against the budget, a line for each strategy."""
    panels = []
    for graph in graphs:
        mine = [row for row in rows if row["table"] == table and row["graph"] == graph]
        lines: dict[str, list[tuple[float, float]]] = {row["strategy"]: [] for row in mine}
        for row in mine:
            if row[up] is not None:
                lines[row["strategy"]].append((row["percent"], row[up]))
        panels.append(Panel(graph, lines))
    return panels
