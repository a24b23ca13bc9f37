"""The primal integral.

How far the incumbent is from the best known plan, as a mean over time: the gap (cost - best) / cost at each moment, 1
before there is a plan, over the first 20 s and over the whole minute of `remat solve --time-limit 60s`. The 40 cases
are fixed: networks of the zoo, and random layered graphs made from a seed. A search that ends with a proof keeps its
plan's gap to the end of the minute. `benchmarks/integral_cases.json` has the cases, the best known overhead of each,
and its incumbents at commit 0ff2026e ("before"), on the same machine in the same way. `--limit 20` stops every search
after 20 s, though it is told that it has a minute.
"""

import json
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.frame import Column, Row, Session, Table, columns
from benchmarks.lanes import Cell, rows_of
from benchmarks.measure import call_or_fail
from benchmarks.solving import CASE, COST, Steps, solved_apart

LIMIT_S = 60.0
_QUICK_LIMIT_S = 3.0
_EARLY_S = 20.0
"""The shorter of the two horizons."""
_CASES = Path(__file__).with_name("integral_cases.json")
_ALL = "mean of all"

TABLES = (
    Table(
        "integral",
        "",
        (
            *CASE,
            Column("best", "best known overhead, %", "number"),
            *COST,
            *columns("number", first_before="first before, s", first_s="first, s"),
            *columns("number", early_before=f"mean gap before, {_EARLY_S:g} s, %"),
            *columns("number", early=f"mean gap, {_EARLY_S:g} s, %", whole_before=f"mean gap before, {LIMIT_S:g} s, %"),
            *columns("number", whole=f"mean gap, {LIMIT_S:g} s, %", wall_s="time, s"),
            Column("ending", "ended"),
        ),
        "One run each, strategy auto, seed 0, one thread, compiled loops from a cache. Overheads and bounds are over"
        " the cost without recomputation; gaps are shares of the plan's cost. Where the last row is empty, some cases"
        " were not measured.",
        named_by=("graph", "budget"),
    ),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A graph and a budget.

    Attributes:
        graph: The name of the graph.
        spec: How :func:`benchmarks.solving.graph_of` names it.
        percent: The budget as a share of the no-remat peak.
        best: The least overhead known, in percent.
        before: The incumbents at the commit to compare with; None if it was not measured there.
    """

    graph: str
    spec: str
    percent: int
    best: float
    before: Steps | None

    @property
    def label(self) -> str:
        """For the user and for ``--only``."""
        return f"{self.graph} at {self.percent}%"


def cases() -> list[Case]:
    """The fixed cases."""
    return [Case(**told) for told in json.loads(_CASES.read_text(encoding="utf-8"))]


def run(session: Session) -> list[Row]:
    chosen = [Case("linear{n=40}", "linear{n=40}", 60, 0.0, None)] if session.quick else cases()
    told_s, stop_s = (_QUICK_LIMIT_S if session.quick else LIMIT_S), session.limited(LIMIT_S, _QUICK_LIMIT_S)
    call_or_fail("benchmarks.solving:warmed")
    return rows_of(session, [Cell(case.label, partial(_row, case, told_s, stop_s)) for case in chosen])


def conclude(rows: list[Row]) -> list[Row]:
    """The rows of the cases, and their means in one more."""
    single = [row for row in rows if row["graph"] != _ALL]
    total: Row = {"graph": _ALL, "budget": f"{len(single)} cases"}
    for key in ("first_before", "first_s", "early_before", "early", "whole_before", "whole"):
        values = [row[key] for row in single]
        if None not in values:
            total[key] = round(math.fsum(values) / len(values), 3)
    return [*single, TABLES[0].row(total, {})]


def mean_gap(steps: Steps, best: float, horizon_s: float) -> float:
    """The primal integral over ``horizon_s`` seconds, divided by them; in percent, as is the least known overhead."""
    least = 1 + best / 100
    area, since_s, gap = 0.0, 0.0, 1.0
    for at_s, overhead in steps:
        if at_s >= horizon_s:
            break
        area, since_s, gap = area + gap * (at_s - since_s), at_s, 1 - least / (1 + overhead / 100)
    return round(100 * (area + gap * (horizon_s - since_s)) / horizon_s, 4)


def _row(case: Case, told_s: float, stop_s: float) -> Row:
    asked = {"spec": case.spec, "budget": f"{case.percent}%", "stop_s": stop_s}
    values = solved_apart(time_limit_s=told_s, **asked)
    steps, best = values["steps"], min(case.best, values.get("overhead", math.inf))
    row: Row = {"graph": case.graph, "budget": f"{case.percent}%", "best": case.best}
    if "nodes" in values:
        row["early"] = mean_gap(steps, best, _EARLY_S) if stop_s >= _EARLY_S else None
        row["whole"] = mean_gap(steps, best, LIMIT_S) if stop_s >= LIMIT_S else None
    if case.before is not None:
        row["early_before"] = mean_gap(case.before, best, _EARLY_S)
        row["whole_before"] = mean_gap(case.before, best, LIMIT_S)
        row["first_before"] = case.before[0][0] if case.before else None
    return TABLES[0].row(row, values)
