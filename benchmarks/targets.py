"""Targets, and the results reached.

Each row is a graph, a budget (percent of the no-remat peak), a time limit and a target: the proven gap, or the overhead
over the cost without recomputation. Graphs with a folder in their name (networks as Checkmate extracts them, Moccasin's
random graphs) are files given with `--graphs`, and missing without it. The others are the project's own. A row runs on
each core, at most two at a time, one thread each. A row without a plan misses its target, unless it is proven that
there is no plan.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.frame import Column, Row, Session, Table, columns
from benchmarks.lanes import Cell, lanes_here, rows_of
from benchmarks.solving import CASE, COST, STRATEGY, solved_apart

_ALL = (95, 90, 80, 70, 60, 50, 40)


@dataclass(frozen=True, slots=True)
class Goal:
    """A graph, a budget and a target: ``column`` is at most ``most`` percent within ``limit_s`` seconds."""

    graph: str
    percent: int
    limit_s: float
    column: str
    most: float
    strategy: str = "auto"


_SMALL = ("vgg16", "vgg19", "mobilenet-v1", "mobilenet-v2", "unet", "fcn8", "segnet", "resnet50")
_EXTRACTED = ("checkmate/MobileNet", "checkmate/ResNet50")
_LARGE = ("inception-v3", "densenet121", "densenet161", "densenet201", "resnet152")
_RANDOM = {"G1": (0.513, 2.054), "G2": (2.1, 5.5), "G3": (1.2, 5.0), "G4": (0.7, 2.5)}


def _goals() -> Iterator[Goal]:
    yield Goal("unet", 50, 120, "gap", 0.01, "optimal")
    yield Goal("unet", 50, 120, "gap", 0.01, "checkmate-ilp")
    for name in (*_SMALL, *_EXTRACTED):
        for percent in _ALL:
            yield Goal(name, percent, 60, "gap", 0.01)
    yield Goal("checkmate/unet", 40, 60, "gap", 0.1)
    yield Goal("checkmate/vgg_unet", 40, 60, "gap", 0.1)
    for name in _LARGE:
        for percent, most in ((60, 0.05), (50, 0.05), (40, 0.1)):
            yield Goal(name, percent, 120, "gap", most)
    yield Goal("gpt2{depth=132,batch=1}", 60, 300, "gap", 1.0)
    for name, wanted in _RANDOM.items():
        for percent, most in zip((90, 80), wanted, strict=True):
            yield Goal(f"moccasin/{name}", percent, 60 if name == "G1" else 300, "overhead", most)


TABLES = (
    Table(
        "targets",
        "",
        (
            *CASE,
            STRATEGY,
            *COST,
            Column("gap", "gap, %", "number"),
            Column("scope", "bound holds for"),
            *columns("number", first_s="first, s", wall_s="time, s"),
            Column("peak_bytes", "memory", "bytes"),
            *columns("text", wanted="to reach", met="reached"),
        ),
        "One run each, one thread, seed 0. Overhead and bound are over the cost without recomputation.",
        named_by=("graph", "budget", "strategy"),
    ),
)


def run(session: Session) -> list[Row]:
    files = {f"{path.parent.name}/{path.stem}": str(path.resolve()) for path in session.graphs}
    goals = [Goal("linear{n=6}", 60, 10, "gap", 0.01)] if session.quick else list(_goals())
    goals = [goal for goal in goals if "/" not in goal.graph or goal.graph in files]
    cells = [
        Cell(f"{goal.graph} at {goal.percent}%, {goal.strategy}", partial(_row, goal, files.get(goal.graph)))
        for goal in goals
    ]
    return rows_of(session, cells, lanes=lanes_here())


def _row(goal: Goal, file: str | None) -> Row:
    asked = {"spec": file or goal.graph, "budget": f"{goal.percent}%", "strategy": goal.strategy}
    values = solved_apart(time_limit_s=goal.limit_s, **asked)
    case: Row = {
        "graph": goal.graph,
        "budget": f"{goal.percent}%",
        "strategy": goal.strategy,
        "wanted": f"{goal.column} ≤ {goal.most:g}%",
        "met": _met(goal, values),
    }
    return TABLES[0].row(case, values)


def _met(goal: Goal, values: Mapping[str, Any]) -> str:
    reached = values.get(goal.column)
    if reached is None:
        return "proven: none fits" if values.get("impossible") else f"no: {values.get('ending')}"
    if reached <= goal.most * (1 + 1e-3):
        return "yes"
    bound = values.get("bound")
    if goal.column == "overhead" and bound is not None and bound > goal.most:
        return f"no: proven impossible in {values['scope']}"
    return "no"
