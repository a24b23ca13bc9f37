"""Proofs for any order on graphs of up to 60 nodes.

Random graphs of three families, made from seeds, with `--reorder`. At a budget of 0% the largest working set fits, and
at 100% the graph fits without recomputation in the best order that remat finds; graphs for which both are the same are
left out. So all budgets need recomputation or have no plan. Claims hold for any order. One row at a time, one thread
each.
"""

from functools import partial
from typing import Any

from benchmarks.frame import Row, Session, Table
from benchmarks.lanes import Cell, rows_of
from benchmarks.measure import call
from benchmarks.solving import CASE, COST, LATE_S, OUTCOME

LIMIT_S = 60.0
_QUICK_LIMIT_S = 20.0
_FAMILIES = ("layered", "wild", "residual")
_NODES = (40, 60)
_SEEDS = (0, 1, 2)
_PERCENTS = (90, 60, 30)
_QUICK = ("layered-20-0",)

TABLES = (
    Table(
        "all_orders",
        "",
        (*CASE, *COST, *OUTCOME),
        f"One run each, {LIMIT_S:g} s at most, strategy auto, seed 0. Overhead and bound are over the cost without"
        " recomputation; a graph is named by its family, its nodes and its seed.",
        named_by=("graph", "budget"),
    ),
)


def run(session: Session) -> list[Row]:
    limit_s = session.limited(LIMIT_S, _QUICK_LIMIT_S)
    names = [f"{family}-{nodes}-{seed}" for family in _FAMILIES for nodes in _NODES for seed in _SEEDS]
    cells = [
        Cell(f"{name} at {percent}%", partial(_row, name, percent, limit_s))
        for name in (_QUICK if session.quick else names)
        for percent in _PERCENTS[: session.times(len(_PERCENTS))]
    ]
    return rows_of(session, cells)


def _row(name: str, percent: int, limit_s: float) -> list[Row]:
    asked = {"spec": name, "percent": percent, "most_s": limit_s}
    called = call("benchmarks.all_orders:solved_between", limit_s=limit_s + LATE_S, **asked)
    outcome = called.values or {"ending": called.problem}
    case: Row = {"graph": name, "budget": f"{percent}%"}
    return [] if outcome.get("same") else [TABLES[0].row(case, outcome | {"peak_bytes": called.peak_bytes})]


def solved_between(spec: str, percent: int, most_s: float) -> dict[str, Any]:
    """The result of :func:`benchmarks.solving.solved` for any order.

    Args:
        spec: The graph, without fixed memory.
        percent: Where the budget is between the largest working set and the smallest peak of an order.
        most_s: As ``--time-limit``.

    Returns:
        It, or ``same`` if the two are the same.
    """
    from benchmarks.solving import graph_of, solved
    from remat_cli.control import Control
    from remat_cli.graph.analysis import peak_bound
    from remat_cli.strategies.ordering.candidates import find_orders

    graph = graph_of(spec)
    least, enough = peak_bound(graph).bytes, find_orders(graph, None, Control(), 0).lowest.peak_bytes
    if least == enough:
        return {"same": True}
    return solved(spec, least + (enough - least) * percent // 100, time_limit_s=most_s, reorder=True)
