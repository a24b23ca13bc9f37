"""A mixed-integer linear programme as plain arrays: the interface between ``milp`` and ``solvers``.

Neither side knows the other, so this module imports neither Pyomo nor a solver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class LinearModel:
    """Minimise ``cost @ x + offset`` with ``row_lower <= A x <= row_upper`` and ``lower <= x <= upper``.

    A is stored by rows (CSR): row r has ``indices[starts[r]:starts[r+1]]`` and the ``values`` at the same places.
    Infinite bounds are ``±inf``.

    Attributes:
        cost: float64[n].
        lower: float64[n].
        upper: float64[n].
        integer: bool[n]; true where x is integral.
        starts: int64[m + 1].
        indices: int64[nnz], columns.
        values: float64[nnz].
        row_lower: float64[m].
        row_upper: float64[m].
        offset: Constant of the objective.
        column_names: Names for model files, one per column; empty for none.
    """

    cost: Floats
    lower: Floats
    upper: Floats
    integer: Bools
    starts: Ints
    indices: Ints
    values: Floats
    row_lower: Floats
    row_upper: Floats
    offset: float = 0.0
    column_names: Sequence[str] = ()

    @property
    def columns(self) -> int:
        """Number of variables, n."""
        return len(self.cost)

    @property
    def rows(self) -> int:
        """Number of constraints, m."""
        return len(self.row_lower)

    def relaxed(self) -> LinearModel:
        """The linear relaxation: the same model without integrality."""
        return replace(self, integer=np.zeros(self.columns, dtype=np.bool_))

    def with_rows(self, rows: Sequence[tuple[Sequence[int], Sequence[float], float, float]]) -> LinearModel:
        """The model with rows ``(columns, coefficients, lower, upper)`` appended."""
        if not rows:
            return self
        counts = np.array([len(r[0]) for r in rows], dtype=np.int64)
        return replace(
            self,
            starts=np.concatenate([self.starts, self.starts[-1] + np.cumsum(counts)]),
            indices=np.concatenate([self.indices, *(np.asarray(r[0], dtype=np.int64) for r in rows)]),
            values=np.concatenate([self.values, *(np.asarray(r[1], dtype=np.float64) for r in rows)]),
            row_lower=np.concatenate([self.row_lower, np.array([r[2] for r in rows])]),
            row_upper=np.concatenate([self.row_upper, np.array([r[3] for r in rows])]),
        )

    def objective(self, x: Floats) -> float:
        """Value of the objective at ``x: float64[n]``."""
        return float(self.cost @ x) + self.offset

    def violation(self, x: Floats) -> float:
        """Largest violation of any bound, row or integrality at ``x: float64[n]`` (0.0 when feasible)."""
        row_of = np.repeat(np.arange(self.rows), np.diff(self.starts))
        activity = np.bincount(row_of, weights=self.values * x[self.indices], minlength=self.rows)
        parts = [
            self.lower - x,
            x - self.upper,
            self.row_lower - activity,
            activity - self.row_upper,
            np.abs(x - np.round(x))[self.integer],
        ]
        return max((float(p.max()) for p in parts if len(p)), default=0.0) if self.columns else 0.0
