"""The gain of more time at tight budgets.

Two networks as Checkmate extracts them, given with `--graphs` (`checkmate/unet.json`, `checkmate/vgg_unet.json`), at
40% of their no-remat peak, with one and with four minutes. A row runs on each core, at most two at a time, one thread
each.
"""

from __future__ import annotations

from functools import partial

from benchmarks.frame import Column, Row, Session, Table
from benchmarks.lanes import Cell, lanes_here, rows_of
from benchmarks.measure import MissingInput
from benchmarks.solving import OUTCOME, solved_row

_PERCENT = 40
_LIMITS_S = (240.0, 60.0)

TABLES = (
    Table(
        "tight",
        "",
        (
            Column("graph", "graph"),
            Column("nodes", "nodes", "count"),
            Column("budget", "budget"),
            Column("limit_s", "limit, s", "number"),
            Column("overhead", "overhead, %", "number"),
            Column("bound", "proven bound, %", "number"),
            *OUTCOME,
        ),
        "One run each, strategy auto, seed 0. Overhead and bound are over the cost without recomputation.",
        named_by=("graph", "budget", "limit_s"),
    ),
)


def run(session: Session) -> list[Row]:
    found = session.files("checkmate")
    graphs = {f"checkmate/{name}": str(found[name]) for name in ("unet", "vgg_unet") if name in found}
    if session.quick:
        graphs = {"linear{n=6}": "linear{n=6}"}
    if not graphs:
        raise MissingInput("it measures checkmate/unet.json and checkmate/vgg_unet.json: give them with --graphs")
    cells = []
    for limit_s in (5.0,) if session.quick else _LIMITS_S:  # the long ones first: the lanes end together
        for name, spec in graphs.items():
            percent = 60 if session.quick else _PERCENT
            case: Row = {"graph": name, "budget": f"{percent}%", "limit_s": limit_s}
            measure = partial(solved_row, TABLES[0], case, time_limit_s=limit_s, spec=spec, budget=f"{percent}%")
            cells.append(Cell(f"{name} at {percent}%, {limit_s:g} s", measure))
    return sorted(rows_of(session, cells, lanes=lanes_here()), key=lambda row: (row["graph"], row["limit_s"]))
