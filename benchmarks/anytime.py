"""Cost against time.

The default strategy with time limits of 1 to 60 s, each limit in a process of its own, with one thread. *Warm* rows
read compiled loops from a cache folder. *Cold* rows have an empty folder for each process, as in the first run after an
installation. For comparison, the published methods whose plans every search considers run alone. Graphs outside the
zoo are given with `--graphs` (`moccasin/G2.json` to `G4.json`). The captured step is that of `zoo:torch/gpt2{batch=8}`
and needs PyTorch.
"""

import math
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.frame import Column, Picture, Row, Session, Table, columns
from benchmarks.lanes import Cell, lanes_here, rows_of
from benchmarks.measure import call_or_fail
from benchmarks.solving import CASE, STRATEGY, solved_apart

LIMITS_S = (1, 2, 3, 5, 8, 13, 20, 60)
_QUICK_LIMITS_S = (1, 2)
_OPENERS = ("dtr", "twremat", "xla-greedy{cost_aware=true}", "min-cut", "ap-greedy", "linearized-greedy")
_OPENER_LIMIT_S = 60.0
_ZOO = {
    "resnet50": "resnet50",
    "resnet152": "resnet152",
    "inception-v3": "inception-v3",
    "densenet121": "densenet121",
    "densenet201": "densenet201",
    "gpt2": "gpt2",
    "bert, by operator": "bert{backward=operator}",
}
_MOCCASIN = ("G2", "G3", "G4")
_PERCENTS = (40, 50, 60)
_CAPTURED_PERCENTS = (60, 70, 80)
"""Nothing fits at half of its peak, most of which is parameters and the logits."""
_WIDE_PERCENTS = (80, 90)
"""Random layered graphs have no plan, or no known one, at budgets as tight as those of networks."""

TABLES = (
    Table(
        "anytime",
        "",
        (
            *CASE,
            Column("cache", "compiled loops"),
            *(Column(f"at{limit}", f"{limit} s", "number") for limit in LIMITS_S),
            *columns("number", bound="proven bound", opener="best opener"),
            Column("opener_name", "by"),
            Column("worse", "a longer limit worse by, %", "number"),
            Column("late_s", "most seconds over a limit", "number"),
        ),
        "Overhead in percent over the cost without recomputation, of `remat solve` with each time limit; one run each,"
        " one thread, seed 0, at most two rows at a time, one on each core. The bound is that of the longest limit."
        " Empty: no plan. *A longer limit worse by*: by how much its plan costs more than that of a shorter one, at"
        " most, 100 if it has none; up to the requested gap, .01%, plans count as equal.",
        named_by=("graph", "budget", "cache"),
    ),
    Table(
        "openers",
        "The methods with which searches begin, each alone",
        (
            *columns("text", graph="graph", budget="budget"),
            STRATEGY,
            *columns("number", overhead="overhead, %", wall_s="time, s"),
            Column("ending", "ended"),
        ),
        f"At most {_OPENER_LIMIT_S:g} s each.",
        named_by=("graph", "budget", "strategy"),
    ),
)
PICTURES = (Picture("cost", "Overhead against the time limit for each graph at its middle budget, openers beside."),)


def run(session: Session) -> list[Row]:
    limits = _QUICK_LIMITS_S if session.quick else LIMITS_S
    warm = str(session.folder / "warm")
    cells = [
        Cell(f"{name} at {percent}%", partial(_rows, name, spec, percent, limits, warm))
        for name, spec, percents in _graphs(session)
        for percent in percents
    ]
    call_or_fail("benchmarks.solving:warmed", variables={"NUMBA_CACHE_DIR": warm})
    return rows_of(session, cells, lanes=lanes_here())


def _graphs(session: Session) -> list[tuple[str, str, tuple[int, ...]]]:
    """Name, what to build or read, and budgets of each graph."""
    if session.quick:
        return [("linear{n=40}", "linear{n=40}", (60,))]
    files = session.files("moccasin")
    given = [(name, str(files[name]), _WIDE_PERCENTS) for name in _MOCCASIN if name in files]
    captured = [("captured gpt2", "torch/gpt2{batch=8}", _CAPTURED_PERCENTS)]
    return [*((name, spec, _PERCENTS) for name, spec in _ZOO.items()), *captured, *given]


def _rows(name: str, spec: str, percent: int, limits: tuple[int, ...], warm: str) -> list[Row]:
    """All rows of one graph and budget."""
    case: Row = {"graph": name, "budget": f"{percent}%"}
    openers = [_opener(case, spec, strategy) for strategy in _OPENERS]
    planned = [row for row in openers if row["overhead"] is not None]
    best = min(planned, key=lambda row: row["overhead"], default={})
    beside = {"opener": best.get("overhead"), "opener_name": best.get("strategy")}
    rows: list[Row] = []
    for cache in ("warm", "cold"):
        values: Row = {**case, **beside, "cache": cache, "late_s": 0.0}
        for limit in limits:
            with tempfile.TemporaryDirectory(prefix="remat-cold-") as cold:
                place = {"NUMBA_CACHE_DIR": warm if cache == "warm" else cold}
                solved = solved_apart(time_limit_s=float(limit), variables=place, spec=spec, budget=f"{percent}%")
            values[f"at{limit}"] = solved.get("overhead")
            values["late_s"] = max(values["late_s"], round(solved.get("wall_s", 0.0) - limit, 2))
            values |= {key: solved[key] for key in ("nodes", "bound") if key in solved}
        values["worse"] = worse_by([values[f"at{limit}"] for limit in limits])
        rows.append(TABLES[0].row(values, {}))
    return [*rows, *openers]


def worse_by(overheads: Sequence[float | None]) -> float:
    """The most by which a plan costs more than an earlier one, in percent; 100 where there is none any more.

    Args:
        overheads: Percent over the cost without recomputation, or None for no plan, by growing time limits.
    """
    most, least = 0.0, math.inf
    for percent in overheads:
        cost = math.inf if percent is None else 1 + percent / 100
        if not math.isinf(least):
            most = max(most, min(100.0, 100 * (cost / least - 1)))
        least = min(least, cost)
    return round(most, 5)


def _opener(case: Row, spec: str, strategy: str) -> Row:
    values = solved_apart(time_limit_s=_OPENER_LIMIT_S, spec=spec, budget=case["budget"], strategy=strategy)
    return TABLES[1].row({**case, "strategy": strategy}, values)


def draw(rows: list[Row], folder: Path) -> None:
    """The picture, as ``anytime-cost.svg`` in ``folder``."""
    from benchmarks.plots import Panel, draw_panels

    panels = []
    found = [row for row in rows if row["table"] == "anytime"]
    for name in dict.fromkeys(row["graph"] for row in found):
        of_graph = [row for row in found if row["graph"] == name]
        budgets = list(dict.fromkeys(row["budget"] for row in of_graph))
        budget = budgets[len(budgets) // 2]
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in of_graph:
            if row["budget"] != budget:
                continue
            at = [(float(s), row[f"at{s}"]) for s in LIMITS_S if row.get(f"at{s}") is not None]
            lines[f"auto, {row['cache']}"] = at
            if row["opener"] is not None:
                lines["best opener"] = [(float(s), row["opener"]) for s in LIMITS_S]
        panels.append(Panel(f"{name}, {budget}", lines))
    draw_panels(panels, "time limit, s", "overhead, %", folder / "anytime-cost.svg", alike=False)
