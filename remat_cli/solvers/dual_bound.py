"""A lower bound on a linear programme that needs no trust in the solver: evaluated from its dual values.

For any y with y >= 0 where only the lower side of a row is finite, and y <= 0 where only the upper side is,

    c x >= sum of y(r) * (the side of row r that its sign picks) + sum over columns of the least of (c - A'y)(j) x(j)

holds for every x within the columns' bounds, however wrong y is (Neumaier and Shcherbina, "Safe bounds in linear and
mixed-integer linear programming", 2004, section 2). A column without a finite bound on the side that its reduced cost
picks gets one from a row where that is possible.
"""

from __future__ import annotations

import numpy as np

from remat_cli.mip import Floats, Ints, LinearModel

_PASSES = 4
"""Rounds in which rows give columns bounds; one round passes a bound on by at least one row. Untuned."""
_UNIT = float(np.finfo(np.float64).eps)


def dual_bound(model: LinearModel, duals: Floats) -> float:
    """The largest lower bound on the relaxation of ``model`` that ``duals`` prove, lowered by the rounding of its sums.

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
            given = side[row_of]
            rest = given - others + _UNIT * (4 + np.diff(model.starts)[row_of]) * (sizes + np.abs(given))
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
