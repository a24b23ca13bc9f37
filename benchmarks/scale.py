"""Every strategy on 20,000 nodes.

Each strategy runs in a process of its own, at 60% of the no-remat peak: on a training chain of layers whose costs and
sizes differ a little, and, if it takes any DAG, on a *residual* graph (`benchmarks/families.py`, seed 0). A row says
whether there is a plan within the budget by the limit, with time and memory. A strategy that does not end by itself is
interrupted, and killed 15 s later. The time of `rotor` and `revolve-hetero` grows with the third power of the length of
a chain, so they group its layers into a few hundred blocks. `checkmate-ilp` and `checkmate-lp` have a variable for
every pair of nodes; they refuse such graphs at once, with the size of the model.
"""

from functools import partial

from benchmarks.frame import Column, Row, Session, Table, columns
from benchmarks.lanes import Cell, rows_of
from benchmarks.solving import COST, STRATEGY, solved_apart

_NODES = 20_000
_PERCENT = 60
_LIMIT_S = 30.0
_LATE_S = 15.0
_QUICK_NODES, _QUICK_LIMIT_S = 100, 2.0
_QUICK_STRATEGIES = ("keep-all", "chen-sqrt")

TABLES = (
    Table(
        "scale",
        "",
        (
            Column("graph", "graph"),
            Column("nodes", "nodes", "count"),
            STRATEGY,
            *COST,
            *columns("number", peak="peak, % of no-remat", first_s="first plan, s", wall_s="time, s"),
            Column("ending", "ended"),
            Column("peak_bytes", "memory", "bytes"),
        ),
        f"One run each with one thread, {_LIMIT_S:g} s at most, seed 0. Time includes deriving and replaying the plan.",
        named_by=("graph", "strategy"),
    ),
)


def run(session: Session) -> list[Row]:
    from remat_cli.strategies.base import Needs
    from remat_cli.strategies.registry import STRATEGIES

    nodes, limit_s = (_QUICK_NODES, _QUICK_LIMIT_S) if session.quick else (_NODES, _LIMIT_S)
    cells = []
    for kind in ("chain", "residual"):
        for strategy in _QUICK_STRATEGIES if session.quick else sorted(STRATEGIES.names()):
            if kind == "chain" or STRATEGIES.load(strategy).needs is Needs.ANY:
                cells.append(Cell(f"{kind}, {strategy}", partial(_row, kind, nodes, strategy, limit_s)))
    return rows_of(session, cells)


def _row(kind: str, nodes: int, strategy: str, limit_s: float) -> Row:
    asked = {"spec": f"{kind}-{nodes}", "budget": f"{_PERCENT}%", "strategy": strategy}
    values = solved_apart(time_limit_s=limit_s, late_s=_LATE_S, **asked)
    return TABLES[0].row({"graph": kind, "strategy": strategy}, {"nodes": nodes} | values)
