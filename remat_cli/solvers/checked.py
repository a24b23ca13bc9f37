"""The part that all adapters share: answers that need no solver, scaling, and checks of the solver's answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from remat_cli.control import Control
from remat_cli.errors import SolverFailed, Worded
from remat_cli.mip import Floats, LinearModel
from remat_cli.solvers.base import Outcome, Request, Solver, SolverProgress, Termination
from remat_cli.solvers.dual_bound import dual_bound
from remat_cli.solvers.log import SolverLog
from remat_cli.tolerances import GROSS_VIOLATION, INTEGRAL_WITHIN, LEAST_SCALED, NEGLIGIBLE_COST

LARGEST_COST = 1e6
"""Upper limit of the scaled costs that a solver gets. Untuned."""
_WITHOUT_SOLUTION = {Termination.INFEASIBLE, Termination.UNBOUNDED, Termination.INFEASIBLE_OR_UNBOUNDED}


def solve_around(request: Request, solve: Callable[[Request], Outcome]) -> Outcome:
    """Begin the log, answer models that need no solver, and pass the others to ``solve`` with a well-scaled objective.

    Solvers accept reduced costs of -1e-7. With costs in units of the whole graph's cost that is more than some
    columns cost: CBC and GLPK then "prove" bounds above the optimum (1.000447 for 1.000130 on VGG16 at 60%, with
    5,550 columns). The factor is a power of two, so that nothing is rounded.

    Args:
        request: The task.
        solve: Solves the scaled request.
    """
    _note(request, f"a model of {request.model.columns} columns and {request.model.rows} rows, gap {request.gap:g}")
    done = without_solving(request)
    if done is not None:
        _note(request, done.log.removeprefix("remat: "))
        return done
    model, factor = as_solved(request.model)
    if factor == 1.0:
        return solve(request)
    _note(request, f"the objective is multiplied by {factor!r} for the solver")
    listener = request.on_progress

    def on_progress(news: SolverProgress) -> None:
        if listener is not None:
            listener(replace(news, objective=_over(news.objective, factor), bound=_over(news.bound, factor)))

    found = solve(replace(request, model=model, on_progress=None if listener is None else on_progress))
    objective = None if found.values is None else request.model.objective(found.values)
    bound = _over(found.bound, factor)
    if bound is not None and objective is not None:
        bound = min(bound, objective)
    return replace(found, objective=objective, bound=bound)


def _note(request: Request, text: str) -> None:
    """Put a remark into the log of the request."""
    if request.log_path is not None:
        with SolverLog(request.log_path) as log:
            log.note(text)


def as_solved(model: LinearModel) -> tuple[LinearModel, float]:
    """``model`` as solvers get it, and what its objective is multiplied by for that."""
    factor = objective_scale(model.cost)
    largest = float(np.abs(model.cost).max(initial=0.0))
    heavy = np.abs(model.cost) >= NEGLIGIBLE_COST * largest
    if factor == 1.0 and heavy.all():
        return model, factor
    cost = np.where(heavy, model.cost, 0.0) * factor
    return replace(model, cost=cost, offset=model.offset * factor), factor


def objective_scale(cost: Floats) -> float:
    """The power of two that brings the median cost near 1, the largest staying below ``LARGEST_COST``."""
    sizes = np.abs(cost)
    largest = float(sizes.max(initial=0.0))
    if largest < LEAST_SCALED:
        return 1.0
    sizes = sizes[sizes > NEGLIGIBLE_COST * largest]
    wanted = min(1.0 / float(np.median(sizes)), LARGEST_COST / largest)
    return float(2.0 ** np.floor(np.log2(wanted)))


def _over(value: float | None, factor: float) -> float | None:
    return None if value is None else value / factor


def without_solving(request: Request) -> Outcome | None:
    """The outcome of a model that needs no solver: crossed bounds, no rows, or no time left. None for any other.

    Solvers differ most on such models: some refuse them, some report unusual statuses.

    Raises:
        SolverFailed: If the model contains NaN.
    """
    model = request.model
    arrays = (model.cost, model.lower, model.upper, model.values, model.row_lower, model.row_upper)
    if any(bool(np.isnan(array).any()) for array in arrays):
        raise SolverFailed("the model contains a NaN", hint="this is a defect; please report it")
    if request.start is not None and len(request.start) != model.columns:
        raise SolverFailed(f"the start has {len(request.start)} values for {model.columns} columns")
    lower = np.where(model.integer, np.ceil(model.lower - INTEGRAL_WITHIN), model.lower)
    upper = np.where(model.integer, np.floor(model.upper + INTEGRAL_WITHIN), model.upper)
    if _crossed(lower, upper) or _crossed(model.row_lower, model.row_upper):
        return Outcome(Termination.INFEASIBLE, log="remat: a bound is crossed")
    if not model.rows or not model.columns:
        return _separable(model, lower, upper)
    if request.control.stopping():
        return Outcome(stop_reason(request.control), log="remat: no time left to start the solver")
    return None


def _crossed(lower: Floats, upper: Floats) -> bool:
    return bool(((lower > upper) | (lower == np.inf) | (upper == -np.inf)).any())


def _separable(model: LinearModel, lower: Floats, upper: Floats) -> Outcome:
    """The optimum of a model whose rows have no terms: each column at the bound that its cost prefers."""
    log = "remat: no rows: solved by inspection"
    if (model.row_lower > 0).any() or (model.row_upper < 0).any():
        return Outcome(Termination.INFEASIBLE, log=log)
    nearest_zero = np.clip(np.zeros(model.columns), lower, upper)
    x = np.where(model.cost > 0, lower, np.where(model.cost < 0, upper, nearest_zero))
    if np.isinf(x).any():
        return Outcome(Termination.UNBOUNDED, log=log)
    objective = model.objective(x)
    return Outcome(Termination.OPTIMAL, values=x, objective=objective, bound=objective, log=log)


def stop_reason(control: Control) -> Termination:
    """Why a solver was told to stop."""
    return Termination.INTERRUPTED if control.cancelled.is_set() else Termination.TIME_LIMIT


def outcome(
    solver: Solver,
    request: Request,
    termination: Termination,
    *,
    values: Floats | None,
    bound: float | None,
    started_s: float,
    duals: Floats | None = None,
    nodes: int | None = None,
    log: str = "",
) -> Outcome:
    """A checked outcome: values rounded to integers where they are close, and the objective computed from them.

    Args:
        solver: The solver.
        request: The task.
        termination: How the run ended.
        values: float64[n] from the solver, or None.
        bound: Lower bound from the solver; not finite means none.
        started_s: When the run started, by ``time.monotonic()``.
        duals: float64[m], of a linear programme that was solved: its bound is no higher than what these prove.
        nodes: Branch-and-bound nodes.
        log: Last lines of the log.

    Raises:
        SolverFailed: If the values are not a solution of the model, if it claims an optimum without values, or that a
            bounded model is unbounded.
    """
    model = request.model
    wall_s = time.monotonic() - started_s
    if termination in _WITHOUT_SOLUTION:
        values = bound = None
    if termination is Termination.UNBOUNDED and _bounded(model):
        raise failed(
            solver, "claims that a model is unbounded in which no column can lower the objective for ever", log
        )
    if termination is Termination.OPTIMAL and values is None:
        raise failed(solver, "claims an optimum and gives no solution", log)
    objective = None
    if values is not None:
        values = polish(solver, model, values, log)
        objective = model.objective(values)
    if bound is not None:
        # The solver's bound and our objective are rounded differently, so the bound may lie just above a solution.
        bound = None if not np.isfinite(bound) else bound if objective is None else min(bound, objective)
        # A column that nothing bounds proves nothing; then the solver's own bound stands (docs/mathematics.md).
        proven = -np.inf if bound is None or duals is None else dual_bound(model, duals)
        if bound is not None and np.isfinite(proven):
            bound = min(bound, proven)
    result = Outcome(termination, values, objective, bound, wall_s, nodes, log)
    if termination is Termination.INFEASIBLE_OR_UNBOUNDED:
        return _settled(solver, request, result, started_s)
    return result


def _bounded(model: LinearModel) -> bool:
    """Whether every column has a finite bound in the direction that its cost prefers."""
    return bool(np.isfinite(np.where(model.cost > 0, model.lower, model.upper)[model.cost != 0]).all())


def polish(solver: Solver, model: LinearModel, values: Floats, log: str) -> Floats:
    """The solver's values, with integer columns rounded and all columns within their bounds.

    Raises:
        SolverFailed: If they violate the model by more than the tolerance.
    """
    x = np.asarray(values, dtype=np.float64)
    if len(x) != model.columns or not np.isfinite(x).all():
        raise failed(solver, f"gave {len(x)} values for {model.columns} columns, or values that are not finite", log)
    rounded = np.round(x)
    x = np.where(model.integer & (np.abs(x - rounded) <= INTEGRAL_WITHIN), rounded, x)
    clipped = np.clip(x, model.lower, model.upper)
    x = np.where(np.abs(clipped - x) <= INTEGRAL_WITHIN, clipped, x)
    violation = model.violation(x)
    if violation > GROSS_VIOLATION * max(1.0, float(np.abs(model.values).max(initial=0.0))):
        raise failed(solver, f"gave a solution that violates the model by {violation:.3g}", log)
    return x


def failed(solver: Solver, message: str, log: str) -> SolverFailed:
    """The error for a failure of ``solver``, with the last lines of its log."""
    tail = log.splitlines()[-10:]
    return SolverFailed(
        f"{solver.title} {message}" + ("; the last lines of its log:" if tail else ""),
        details=tail,
        hint=Worded(
            'see the whole log with solver_log="FILE", or choose another solver, such as solver="cbc"',
            "see the whole log with --solver-log FILE, or choose another solver with --solver",
        ),
    )


def _settled(solver: Solver, request: Request, found: Outcome, started_s: float) -> Outcome:
    """``found`` with "infeasible or unbounded" decided by solving again without an objective.

    The data are rational, so a model whose relaxation is unbounded and that has a solution is unbounded (Meyer 1974).
    """
    if not request.model.cost.any():
        return replace(found, termination=Termination.INFEASIBLE)
    model = replace(request.model, cost=np.zeros(request.model.columns))
    again = solver.solve(replace(request, model=model, start=None, on_progress=None))
    verdict = again.termination
    if again.values is not None:
        verdict = Termination.UNBOUNDED
    elif verdict is not Termination.INFEASIBLE:
        verdict = Termination.INFEASIBLE_OR_UNBOUNDED
    return replace(found, termination=verdict, wall_s=time.monotonic() - started_s)
