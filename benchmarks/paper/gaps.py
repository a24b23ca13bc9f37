"""Checkmate, appendix A: integrality gaps of the two forms of the MILP.

Jain et al., Checkmate, MLSys 2020. The instance is a linear network of eight layers (17 nodes with the loss and the
gradients), unit costs and sizes, budget 4. The gap is the optimum over the optimum of the linear relaxation. It depends
neither on profiles nor on solvers, so ours must be equal to the published ones.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.frame import Column, Row, Session, Table, columns
from benchmarks.lanes import Cell, rows_of
from benchmarks.measure import call
from benchmarks.paper.published import Ours, published

_SPEC, _BUDGET = "unit-chain{n=17}", 4
_LIMIT_S = 60.0
_FORMS = (("frontier-advancing", True), ("not partitioned", False))

TABLES = (
    Table(
        "gaps",
        "",
        (
            Column("form", "form"),
            *columns("number", optimum="optimum", relaxed="relaxation", gap="gap, ours", wall_s="relaxation, s"),
            *columns("number", solved_s="MILP, s"),
            Column("ending", "MILP ended"),
        ),
        "The optimum is that of the frontier-advancing form, as in the paper. The MILP has HiGHS, one thread and "
        f"{_LIMIT_S:g} s, in the paper Gurobi.",
    ),
)
SHOWN = (
    replace(
        TABLES[0],
        columns=(
            *TABLES[0].columns[:4],
            Column("published", "gap, published", "number"),
            *TABLES[0].columns[4:],
            *columns("number", published_s="MILP, published, s", published_h="MILP, published, h"),
        ),
    ),
)


def run(session: Session) -> list[Row]:
    milp_s = 1.0 if session.quick else _LIMIT_S
    return rows_of(session, [Cell(form, partial(_row, form, frontier, milp_s)) for form, frontier in _FORMS])


def _row(form: str, frontier: bool, milp_s: float) -> Row:
    called = call("benchmarks.paper.gaps:relaxed", limit_s=4 * _LIMIT_S, frontier=frontier, milp_s=milp_s)
    return TABLES[0].row({"form": form}, called.values or {"ending": called.problem})


def completed(rows: Iterable[Row]) -> list[Row]:
    """The rows with the published gaps and times."""
    told = {"published": "integrality gap", "published_s": "time of Gurobi (s)", "published_h": "time of Gurobi (h)"}
    return [{**row, **{key: published("gaps", row["form"], what) for key, what in told.items()}} for row in rows]


def ours(rows: Iterable[Row]) -> Ours:
    """What stands beside the published figures."""
    told: Ours = {}
    for row in rows:
        told[row["form"], "integrality gap"] = row["gap"], ""
        if row["form"] == _FORMS[0][0]:
            told[row["form"], "time of Gurobi (s)"] = row["solved_s"], "HiGHS on one thread"
        else:
            told[row["form"], "time of Gurobi (h)"] = f"no plan in {_LIMIT_S:g} s", "HiGHS on one thread for a minute"
    return told


def relaxed(frontier: bool, milp_s: float) -> dict[str, Any]:
    """Optimum, optimum of the relaxation, their ratio; and the time of the MILP in this form, up to a limit."""
    import time

    from remat_cli.api import SolveOptions, build_graph, solve
    from remat_cli.control import Control
    from remat_cli.errors import RematError
    from remat_cli.solvers.highs import Highs
    from remat_cli.strategies.base import Context, NotFound, Task
    from remat_cli.strategies.registry import strategy_from_spec

    graph = build_graph(_SPEC)
    optimum = solve(graph, _BUDGET, SolveOptions(time_limit_s=_LIMIT_S, threads=1))
    form = "" if frontier else ",frontier=false,ordered=false"
    strategy = strategy_from_spec(f"checkmate-ilp{{relax=true{form}}}")
    started_s = time.monotonic()
    answer = strategy.solve(Task(graph, _BUDGET), Context(Control.within(_LIMIT_S), Highs(), threads=1))
    wall_s = round(time.monotonic() - started_s, 2)
    assert isinstance(answer, NotFound)  # a relaxation is no plan
    started_s = time.monotonic()
    try:
        milp = SolveOptions(strategy="checkmate-ilp" if frontier else f"checkmate-ilp{{{form[1:]}}}")
        ending = solve(graph, _BUDGET, replace(milp, time_limit_s=milp_s, threads=1)).plan.claim.status.value
    except RematError as error:
        ending = error.message.partition(";")[0]
    solved_s = round(time.monotonic() - started_s, 2)
    if not answer.bounds:
        return {"wall_s": wall_s, "solved_s": solved_s, "ending": answer.reason}
    cost, bound = optimum.plan.claim.cost, answer.bounds[0].cost
    return {
        "optimum": cost,
        "relaxed": round(bound, 4),
        "gap": round(cost / bound, 2),
        "wall_s": wall_s,
        "solved_s": solved_s,
        "ending": ending,
    }
