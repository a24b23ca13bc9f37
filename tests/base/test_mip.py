import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from remat_cli.mip import LinearModel, Row

INF = np.inf


def model(**changes) -> LinearModel:
    """Minimise 3x + 2y + 10 with 1 <= x + y <= 4, x - y = 1, 0 <= x <= 3 whole, y >= 0."""
    parts = {
        "cost": np.array([3.0, 2.0]),
        "lower": np.array([0.0, 0.0]),
        "upper": np.array([3.0, INF]),
        "integer": np.array([True, False]),
        "starts": np.array([0, 2, 4]),
        "indices": np.array([0, 1, 0, 1]),
        "values": np.array([1.0, 1.0, 1.0, -1.0]),
        "row_lower": np.array([1.0, 1.0]),
        "row_upper": np.array([4.0, 1.0]),
        "offset": 10.0,
        "column_names": ("x", "y"),
    }
    return LinearModel(**{**parts, **changes})


def test_sizes_and_objective():
    assert (model().columns, model().rows) == (2, 2)
    assert model().objective(np.array([2.0, 1.0])) == 18.0


def test_a_feasible_point_violates_nothing():
    assert model().violation(np.array([2.0, 1.0])) == 0.0


@pytest.mark.parametrize(
    ("point", "violation"),
    [
        ((-1.0, -2.0), 4.0),  # row 0 from below: -3 < 1
        ((3.0, 2.0), 1.0),  # row 0 from above
        ((2.0, 0.75), 0.25),  # row 1, an equation
        ((4.0, 3.0), 3.0),  # row 0 by more than the bound of x
        ((1.5, 0.5), 0.5),  # x is whole
        ((1.25, 0.25), 0.25),
    ],
)
def test_the_largest_violation_counts(point, violation):
    assert model().violation(np.array(point)) == pytest.approx(violation)


def test_bounds_count_where_no_row_does():
    free = model(starts=np.array([0]), indices=np.array([], int), values=np.array([]), row_lower=np.array([]),
                 row_upper=np.array([]))  # fmt: skip
    assert free.violation(np.array([5.0, -0.5])) == 2.0
    assert free.violation(np.array([0.0, -0.5])) == 0.5
    assert free.violation(np.array([0.0, 1e9])) == 0.0


def test_rows_without_entries_are_rows():
    empty = model(starts=np.array([0, 0, 4]), indices=np.array([0, 1, 0, 1]), row_lower=np.array([2.0, -INF]),
                  row_upper=np.array([INF, INF]))  # fmt: skip
    assert empty.violation(np.zeros(2)) == 2.0


def test_a_model_without_columns_is_feasible():
    nothing = LinearModel(
        *(np.array([]),) * 3, np.array([], bool), np.array([0]), np.array([], int), *(np.array([]),) * 3
    )
    assert nothing.violation(np.array([])) == 0.0
    assert (nothing.columns, nothing.rows) == (0, 0)


def test_the_relaxation_forgets_integrality_alone():
    relaxed = model().relaxed()
    assert not relaxed.integer.any()
    assert relaxed.violation(np.array([1.5, 0.5])) == 0.0
    assert relaxed.column_names == ("x", "y")
    assert model().integer.any()


def test_rows_are_appended():
    more = model().with_rows([Row([1], [2.0], -INF, 1.0), Row([], [], 0.0, 0.0), Row([0, 1], [1.0, 3.0], 5.0, INF)])
    assert more.rows == 5
    assert more.starts.tolist() == [0, 2, 4, 5, 5, 7]
    assert more.indices.tolist() == [0, 1, 0, 1, 1, 0, 1]
    assert more.row_lower.tolist() == [1.0, 1.0, -INF, 0.0, 5.0]
    assert more.row_upper.tolist() == [4.0, 1.0, 1.0, 0.0, INF]
    assert more.starts.dtype == more.indices.dtype == np.int64
    assert more.violation(np.array([2.0, 1.0])) == 1.0  # 2y <= 1
    assert model().rows == 2


def test_no_rows_make_no_new_model():
    plain = model()
    assert plain.with_rows([]) is plain


_NUMBER = st.floats(-100, 100, allow_subnormal=False)


@given(st.data())
def test_appended_rows_mean_what_a_dense_matrix_means(data):
    rows = data.draw(st.integers(1, 4))
    dense = data.draw(hnp.arrays(np.float64, (rows, 2), elements=_NUMBER))
    upper = data.draw(hnp.arrays(np.float64, rows, elements=_NUMBER))
    point = data.draw(hnp.arrays(np.float64, 2, elements=_NUMBER))
    more = model().with_rows([Row([0, 1], row.tolist(), -INF, limit) for row, limit in zip(dense, upper, strict=True)])
    expected = max(model().violation(point), *(dense @ point - upper))
    assert more.violation(point) == pytest.approx(expected, abs=1e-9)
