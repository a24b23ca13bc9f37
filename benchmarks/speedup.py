"""The retention MILP compared with the paper's.

The MILP of the Checkmate paper (`checkmate-ilp`), stated in Pyomo, and remat's (`optimal`) are both solved by HiGHS
with one thread to a proven gap of 0.01%, on training graphs of the zoo, one after the other in the same run. Time is
from the graph to the replayed plan. If only `optimal` reached the gap, the time limit counts as the other's time, so
the true ratio is at least the one shown.
"""

from functools import partial
from typing import Any

from benchmarks.frame import Column, Row, Session, Table, columns
from benchmarks.lanes import Cell, rows_of
from benchmarks.measure import median, rounded, spread
from benchmarks.solving import CASE, solved_apart

LIMIT_S = 120.0
_QUICK_LIMIT_S = 10.0
_TIMES = 3
_CASES = (("unet", 50), ("vgg16", 60), ("mobilenet-v1", 60))
_QUICK_CASES = (("linear{n=6}", 60),)
_PAPERS, _OURS = "checkmate-ilp", "optimal"

TABLES = (
    Table(
        "speedup",
        "",
        (
            *CASE,
            Column("papers", f"{_PAPERS}, time", "seconds"),
            Column("papers_gap", "its gap, %", "number"),
            Column("ours", f"{_OURS}, time", "seconds"),
            Column("gap", "its gap, %", "number"),
            Column("ratio", "ratio of the times", "ratio"),
            Column("proven", "proven by"),
            *columns("number", papers_overhead=f"{_PAPERS}, overhead, %", overhead=f"{_OURS}, overhead, %"),
        ),
        f"{LIMIT_S:g} s at most. {_PAPERS} ran once, {_OURS} {_TIMES} times.",
        named_by=("graph", "budget"),
    ),
)


def run(session: Session) -> list[Row]:
    limit_s = session.limited(LIMIT_S, _QUICK_LIMIT_S)
    cases = _QUICK_CASES if session.quick else _CASES
    cells = [
        Cell(f"{spec} at {percent}%", partial(_row, spec, percent, limit_s, session.times(_TIMES)))
        for spec, percent in cases
    ]
    return rows_of(session, cells)


def _row(spec: str, percent: int, limit_s: float, times: int) -> Row:
    def solved(strategy: str) -> dict[str, Any]:
        asked = {"spec": spec, "budget": f"{percent}%", "strategy": strategy}
        return {"wall_s": limit_s} | solved_apart(time_limit_s=limit_s, **asked)

    papers, ours = solved(_PAPERS), [solved(_OURS) for _ in range(times)]
    last = ours[-1]
    provers = [
        name
        for name, runs in ((_PAPERS, [papers]), (_OURS, ours))
        if all(values.get("claim") == "optimal" for values in runs)
    ]
    time = spread([values["wall_s"] for values in ours])
    row: Row = {
        "graph": spec,
        "budget": f"{percent}%",
        "papers": papers["wall_s"],
        "papers_gap": papers.get("gap"),
        "papers_overhead": papers.get("overhead"),
        "ours": time,
        # If both stopped at the limit, the ratio of their times means nothing.
        "ratio": rounded(papers["wall_s"] / max(median(time) or 0, 1e-3)) if _OURS in provers else None,
        "proven": "both" if len(provers) == 2 else " ".join(provers) or "neither",
    }
    return TABLES[0].row(row, last)
