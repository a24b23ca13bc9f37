"""Every strategy on 20,000 nodes.

Each strategy runs in a process of its own, at 60% of the no-remat peak: on a training chain of layers whose costs and
sizes differ a little, and, if it takes any DAG, on a *residual* graph (`benchmarks/families.py`, seed 0). A row says
whether there is a plan within the budget by the limit, with time and memory. A strategy that does not end by itself is
interrupted, and killed 15 s later. The time of `rotor` and `revolve-hetero` grows with the third power of the length of
a chain, so they group its layers into a few hundred blocks. `checkmate-ilp` and `checkmate-lp` have a variable for
every pair of nodes; they refuse such graphs at once, with the size of the model.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.frame import Column, Row, Session, Table
from benchmarks.lanes import Cell, rows_of
from benchmarks.measure import call

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
            Column("strategy", "strategy"),
            Column("overhead", "overhead, %", "number"),
            Column("bound", "proven bound, %", "number"),
            Column("peak", "peak, % of no-remat", "number"),
            Column("first_s", "first plan, s", "number"),
            Column("wall_s", "time, s", "number"),
            Column("ending", "ended"),
            Column("peak_bytes", "memory", "bytes"),
        ),
        f"One run each with one thread, {_LIMIT_S:g} s at most, seed 0. Time includes deriving and replaying the plan.",
        named_by=("graph", "strategy"),
    ),
)


def run(session: Session) -> list[Row]:
    from remat_cli.strategies.registry import STRATEGIES

    nodes, limit_s = (_QUICK_NODES, _QUICK_LIMIT_S) if session.quick else (_NODES, _LIMIT_S)
    cells = []
    for kind in ("chain", "residual"):
        for strategy in _QUICK_STRATEGIES if session.quick else sorted(STRATEGIES.names()):
            if kind == "chain" or _takes_any(strategy):
                cells.append(Cell(f"{kind}, {strategy}", partial(_row, kind, nodes, strategy, limit_s)))
    return rows_of(session, cells)


def _row(kind: str, nodes: int, strategy: str, limit_s: float) -> Row:
    case = {"kind": kind, "nodes": nodes, "strategy": strategy, "time_limit_s": limit_s}
    called = call("benchmarks.scale:solved", limit_s=limit_s + _LATE_S, **case)
    values = called.values or {"nodes": nodes, "ending": called.problem}
    return TABLES[0].row({"graph": kind, "strategy": strategy, "peak_bytes": called.peak_bytes}, values)


def _takes_any(strategy: str) -> bool:
    from remat_cli.strategies.base import Needs
    from remat_cli.strategies.registry import STRATEGIES

    return STRATEGIES.load(strategy).needs is Needs.ANY


def build(kind: str, nodes: int) -> Any:
    """The chain or the DAG, with this number of nodes or one less."""
    from benchmarks.families import residual
    from remat_cli.api import build_graph

    if kind == "residual":
        return residual(nodes, 0)
    layers = (nodes - 1) // 2
    costs = ":".join(str(10 + 7 * k % 11) for k in range(layers))
    sizes = ":".join(str(1000 + 500 * (k % 3)) for k in range(layers))
    return build_graph(f"linear{{n={layers},costs={costs},sizes={sizes}}}")


def solved(kind: str, nodes: int, strategy: str, time_limit_s: float) -> dict[str, Any]:
    """Solve one graph; no plan within the limit is a valid outcome."""
    import time

    from remat_cli.control import Progress
    from remat_cli.errors import RematError
    from remat_cli.graph.analysis import no_remat_peak
    from remat_cli.planning.solving import SolveOptions, solve

    graph = build(kind, nodes)
    started_s = time.monotonic()
    first: list[float] = []

    def listen(progress: Progress) -> None:
        if progress.cost is not None and not first:
            first.append(time.monotonic() - started_s)

    options = SolveOptions(strategy=strategy, time_limit_s=time_limit_s, threads=1)
    facts: dict[str, Any] = {"nodes": len(graph.nodes)}
    try:
        answer = solve(graph, f"{_PERCENT}%", options, listener=listen)
    except RematError as error:
        return {**facts, "wall_s": round(time.monotonic() - started_s, 2), "ending": error.message.partition(";")[0]}
    claim = answer.plan.claim
    return {
        **facts,
        "overhead": round(100 * (claim.cost / graph.total_cost - 1), 4),
        "bound": round(100 * (claim.lower_bound / graph.total_cost - 1), 4),
        "peak": round(100 * answer.report.replay.peak_bytes / no_remat_peak(graph), 3),
        "first_s": round(first[0] if first else answer.wall_s, 2),
        "wall_s": round(answer.wall_s, 2),
        "ending": str(answer.ending),
    }
