"""Random small models: every solver agrees with enumeration."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from solver_problems import EACH, INF, dense, installed

from remat_cli.control import Control
from remat_cli.mip import LinearModel
from remat_cli.solvers.base import Request, Termination

_SMALL = st.integers(-4, 4)


@st.composite
def models(draw: st.DrawFn) -> LinearModel:
    """Up to four integer columns in small boxes, one continuous column, up to four rows of any kind."""
    n = draw(st.integers(1, 4))
    lower = [draw(st.integers(-2, 1)) for _ in range(n)]
    upper = [low + draw(st.integers(0, 3)) for low in lower]
    y_lower = draw(st.integers(-3, 2))
    rows = []
    for _ in range(draw(st.integers(0, 4))):
        coefficients = [draw(_SMALL) for _ in range(n + 1)]
        side, width = draw(st.integers(-6, 6)), draw(st.integers(0, 4))
        kind = draw(st.sampled_from(["<", ">", "=", "range"]))
        low = -INF if kind == "<" else side
        high = INF if kind == ">" else side if kind == "=" else side + width
        rows.append((coefficients, low, high))
    return dense(
        [draw(_SMALL) for _ in range(n + 1)],
        rows,
        [*lower, y_lower],
        [*upper, y_lower + draw(st.integers(0, 5))],
        [1] * n + [0],
        offset=draw(st.sampled_from([0.0, 3.5, -20.0])),
    )


def enumerated(model: LinearModel) -> float | None:
    """The optimum by trying every integer point; the last column, continuous, is an interval at each of them."""
    matrix = np.zeros((model.rows, model.columns))
    for r in range(model.rows):
        terms = slice(model.starts[r], model.starts[r + 1])
        matrix[r, model.indices[terms]] = model.values[terms]
    best = None
    boxes = [range(int(low), int(high) + 1) for low, high in zip(model.lower[:-1], model.upper[:-1], strict=True)]
    for point in itertools.product(*boxes):
        low, high = float(model.lower[-1]), float(model.upper[-1])
        for row, row_low, row_high in zip(matrix, model.row_lower, model.row_upper, strict=True):
            activity, a = float(row[:-1] @ point), float(row[-1])
            if a == 0:
                if not row_low <= activity <= row_high:
                    low, high = 1.0, 0.0
            else:
                ends = sorted([(row_low - activity) / a, (row_high - activity) / a])
                low, high = max(low, ends[0]), min(high, ends[1])
        if low > high + 1e-12:
            continue
        cost = float(model.cost[:-1] @ point) + model.offset
        value = min(cost + float(model.cost[-1]) * y for y in (low, high))
        best = value if best is None else min(best, value)
    return best


@pytest.mark.parametrize("spec", EACH)
@settings(max_examples=80, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(model=models())
def test_agrees_with_enumeration(spec: str, model: LinearModel) -> None:
    solver = installed(spec)
    expected = enumerated(model)
    found = solver.solve(Request(model, Control.within(20.0), gap=0.0, threads=1))
    if expected is None:
        assert found.termination is Termination.INFEASIBLE
    else:
        assert found.termination is Termination.OPTIMAL
        assert found.values is not None
        assert model.violation(found.values) <= 1e-6
        assert found.objective == pytest.approx(expected, abs=1e-6)
        assert found.bound == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("spec", EACH)
@settings(max_examples=40, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(model=models(), scale=st.sampled_from([1e-9, 1.0, 1e9]))
def test_bounds_hold_at_a_wide_gap(spec: str, model: LinearModel, scale: float) -> None:
    """Stopping early must not make the bound wrong, whatever the unit of the costs."""
    expected = enumerated(model)
    model = replace(model, cost=model.cost * scale, offset=model.offset * scale)
    found = installed(spec).solve(Request(model, Control.within(20.0), gap=0.3, threads=1))
    if expected is None:
        assert found.termination is Termination.INFEASIBLE
        return
    assert found.termination is Termination.OPTIMAL
    assert found.objective is not None
    assert found.bound is not None
    slack = 1e-6 * scale
    assert found.bound <= expected * scale + slack
    assert found.objective >= expected * scale - slack
    assert found.objective - found.bound <= 0.3 * abs(found.objective) + slack
