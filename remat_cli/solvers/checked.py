"""The part that all adapters share: answers that need no solver, scaling, checks of answers, and bounds from duals."""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from remat_cli.control import Control
from remat_cli.errors import SolverFailed, Worded
from remat_cli.mip import Floats, Ints, LinearModel
from remat_cli.solvers.base import Outcome, Request, Solver, SolverLog, SolverProgress, Termination
from remat_cli.tolerances import GROSS_VIOLATION, INTEGRAL_WITHIN, LEAST_SCALED, NEGLIGIBLE_COST

LARGEST_COST = 1e6
"""Upper limit of the scaled costs that a solver gets. Untuned."""
_WITHOUT_SOLUTION = {Termination.INFEASIBLE, Termination.UNBOUNDED, Termination.INFEASIBLE_OR_UNBOUNDED}
_PASSES = 4
"""Rounds in which rows give columns bounds; one round passes a bound on by at least one row. Untuned."""
_UNIT = float(np.finfo(np.float64).eps)


def solve_around(request: Request, solve: Callable[[Request], Outcome]) -> Outcome:
    """Begin the log, answer models that need no solver, and pass the others to ``solve`` with a well-scaled objective.

    Solvers accept reduced costs of -1e-7. With costs in units of the whole graph's cost that is more than some columns
    cost: CBC and GLPK then "prove" bounds above the optimum (1.000447 for 1.000130 on VGG16 at 60%, with 5,550
    columns). The factor is a power of two, so that nothing is rounded.
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

    answer = solve(replace(request, model=model, on_progress=None if listener is None else on_progress))
    objective = None if answer.values is None else request.model.objective(answer.values)
    bound = _over(answer.bound, factor)
    if bound is not None and objective is not None:
        bound = min(bound, objective)
    return replace(answer, objective=objective, bound=bound)


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


def dual_bound(model: LinearModel, duals: Floats) -> float:
    """The largest lower bound on the relaxation of ``model`` that ``duals`` prove, lowered by the rounding of its sums.

    It needs no trust in the solver. For any y with y >= 0 where only the lower side of a row is finite, and y <= 0
    where only the upper side is,

        c x >= sum of y(r) * (the side of row r that its sign picks)
               + sum over columns of the least of (c - A'y)(j) x(j)

    holds for every x within the columns' bounds, however wrong y is (Neumaier and Shcherbina, "Safe bounds in linear
    and mixed-integer linear programming", 2004, section 2). A column without a finite bound on the side that its
    reduced cost picks gets one from a row where that is possible.

    Args:
        model: The programme; integrality is ignored.
        duals: float64[m], one per row; positive where the lower side binds.

    Returns:
        A bound on the objective, the offset included; minus infinity if a column is not bounded enough.
    """
    y = np.where(np.isfinite(duals), duals, 0.0)
    y = np.where(np.isfinite(np.where(y > 0, model.row_lower, model.row_upper)), y, 0.0)
    row_of = np.repeat(np.arange(model.rows), np.diff(model.starts))
    terms = model.values * y[row_of]
    reduced = model.cost - np.bincount(model.indices, weights=terms, minlength=model.columns)
    sizes = np.abs(model.cost) + np.bincount(model.indices, weights=np.abs(terms), minlength=model.columns)
    counts = 2.0 + np.bincount(model.indices, minlength=model.columns)
    wrong = _UNIT * counts * sizes  # how far each reduced cost may be from its exact value
    lower, upper = model.lower, model.upper
    if not np.isfinite(lower[reduced + wrong > 0]).all() or not np.isfinite(upper[reduced - wrong < 0]).all():
        lower, upper = _implied(model, row_of)
    least = np.minimum(_product(reduced - wrong, lower), _product(reduced - wrong, upper))
    least = np.minimum(least, np.minimum(_product(reduced + wrong, lower), _product(reduced + wrong, upper)))
    sides = y * np.where(y > 0, model.row_lower, np.where(y < 0, model.row_upper, 0.0))
    parts = np.concatenate([sides, least, [model.offset]])
    if not np.isfinite(parts).all():
        return -np.inf
    return float(parts.sum() - _UNIT * (2 + len(parts)) * np.abs(parts).sum())


def _product(rates: Floats, bounds: Floats) -> Floats:
    """``rates * bounds``, where a rate of 0 gives 0 for an infinite bound, too."""
    with np.errstate(invalid="ignore"):
        return np.where(rates == 0, 0.0, rates * bounds)


def _implied(model: LinearModel, row_of: Ints) -> tuple[Floats, Floats]:
    """The columns' bounds; a missing one comes from a row whose other columns are all bounded, if there is one."""
    lower, upper = model.lower.copy(), model.upper.copy()
    a, column = model.values, model.indices
    for _ in range(_PASSES):
        open_before = int(np.isinf(lower).sum() + np.isinf(upper).sum())
        for sign, side in ((1.0, model.row_upper), (-1.0, -model.row_lower)):
            # sign * A x <= side: what all terms but one come to at least leaves a rest for that one.
            terms = sign * a
            least = np.where(terms > 0, terms * lower[column], terms * upper[column])
            endless = np.isinf(least)
            finite = np.where(endless, 0.0, least)
            others = np.bincount(row_of, weights=finite, minlength=model.rows)[row_of] - finite
            sizes = np.bincount(row_of, weights=np.abs(finite), minlength=model.rows)[row_of]
            count = np.bincount(row_of, weights=endless, minlength=model.rows)[row_of] - endless
            limit_of_row = side[row_of]
            rest = limit_of_row - others + _UNIT * (4 + np.diff(model.starts)[row_of]) * (sizes + np.abs(limit_of_row))
            missing = np.isinf(np.where(terms > 0, upper[column], lower[column]))
            one = missing & (count == 0) & np.isfinite(rest)
            at, term = column[one], terms[one]
            limit = rest[one] / term
            limit += np.copysign(4 * _UNIT * np.abs(limit), term)
            np.minimum.at(upper, at[term > 0], limit[term > 0])
            np.maximum.at(lower, at[term < 0], limit[term < 0])
        if int(np.isinf(lower).sum() + np.isinf(upper).sum()) == open_before:
            break
    return lower, upper
