"""The gain of another order of the nodes on random graphs.

The random layered graphs of the Moccasin paper (Bartan et al., ICML 2023), given with `--graphs` (`moccasin/G1.json` to
`moccasin/G4.json`), in the order of the document and with `--reorder`. Claims of the latter hold for any order, so
their bounds are lower. In the document's order, what is not proven runs again with 600 s. A random layered graph of
10,000 nodes is made from a seed; it has 300 s. A row runs on each core, at most two at a time, one thread each.
"""

from functools import partial

from benchmarks.frame import Column, Row, Session, Table, columns
from benchmarks.lanes import Cell, lanes_here, rows_of
from benchmarks.measure import MissingInput
from benchmarks.solving import CASE, COST, long_columns, solved_longer

LIMIT_S = 60.0
_LONG_S = 600.0
_PROVEN = 0.01
"""The gap in percent at which a search counts as proven, and ends."""
_LARGE_NODES, _LARGE_S = 10_000, 300.0
_QUICK_LIMIT_S = 5.0
_QUICK_NODES = 30
_PERCENTS = (90, 80)

TABLES = (
    Table(
        "order",
        "",
        (
            *CASE,
            Column("orders", "orders"),
            *COST,
            Column("gap", "gap, %", "number"),
            *columns("text", scope="bound holds for", claim="claim", order="order of the plan"),
            *columns("number", first_s="first, s", wall_s="time, s"),
            Column("ending", "ended"),
            Column("peak_bytes", "memory", "bytes"),
            *long_columns(_LONG_S),
        ),
        f"One run each, {LIMIT_S:g} s at most ({_LARGE_S:g} s for {_LARGE_NODES:,} nodes), strategy auto, seed 0."
        " Overhead and bound are over the cost without recomputation. Rows in the document's order that are not proven"
        f" ran again for {_LONG_S:g} s.",
        named_by=("graph", "budget", "orders"),
    ),
)


def run(session: Session) -> list[Row]:
    graphs = {name: str(path) for name, path in session.files("moccasin").items()}
    if session.quick and not graphs:
        graphs = {f"layered-{_QUICK_NODES}": f"layered-{_QUICK_NODES}"}
    if not graphs:
        raise MissingInput("it measures moccasin/G1.json to moccasin/G4.json: give them with --graphs")
    limit_s = session.limited(LIMIT_S, _QUICK_LIMIT_S)
    long_s = None if session.quick else _LONG_S
    cells = []
    for name, path in sorted(graphs.items()):
        for percent in _PERCENTS[: session.times(len(_PERCENTS))]:
            for reorder in (False, True):
                label = f"{name} at {percent}%, {_orders(reorder)}"
                limits_s = limit_s, None if reorder else long_s
                cells.append(Cell(label, partial(_row, name, path, percent, reorder, limits_s)))
    if not session.quick:
        large = f"layered-{_LARGE_NODES}"
        label = f"{large} at {_PERCENTS[0]}%, {_orders(False)}"
        limits_s = session.limited(_LARGE_S, _LARGE_S), None
        cells.append(Cell(label, partial(_row, large, large, _PERCENTS[0], False, limits_s)))
    return rows_of(session, cells, lanes=lanes_here())


def _orders(reorder: bool) -> str:
    return "any (--reorder)" if reorder else "the document's"


def _row(name: str, spec: str, percent: int, reorder: bool, limits_s: tuple[float, float | None]) -> Row:
    case: Row = {"graph": name, "budget": f"{percent}%", "orders": _orders(reorder)}
    asked = {"spec": spec, "budget": f"{percent}%", "reorder": reorder}
    return solved_longer(TABLES[0], case, limits_s=limits_s, enough=_PROVEN, **asked)
