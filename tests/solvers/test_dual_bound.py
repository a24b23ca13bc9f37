"""Bounds of linear programmes: what duals prove is never above the optimum, and meets it for good duals."""

import random
import time

import numpy as np
import pytest
from scipy.optimize import linprog
from seeded import seeded
from solver_problems import EACH, INF, dense, installed

from remat_cli.control import Control
from remat_cli.mip import LinearModel
from remat_cli.solvers.base import Request, Termination
from remat_cli.solvers.checked import dual_bound, outcome


def programme(seed: int) -> LinearModel:
    """A feasible one; some columns are bounded by rows alone, and some rows have one side."""
    rng = random.Random(seed)
    n = rng.randint(2, 6)
    inside = [rng.uniform(0, 3) for _ in range(n)]
    rows = []
    for _ in range(rng.randint(1, 5)):
        coefficients = [rng.choice((0, 1, 1, 2, -1, 1e6)) for _ in range(n)]
        activity = sum(a * x for a, x in zip(coefficients, inside, strict=True))
        sides = rng.choice(((-INF, 1.0), (-1.0, INF), (0.0, 0.0), (-1.0, 1.0)))
        rows.append((coefficients, activity + sides[0], activity + sides[1]))
    free = rng.sample(range(n), n // 3)
    rows.append(([1.0] * n, -INF, sum(inside) + 1))
    upper = [INF if j in free else 4.0 for j in range(n)]
    return dense([rng.gauss(0, 5) for _ in range(n)], rows, [0.0] * n, upper, [0] * n, rng.choice((0.0, 7.5)))


def optimum(model: LinearModel) -> float:
    matrix = np.zeros((model.rows, model.columns))
    matrix[np.repeat(np.arange(model.rows), np.diff(model.starts)), model.indices] = model.values
    above, below = np.isfinite(model.row_upper), np.isfinite(model.row_lower)
    found = linprog(
        model.cost,
        np.vstack([matrix[above], -matrix[below]]),
        np.concatenate([model.row_upper[above], -model.row_lower[below]]),
        bounds=list(zip(model.lower, model.upper, strict=True)),
    )
    assert found.success
    return float(found.fun) + model.offset


@pytest.mark.parametrize("spec", EACH)
@seeded(range(40))
def test_the_bound_of_every_solver_is_proven_by_its_duals(spec: str, seed: int) -> None:
    model = programme(seed)
    expected = optimum(model)
    found = installed(spec).solve(Request(model, Control.within(20.0), threads=1))
    assert found.termination is Termination.OPTIMAL
    assert found.bound == pytest.approx(expected, rel=1e-6, abs=1e-6)


@seeded(range(300))
def test_no_duals_prove_too_much(seed: int) -> None:
    model, rng = programme(seed), np.random.default_rng(seed)
    expected = optimum(model)
    for scale in (1e-6, 1.0, 100.0):
        assert dual_bound(model, rng.normal(0, scale, model.rows)) <= expected + 1e-9 * (1 + abs(expected))


def test_a_column_that_nothing_bounds_proves_nothing() -> None:
    model = dense([-1.0, 1.0], [([1.0, -1.0], -INF, 2.0)], [0.0, 0.0], [INF, INF], [0, 0])
    assert dual_bound(model, np.array([-0.5])) == -INF


def test_an_objective_that_is_too_high_becomes_no_bound() -> None:
    """A solver that stops early at a vertex tells its objective; the duals prove less."""
    model = dense([1.0, 2.0], [([1.0, 1.0], 1.0, INF)], [0.0, 0.0], [1.0, 1.0], [0, 0])
    request = Request(model, Control())
    worst = np.array([0.0, 1.0])
    found = outcome(
        installed("highs"),
        request,
        Termination.OPTIMAL,
        values=worst,
        bound=2.0,
        started_s=time.monotonic(),
        duals=np.array([1.0]),
    )
    assert found.objective == 2.0
    assert found.bound == pytest.approx(1.0)
