"""Proofs for any order of the nodes on graphs of up to 60 nodes.

Random graphs of three families, made from seeds, with `--reorder`. Budgets are shares of the smallest peak without
recomputation that remat finds in any order, so that all of them need recomputation or have no plan. Claims hold for any
order. One row at a time, one thread each.
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
_PERCENTS = (95, 85, 75)
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


def _row(name: str, percent: int, limit_s: float) -> Row:
    called = call("benchmarks.all_orders:solved_below", limit_s=limit_s + LATE_S, spec=name, percent=percent, most_s=limit_s)
    outcome = called.values or {"ending": called.problem}
    return TABLES[0].row({"graph": name, "budget": f"{percent}%"}, outcome | {"peak_bytes": called.peak_bytes})


def solved_below(spec: str, percent: int, most_s: float) -> dict[str, Any]:
    """The result of :func:`benchmarks.solving.solved` for any order, at a share of the smallest peak of an order.

    Args:
        spec: The graph.
        percent: The share, of the peak without fixed memory, which these graphs do not have.
        most_s: As ``--time-limit``.
    """
    from benchmarks.solving import graph_of, solved
    from remat_cli.control import Control
    from remat_cli.strategies.ordering.candidates import find_orders

    least = find_orders(graph_of(spec), None, Control(), 0).lowest.peak_bytes
    return solved(spec, least * percent // 100, time_limit_s=most_s, reorder=True)
