"""Bad requests to solvers, and what is made of bad answers."""

from dataclasses import replace

import numpy as np
import pytest
from solver_problems import KNOWN

from remat_cli.errors import SolverFailed, UsageError
from remat_cli.mip import LinearModel
from remat_cli.solvers import cbc, highs
from remat_cli.solvers.base import Request, Termination
from remat_cli.solvers.checked import objective_scale, outcome, polish
from remat_cli.solvers.registry import SOLVERS, solver_from_spec

KNAPSACK = KNOWN[0].model
INF = float("inf")


@pytest.mark.parametrize("spec", ["highs{tolerance=1}", "gurobi{tolerance=0}", "glpk{via=swiglpk,path=/bin/sh}", "cpx"])
def test_options_out_of_range(spec: str) -> None:
    with pytest.raises(UsageError):
        solver_from_spec(spec)


def test_options_from_text() -> None:
    assert solver_from_spec("highs{presolve=off,tolerance=1e-7}") == highs.Highs(presolve="off", tolerance=1e-7)
    assert solver_from_spec("cbc{path=/opt/cbc}") == cbc.Cbc(path="/opt/cbc")
    with pytest.raises(UsageError, match="not a choice"):
        solver_from_spec("glpk{via=pigeon}")


@pytest.mark.parametrize("name", sorted(SOLVERS.table))
def test_a_model_with_nan_and_a_start_of_the_wrong_length(name: str) -> None:
    solver = solver_from_spec(name)
    broken = replace(KNAPSACK, cost=np.array([1.0, np.nan, 0.0, 0.0]))
    with pytest.raises(SolverFailed, match="NaN"):
        solver.solve(Request(broken))
    with pytest.raises(SolverFailed, match="the start has 2 values for 4 columns"):
        solver.solve(Request(KNAPSACK, start=np.zeros(2)))


def test_answers_are_checked() -> None:
    solver, log = solver_from_spec("highs"), "last words"
    model: LinearModel = KNAPSACK
    assert polish(solver, model, np.array([1 - 1e-7, 1 + 1e-7, -1e-9, 0]), log).tolist() == [1, 1, 0, 0]
    for wrong in ([0.5, 0, 0, 0], [1, 1, 1, 1], [np.nan, 0, 0, 0], [0, 0, 0]):
        with pytest.raises(SolverFailed, match="last words"):
            polish(solver, model, np.array(wrong, dtype=float), log)
    request = Request(model)
    with pytest.raises(SolverFailed, match="gives no solution"):
        outcome(solver, request, Termination.OPTIMAL, values=None, bound=1.0, started_s=0.0)
    values = np.array([1.0, 1.0, 0.0, 0.0])
    done = outcome(solver, request, Termination.STOPPED, values=values, bound=-22.0, started_s=0.0)
    assert done.bound == -23.0
    done = outcome(solver, request, Termination.STOPPED, values=values, bound=-INF, started_s=0.0)
    assert done.bound is None


def test_the_objective_is_scaled_by_a_power_of_two() -> None:
    for cost in ([3e-8, 1e-5, 0.0], [1e9, 3e12, -1e10], [1e-7, 1e-7, 1e-7, 1.0], [1e-300, 1e300]):
        factor = objective_scale(np.array(cost))
        assert factor == 2.0 ** round(np.log2(factor))
        assert max(abs(c) for c in cost) * factor <= 1e6
    assert objective_scale(np.zeros(3)) == objective_scale(np.ones(3)) == 1.0
