"""The gain of another order of the nodes on random graphs.

The random layered graphs of the Moccasin paper (Bartan et al., ICML 2023), given with `--graphs` (`moccasin/G1.json` to
`moccasin/G4.json`), in the order of the document and with `--reorder`. Claims of the latter hold for any order, so
their bounds are lower. In the document's order, what is not proven runs again with 600 s. A random layered graph of
10,000 nodes is made from a seed; it has 300 s. A row runs on each core, at most two at a time, one thread each.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.frame import Column, Row, Session, Table
from benchmarks.lanes import Cell, lanes_here, rows_of
from benchmarks.measure import MissingInput, call_or_fail
from benchmarks.solving import solved_row

LIMIT_S = 60.0
_LONG_S = 600.0
_LARGE_NODES, _LARGE_S = 10_000, 300.0
_QUICK_LIMIT_S = 5.0
_QUICK_NODES = 30
_PERCENTS = (90, 80)

TABLES = (
    Table(
        "order",
        "",
        (
            Column("graph", "graph"),
            Column("nodes", "nodes", "count"),
            Column("budget", "budget"),
            Column("orders", "orders"),
            Column("overhead", "overhead, %", "number"),
            Column("bound", "proven bound, %", "number"),
            Column("gap", "gap, %", "number"),
            Column("scope", "bound holds for"),
            Column("claim", "claim"),
            Column("order", "order of the plan"),
            Column("first_s", "first, s", "number"),
            Column("wall_s", "time, s", "number"),
            Column("ending", "ended"),
            Column("peak_bytes", "memory", "bytes"),
            Column("long_overhead", f"overhead in {_LONG_S:g} s, %", "number"),
            Column("long_gap", f"gap in {_LONG_S:g} s, %", "number"),
        ),
        f"One run each, {LIMIT_S:g} s at most ({_LARGE_S:g} s for {_LARGE_NODES:,} nodes), strategy auto, seed 0."
        " Overhead and bound are over the cost without recomputation. Rows in the document's order that are not proven"
        f" ran again for {_LONG_S:g} s.",
        named_by=("graph", "budget", "orders"),
    ),
)


def run(session: Session) -> list[Row]:
    graphs = session.files("moccasin")
    if session.quick and not graphs:
        graphs = {f"layered-{_QUICK_NODES}": _layered(session, _QUICK_NODES)}
    if not graphs:
        raise MissingInput("it measures moccasin/G1.json to moccasin/G4.json: give them with --graphs")
    limit_s = session.limited(LIMIT_S, _QUICK_LIMIT_S)
    cells = []
    for name, path in sorted(graphs.items()):
        for percent in _PERCENTS[: session.times(len(_PERCENTS))]:
            for reorder in (False, True):
                label = f"{name} at {percent}%, {_orders(reorder)}"
                cells.append(Cell(label, partial(_row, name, path, percent, reorder, limit_s)))
    large, label = f"layered-{_LARGE_NODES}", f"layered-{_LARGE_NODES} at {_PERCENTS[0]}%, {_orders(False)}"
    if not session.quick and (not session.only or any(text in label for text in session.only)):
        path = _layered(session, _LARGE_NODES)
        cells.append(Cell(label, partial(_row, large, path, _PERCENTS[0], False, session.limited(_LARGE_S, 0))))
    return rows_of(session, cells, lanes=lanes_here())


def _orders(reorder: bool) -> str:
    return "any (--reorder)" if reorder else "the document's"


def _row(name: str, path: Path, percent: int, reorder: bool, limit_s: float) -> Row:
    case: Row = {"graph": name, "budget": f"{percent}%", "orders": _orders(reorder)}
    solved = partial(solved_row, TABLES[0], case, spec=str(path), budget=f"{percent}%", reorder=reorder)
    row = solved(time_limit_s=limit_s)
    if limit_s != LIMIT_S or reorder or row["claim"] == "optimal":
        return row
    longer = solved(time_limit_s=_LONG_S)
    return {**row, "long_overhead": longer["overhead"], "long_gap": longer["gap"]}


def _layered(session: Session, n: int) -> Path:
    path = session.folder / f"layered-{n}.json"
    call_or_fail("benchmarks.order:write_layered", path=str(path), n=n)
    return path


def write_layered(path: str, n: int) -> None:
    """Write a random layered graph of ``n`` nodes."""
    from benchmarks.families import layered
    from remat_cli.graph.io import dump_document, graph_to_document

    Path(path).write_text(dump_document(graph_to_document(layered(n, 0))), encoding="utf-8")
