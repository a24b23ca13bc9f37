"""Small models with known answers, models that nobody solves in seconds, and the solvers to try them on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from remat_cli.mip import Floats, LinearModel
from remat_cli.solvers.base import Solver, Termination
from remat_cli.solvers.registry import solver_from_spec

SPECS = ("highs", "cbc", "glpk{via=swiglpk}", "glpk{via=glpsol}", "gurobi")
"""Every way to solve. All of them have to be installed: a conformance suite that skips proves nothing."""
EACH = tuple(pytest.param(spec, marks=[pytest.mark.system] if "glpsol" in spec else []) for spec in SPECS)
"""The same as parameters; glpsol is a program of the system."""

INF = float("inf")


def installed(spec: str) -> Solver:
    """The solver, or a failed test that says how to install it."""
    solver = solver_from_spec(spec)
    found = solver.availability()
    if not found.available:
        pytest.fail(f"{spec}: {found.problem}; install it: {found.hint}")
    return solver


def dense(
    cost: Sequence[float],
    rows: Sequence[tuple[Sequence[float], float, float]],
    lower: Sequence[float],
    upper: Sequence[float],
    integer: Sequence[int],
    offset: float = 0.0,
) -> LinearModel:
    """A model from rows ``(coefficients, lower, upper)`` written out in full."""
    terms = [[(j, a) for j, a in enumerate(row) if a] for row, _, _ in rows]
    return LinearModel(
        cost=np.array(cost, dtype=float),
        lower=np.array(lower, dtype=float),
        upper=np.array(upper, dtype=float),
        integer=np.array(integer, dtype=bool),
        starts=np.cumsum([0, *(len(t) for t in terms)]).astype(np.int64),
        indices=np.array([j for t in terms for j, _ in t], dtype=np.int64),
        values=np.array([a for t in terms for _, a in t], dtype=float),
        row_lower=np.array([low for _, low, _ in rows], dtype=float),
        row_upper=np.array([high for _, _, high in rows], dtype=float),
        offset=offset,
    )


def market_split(
    rows: int = 5, columns: int = 40, seed: int = 0, *, slack: bool = True, planted: bool = False
) -> tuple[LinearModel, Floats]:
    """A market-split instance (Cornuejols and Dawande 1998), and a point with the planted 0/1 part.

    Half of every row's weight has to be picked exactly. With ``slack`` deviations cost 1 per unit, so solutions are
    easy and the optimum is out of reach; without, there is nothing to find in seconds. The objective has an offset
    of 1000, which is also the bound of the relaxation. With ``planted`` a deviation of 0 is possible.
    """
    random = np.random.default_rng(seed)
    weights = random.integers(1, 100, (rows, columns)).astype(float)
    chosen = random.integers(0, 2, columns).astype(float)
    target = weights @ chosen if planted else weights.sum(axis=1) // 2
    extra = 2 * rows if slack else 0
    deviations = np.hstack([np.eye(rows), -np.eye(rows)])[:, :extra]
    matrix = np.hstack([weights, deviations])
    model = dense(
        [0.0] * columns + [1.0] * extra,
        [(row.tolist(), t, t) for row, t in zip(matrix, target.tolist(), strict=True)],
        [0.0] * (columns + extra),
        [1.0] * columns + [INF] * extra,
        [1] * columns + [0] * extra,
        offset=1000.0,
    )
    return model, np.concatenate([chosen, np.zeros(extra)])


@dataclass(frozen=True)
class Known:
    """A model and its answer; ``objective`` is None where there is no optimum."""

    name: str
    model: LinearModel
    termination: Termination
    objective: float | None = None


_KNAPSACK = dense([-10, -13, -7, -8], [([3, 4, 2, 3], -INF, 7)], [0] * 4, [1] * 4, [1] * 4)
_ASSIGNMENT = dense(
    [4, 1, 3, 2, 0, 5, 3, 2, 2],
    [
        *(([1.0 if j // 3 == i else 0.0 for j in range(9)], 1, 1) for i in range(3)),
        *(([1.0 if j % 3 == i else 0.0 for j in range(9)], 1, 1) for i in range(3)),
    ],
    [0] * 9,
    [1] * 9,
    [1] * 9,
)
_INFEASIBLE_RELAXATION = [([1, 1], 3, INF), ([1, 1], -INF, 2)]

KNOWN = (
    Known("knapsack", _KNAPSACK, Termination.OPTIMAL, -23.0),
    Known("knapsack relaxation", _KNAPSACK.relaxed(), Termination.OPTIMAL, -23.5),
    Known("assignment", _ASSIGNMENT, Termination.OPTIMAL, 5.0),
    Known(
        "equality and general integers",
        dense([5, 7], [([3, 5], 31, 31)], [0, 0], [INF, INF], [1, 1]),
        Termination.OPTIMAL,
        45.0,
    ),
    Known(
        "free columns",
        dense([1, 1], [([1, 2], -4, INF), ([1, -1], -1, 1.5)], [-INF, -INF], [INF, INF], [1, 0]),
        Termination.OPTIMAL,
        -3.0,
    ),
    Known(
        "negative bounds",
        dense([1, -2, 1], [([1, 1, 1], -6.5, INF)], [-5, -4, -INF], [-2, -1, -1], [1, 1, 0]),
        Termination.OPTIMAL,
        -3.5,
    ),
    Known(
        "fractional bounds of integer columns",
        dense([-1.5, -2], [([1, 1], -INF, 7)], [-4.5, -2.5], [1.5, 2.75], [1, 1]),
        Termination.OPTIMAL,
        -5.5,
    ),
    Known(
        "two-sided rows",
        dense([1, 1], [([2, 3], 7, 8), ([1, -1], -1, 1)], [0, 0], [9, 9], [1, 1]),
        Termination.OPTIMAL,
        3.0,
    ),
    Known(
        "a row without sides and a column without rows",
        dense([1, -1, 2], [([1, 0, 1], -INF, INF), ([1, 0, 1], 1, INF)], [0, 0, 0], [4, 3, 4], [1, 1, 0]),
        Termination.OPTIMAL,
        -2.0,
    ),
    Known(
        "positive offset",
        dense([2, 3], [([1, 1], 1.5, INF)], [0, 0], [1, 1], [1, 1], offset=100.25),
        Termination.OPTIMAL,
        105.25,
    ),
    Known(
        "negative offset",
        dense([2, 3], [([1, 1], 1.5, INF)], [0, 0], [1, 1], [0, 1], offset=-7.5),
        Termination.OPTIMAL,
        -3.5,
    ),
    Known("no objective", dense([0, 0], [([1, 1], 1.5, INF)], [0, 0], [1, 1], [1, 1]), Termination.OPTIMAL, 0.0),
    Known("no rows", dense([1, -1, 0], [], [-2, 0, 1], [2, 2.5, 3], [1, 1, 0], 1.0), Termination.OPTIMAL, -3.0),
    Known("no columns", dense([], [([], -1, 1)], [], [], [], 4.0), Termination.OPTIMAL, 4.0),
    Known("fixed columns", dense([3, 1], [([1, 1], 5, INF)], [2, 0], [2, 9], [1, 1]), Termination.OPTIMAL, 9.0),
    Known(
        "two-sided row whose sides no range joins exactly",
        dense([1, 1], [([1, 1], 0.1, 0.7000000000000001)], [0, 0], [1, 1], [0, 1]),
        Termination.OPTIMAL,
        0.1,
    ),
    Known(
        "linear",
        dense([1, 1.5], [([1, 1], 3, INF)], [0, 0], [2, 5], [0, 0], 7.0),
        Termination.OPTIMAL,
        10.5,
    ),
    Known("infeasible", dense([1, 1], _INFEASIBLE_RELAXATION, [0, 0], [5, 5], [1, 0]), Termination.INFEASIBLE),
    Known("infeasible, linear", dense([1, 1], _INFEASIBLE_RELAXATION, [0, 0], [5, 5], [0, 0]), Termination.INFEASIBLE),
    Known("integer infeasible", dense([1, 1], [([2, 2], 3, 3)], [0, 0], [5, 5], [1, 1]), Termination.INFEASIBLE),
    Known("crossed bounds", dense([1, 1], [([1, 1], 1, INF)], [0, 2], [5, 1], [1, 0]), Termination.INFEASIBLE),
    Known("an empty integer column", dense([1], [([1], 0, INF)], [0.2], [0.8], [1]), Termination.INFEASIBLE),
    Known("an empty row", dense([1], [([], 1, INF), ([1], 0, 1)], [0], [1], [1]), Termination.INFEASIBLE),
    Known("unbounded", dense([-1, 0.5], [([1, -1], -INF, 3)], [0, 0], [INF, INF], [1, 0]), Termination.UNBOUNDED),
    Known(
        "unbounded, linear", dense([-1, 0.5], [([1, -1], -INF, 3)], [0, 0], [INF, INF], [0, 0]), Termination.UNBOUNDED
    ),
    Known(
        "unbounded relaxation without an integer solution",
        dense([-1, 0.5, 0], [([1, -1, 0], -INF, 3), ([0, 0, 2], 1, 1)], [0, 0, 0], [INF, INF, 3], [1, 0, 1]),
        Termination.INFEASIBLE,
    ),
)
