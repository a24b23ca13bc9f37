"""Checkmate, appendix A: integrality gaps of the two forms of the MILP.

Jain et al., Checkmate, MLSys 2020. The instance is a linear network of eight layers (17 nodes with the loss and the
gradients), unit costs and sizes, budget 4. The gap is the optimum over the optimum of the linear relaxation. It depends
neither on profiles nor on solvers, so ours must be equal to the published ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from benchmarks.frame import Column, Row, Session, Table
from benchmarks.measure import call
from benchmarks.paper.published import published

_SPEC, _BUDGET = "unit-chain{n=17}", 4
_LIMIT_S = 60.0
_FORMS = (("frontier-advancing", True), ("not partitioned", False))

TABLES = (
    Table(
        "gaps",
        "",
        (
            Column("form", "form"),
            Column("optimum", "optimum", "number"),
            Column("relaxed", "relaxation", "number"),
            Column("gap", "gap, ours", "number"),
            Column("wall_s", "relaxation, s", "number"),
            Column("ending", "ended"),
        ),
        "The optimum is that of the frontier-advancing form, as in the paper.",
    ),
)
SHOWN = (replace(TABLES[0], columns=(*TABLES[0].columns, Column("published", "gap, published", "number"))),)


def run(session: Session) -> list[Row]:
    rows: list[Row] = []
    for form, frontier in _FORMS:
        session.say(form)
        called = call("benchmarks.paper.gaps:relaxed", limit_s=2 * _LIMIT_S, frontier=frontier)
        empty = dict.fromkeys(("optimum", "relaxed", "gap", "wall_s"))
        values = called.values or {**empty, "ending": called.problem}
        rows.append({"table": "gaps", "form": form, **values})
        session.keep(rows)
    return rows


def completed(rows: Iterable[Row]) -> list[Row]:
    """The rows with the published gaps."""
    return [{**row, "published": published("gaps", row["form"], "integrality gap")} for row in rows]


def relaxed(frontier: bool) -> dict[str, Any]:
    """Optimum, optimum of the relaxation, their ratio."""
    import time

    from remat_cli.api import SolveOptions, build_graph, solve
    from remat_cli.control import Control
    from remat_cli.solvers.highs import Highs
    from remat_cli.strategies.base import Context, NotFound, Task
    from remat_cli.strategies.registry import strategy_from_spec

    graph = build_graph(_SPEC)
    optimum = solve(graph, _BUDGET, SolveOptions(strategy="checkmate-ilp", time_limit_s=_LIMIT_S, threads=1))
    form = "" if frontier else ",frontier=false,ordered=false"
    strategy = strategy_from_spec(f"checkmate-ilp{{relax=true{form}}}")
    started_s = time.monotonic()
    answer = strategy.solve(Task(graph, _BUDGET), Context(Control.within(_LIMIT_S), Highs(), threads=1))
    wall_s = round(time.monotonic() - started_s, 2)
    assert isinstance(answer, NotFound)  # a relaxation is no plan
    if not answer.bounds:
        return {**dict.fromkeys(("optimum", "relaxed", "gap")), "wall_s": wall_s, "ending": answer.reason}
    cost, bound = optimum.plan.claim.cost, answer.bounds[0].cost
    return {
        "optimum": cost,
        "relaxed": round(bound, 4),
        "gap": round(cost / bound, 2),
        "wall_s": wall_s,
        "ending": optimum.plan.claim.status.value,
    }
