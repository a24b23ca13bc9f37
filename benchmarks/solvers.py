"""The four solvers side by side.

All solvers get the same Checkmate MILPs and one thread, until optimality is proven within a gap of 1e-6 or 60 s are
over. Time is that of the adapter, including files and processes. Each solve has a process of its own, which solves a
tiny problem first. Solvers that prove a model optimal must agree on its cost. Memory is that of the largest process:
Python with Pyomo and the model, or the solver's own.
"""

from typing import Any

from benchmarks.frame import Column, Row, Session, Table, columns
from benchmarks.measure import BenchmarkError, call, repeated, rounded, spread

_SOLVERS = ("highs", "cbc", "glpk", "gurobi")
_MODELS = (
    ("unit-chain{n=17}", 6),
    ("unit-chain{n=17}", 5),
    ("unit-chain{n=17}", 4),
    ("linear{n=8}", 5),
    ("linear{n=12}", 8),
    ("linear{n=12}", 6),
    ("linear{n=16}", 10),
)
_QUICK_MODELS = (("unit-chain{n=9}", 4),)
_LIMIT_S = 60.0
_GAP = 1e-6
_ENOUGH_S = 2.0
_OPTIMAL = "optimal"

TABLES = (
    Table(
        "solvers",
        "",
        (
            Column("model", "graph and budget"),
            *columns("count", rows="rows", columns="columns"),
            Column("solver", "solver"),
            Column("wall", "time", "seconds"),
            Column("ending", "ended"),
            *columns("number", cost="cost", bound="proven bound"),
            Column("tree", "tree nodes", "count"),
            Column("peak_bytes", "memory", "bytes"),
        ),
        "Up to three runs, fewer where one takes long. Every solver counts the nodes of its tree in its own way; GLPK "
        "does not tell. Gurobi's free licence takes models of up to 2,000 rows and columns.",
    ),
)


def run(session: Session) -> list[Row]:
    rows: list[Row] = []
    for spec, budget in _QUICK_MODELS if session.quick else _MODELS:
        here: list[Row] = []
        for solver in _SOLVERS:
            session.say(f"{spec} at {budget}, {solver}")
            asked = {"spec": spec, "budget": budget, "solver": solver, "times": session.times(3)}
            called = call("benchmarks.solvers:solved", limit_s=5 * _LIMIT_S, **asked)
            values = called.values or {"ending": called.problem}
            case: Row = {"model": f"{spec} at {budget}", "solver": solver}
            here.append(TABLES[0].row(case, values | ({"peak_bytes": called.peak_bytes} if "wall" in values else {})))
        proven = {row["cost"] for row in here if row["ending"] == _OPTIMAL}
        if len(proven) > 1:
            raise BenchmarkError(f"the solvers disagree on the optimum of {spec} at {budget}: {sorted(proven)}")
        rows += here
    return rows


def solved(spec: str, budget: int, solver: str, times: int) -> dict[str, Any]:
    """Solve one model with one solver; a licence that does not cover the model is a valid outcome."""
    from remat_cli.control import Control
    from remat_cli.errors import LicenceLimit
    from remat_cli.milp.checkmate import Formulation, build
    from remat_cli.solvers.base import Outcome, Request
    from remat_cli.solvers.registry import check_solver, solver_from_spec
    from remat_cli.zoo.registry import build_graph

    adapter = solver_from_spec(solver)
    health = check_solver(adapter)
    if not health.solved:
        raise ValueError(health.message)
    stated = build(build_graph(spec), budget, Formulation(), Control())
    model = stated.model
    answers: list[Outcome] = []

    def once() -> None:
        answers.append(adapter.solve(Request(model, Control.within(_LIMIT_S), gap=_GAP, threads=1)))

    sizes = {"rows": model.rows, "columns": model.columns}
    try:
        walls = repeated(once, times, enough_s=_ENOUGH_S)
    except LicenceLimit:
        return {**sizes, "ending": "not covered by its free licence"}
    last = answers[-1]

    def in_cost(amount: float | None) -> float | None:
        return None if amount is None else rounded(amount * stated.cost_scale)

    return {
        **sizes,
        "wall": spread(walls),
        "ending": str(last.termination),
        "cost": in_cost(last.objective),
        "bound": in_cost(last.bound),
        "tree": last.nodes,
    }
