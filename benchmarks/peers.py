"""Time to a gap of 1%, with peers.

The default strategy, the MILP of the Checkmate paper on HiGHS, CP-SAT on the model of the Moccasin paper with all its
workers, and the heuristics DTR and TWRemat, on the same graphs in the same run, each with all cores of the machine. The
gap of a plan is measured against the best lower bound that any of them proved in document order, so heuristics without
bounds have one too. Graphs outside the zoo are given with `--graphs` (`moccasin/G1.json` to `moccasin/G4.json`,
`checkmate/vgg_unet.json`). Budgets are those at which the cheapest plan costs more than 1%: elsewhere the first plan of
anyone would do.
"""

from functools import partial
from typing import Any

from benchmarks.frame import Column, Row, Session, Table, columns
from benchmarks.lanes import Cell, rows_of
from benchmarks.measure import call_or_fail, rounded
from benchmarks.solving import CASE, STRATEGY, Steps, solved_apart

LIMIT_S = 30.0
_QUICK_LIMIT_S = 5.0
_THREADS = 2
_GAP = 0.01
_OURS = "auto"
_PEERS: dict[str, int | None] = {_OURS: _THREADS, "moccasin": None, "checkmate-ilp": _THREADS, "dtr": 1, "twremat": 1}
"""Strategies and their threads; None for a worker of CP-SAT on each core."""
_CASES = (
    ("linear, 64 layers", "linear{n=64}", 40),
    ("unit chain, 65 nodes", "unit-chain{n=65}", 40),
    ("layered, 100 nodes", "layered-100", 80),
    ("layered, 250 nodes", "layered-250", 80),
    ("vgg-unet", "vgg-unet", 40),
    ("unet", "unet", 40),
    ("bert, by operator", "bert{backward=operator}", 40),
)
_FILES = {"moccasin": (80,), "checkmate": (40,)}

TABLES = (
    Table(
        "peers",
        "",
        (
            *CASE,
            STRATEGY,
            Column("at_gap_s", "to a gap of 1%, s", "number"),
            Column("ratio", f"beside {_OURS}", "ratio"),
            *columns("number", first_s="first, s", overhead="overhead, %", gap="gap at the end, %"),
            *columns("number", bound="proven bound, %", wall_s="time, s"),
            Column("ending", "ended"),
        ),
        f"One run each, {LIMIT_S:g} s at most, seed 0, {_THREADS} threads for {_OURS} and HiGHS. Where a plan within 1%"
        " was not reached, the time is empty, and the ratio counts the limit: the true one is at least that. Ratios"
        f" count at least 0.05 s for {_OURS}.",
        named_by=("graph", "budget", "strategy"),
    ),
)


def run(session: Session) -> list[Row]:
    limit_s = session.limited(LIMIT_S, _QUICK_LIMIT_S)
    chosen = [("linear, 6 layers", "linear{n=6}", 60)] if session.quick else list(_CASES)
    for folder, percents in () if session.quick else _FILES.items():
        files = sorted(session.files(folder).items())
        chosen += [(f"{folder}/{name}", str(path), percent) for name, path in files for percent in percents]
    call_or_fail("benchmarks.solving:warmed")
    cells = [
        Cell(f"{name} at {percent}%", partial(_rows, name, spec, percent, limit_s)) for name, spec, percent in chosen
    ]
    return rows_of(session, cells)


def _rows(name: str, spec: str, percent: int, limit_s: float) -> list[Row]:
    """The rows of all strategies on one graph."""
    found: dict[str, dict[str, Any]] = {}
    for strategy, threads in _PEERS.items():
        asked = {"spec": spec, "budget": f"{percent}%", "strategy": strategy, "threads": threads}
        found[strategy] = solved_apart(time_limit_s=limit_s, **asked)
    wide = [values for values in found.values() if values.get("scope") in {"any-order", "document-order"}]
    bound = max((values["bound"] for values in wide), default=0.0)
    times = {strategy: reached(values["steps"], bound) for strategy, values in found.items()}
    rows = []
    for strategy, values in found.items():
        case: Row = {"graph": name, "budget": f"{percent}%", "strategy": strategy, "at_gap_s": times[strategy]}
        if "overhead" in values:
            case["gap"] = round(100 * _gap(values["overhead"], bound), 4)
        ours = times[_OURS]
        if ours is not None and strategy != _OURS:
            case["ratio"] = rounded((times[strategy] or limit_s) / max(ours, 0.05))
        rows.append(TABLES[0].row(case, values))
    return rows


def _gap(overhead: float, bound: float) -> float:
    """The gap between two percentages over C0, as a share of the plan's cost."""
    return max(0.0, 1 - (100 + bound) / (100 + overhead))


def reached(steps: Steps, bound: float) -> float | None:
    """Seconds until the first plan within the gap to ``bound``, an overhead in percent; None if there was none."""
    return next((round(at_s, 2) for at_s, overhead in steps if _gap(overhead, bound) <= _GAP), None)
