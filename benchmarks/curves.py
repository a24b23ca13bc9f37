"""Ten budgets compared with one.

`remat solve GRAPH --budgets 50%:95%:5%` makes ten plans, and `remat solve GRAPH --budget 50%` makes the most expensive
of them. Both are whole commands as a user runs them, on all cores, without a time limit. The command for one budget
runs once before the ten and twice after.
"""

import json
from functools import partial
from typing import Any

from benchmarks.frame import Column, Row, Session, Table, columns
from benchmarks.lanes import Cell, rows_of
from benchmarks.measure import Ended, median, rounded, run_process, spread, succeeded
from benchmarks.startup import remat_command

_GRAPHS = ("unet", "mobilenet-v1", "resnet50", "vgg16", "mobilenet-v2")
_BUDGETS, _ONE = "50%:95%:5%", "50%"
_QUICK_GRAPHS = ("linear{n=6}",)
_QUICK_BUDGETS, _QUICK_ONE = "60%:90%:10%", "60%"
_MOST_S = 300.0
"""Seconds after which a command is killed. Untuned."""

TABLES = (
    Table(
        "curves",
        "",
        (
            Column("graph", "graph"),
            Column("nodes", "nodes", "count"),
            *columns("seconds", one="one budget", ten="ten budgets"),
            Column("ratio", "ten beside one", "ratio"),
            *columns("count", plans="plans", optimal="proven optimal"),
            *columns("number", one_gap="gap of the one, %", gap="worst gap of the ten, %"),
            Column("ending", "ended"),
        ),
        "Gap is (cost - bound) / cost; proven optimal is a gap of at most 0.01%.",
        named_by=("graph",),
    ),
)


def run(session: Session) -> list[Row]:
    graphs = _QUICK_GRAPHS if session.quick else _GRAPHS
    return rows_of(session, [Cell(name, partial(_row, session, name)) for name in graphs])


def _row(session: Session, name: str) -> Row:
    budgets, budget = (_QUICK_BUDGETS, _QUICK_ONE) if session.quick else (_BUDGETS, _ONE)
    folder = session.folder / name
    folder.mkdir()
    graph = folder / "graph.json"
    succeeded(run_process([remat_command(), "export", f"zoo:{name}", "-o", str(graph)]), f"exporting {name}")
    asked = [remat_command(), "solve", str(graph), "--format", "json", "--quiet"]
    single = [*asked, "--budget", budget, "-o", str(folder / "one.plan.json")]
    many = [*asked, "--budgets", budgets, "-o", str(folder / "{budget}.plan.json")]
    commands = [single, many, *[single] * session.times(2)]
    before, ten, *after = (run_process(command, limit_s=_MOST_S, folder=folder) for command in commands)
    problem = next((ended.problem() for ended in (before, ten, *after) if ended.problem()), "")
    if problem:
        return TABLES[0].row({"graph": name, "ending": problem}, {})
    one, ten_s = spread([ended.wall_s for ended in (before, *after)]), rounded(ten.wall_s)
    report, curve = _said(before), _said(ten)
    points = [point for point in curve["points"] if point["plan"]]
    return TABLES[0].row(
        {
            "graph": name,
            "nodes": curve["graph"]["nodes"],
            "one": one,
            "ten": ten_s,
            "ratio": rounded(ten_s / (median(one) or 1)),
            "plans": len(points),
            "optimal": sum(point["status"] == "optimal" for point in points),
            "one_gap": round(100 * report["gap"], 5),
            "gap": max((round(100 * point["gap"], 5) for point in points), default=None),
            "ending": "finished",
        },
        {},
    )


def _said(ended: Ended) -> Any:
    """The report that a command printed."""
    return json.loads(ended.out)
