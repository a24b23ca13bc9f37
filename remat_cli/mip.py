"""A mixed-integer linear programme as plain arrays: the interface between ``milp`` and ``solvers``.

Neither side knows the other, so this module imports neither Pyomo nor a solver.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Row(NamedTuple):
    """``lower <= sum of coefficients[k] * x[columns[k]] <= upper``; a column that comes up twice counts twice.

    A tuple, since models have a hundred thousand of them.
    """

    columns: Sequence[int]
    coefficients: Sequence[float]
    lower: float
    upper: float


def linear(lower: float, terms: Sequence[tuple[float, int]], upper: float) -> Row:
    """``lower <= sum of coefficient * x[column] <= upper`` for ``(coefficient, column)`` terms."""
    return Row([column for _, column in terms], [coefficient for coefficient, _ in terms], lower, upper)


@dataclass(frozen=True, slots=True)
class Block:
    """Rows to append to a model, over its columns and new ones.

    Attributes:
        first: Number of the first new column; equals the number of columns before.
        added: Number of new columns; continuous, from 0 to 1, without cost.
        rows: Rows over all of them.
    """

    first: int
    added: int
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Names(Sequence[str]):
    """Names of columns, formatted on access: they are rarely needed, and formatting all takes long.

    Attributes:
        numbers: What the columns are called by, in their order.
        name: Gives the name.
    """

    numbers: Sequence[int]
    name: Callable[[int], str]

    def __len__(self) -> int:
        """Number of names."""
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        """One name, or several."""
        if isinstance(index, slice):
            return Names(self.numbers[index], self.name)
        return self.name(int(self.numbers[index]))


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

    def with_rows(self, rows: Sequence[Row]) -> LinearModel:
        """The model with ``rows`` appended."""
        if not rows:
            return self
        starts, indices, values = _by_rows(rows)
        return replace(
            self,
            starts=np.concatenate([self.starts, self.starts[-1] + starts[1:]]),
            indices=np.concatenate([self.indices, indices]),
            values=np.concatenate([self.values, values]),
            row_lower=np.concatenate([self.row_lower, np.array([row.lower for row in rows], dtype=np.float64)]),
            row_upper=np.concatenate([self.row_upper, np.array([row.upper for row in rows], dtype=np.float64)]),
        )

    def with_block(self, block: Block, names: Sequence[str] = ()) -> LinearModel:
        """The model with the columns and rows of ``block`` appended.

        ``names`` are those of all columns.

        Raises:
            ValueError: If the columns of an earlier block are missing.
        """
        if block.first != self.columns:
            raise ValueError(f"a block that follows column {block.first} cannot follow column {self.columns}")
        wider = replace(
            self,
            cost=np.append(self.cost, np.zeros(block.added)),
            lower=np.append(self.lower, np.zeros(block.added)),
            upper=np.append(self.upper, np.ones(block.added)),
            integer=np.append(self.integer, np.zeros(block.added, dtype=np.bool_)),
            column_names=names,
        )
        return wider.with_rows(block.rows)

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


@dataclass(slots=True)
class Builder:
    """Puts a model together: columns are called by the numbers that adding them returns.

    Attributes:
        cost: Of each column so far.
        upper: Upper bound of each; the lower bounds are 0.
        integer: Whether it is integral.
        rows: Rows so far.
        offset: Constant of the objective.
    """

    offset: float = 0.0
    cost: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def binaries(self, cost: Iterable[float]) -> range:
        """Add a column of 0 or 1 for each ``cost``; their numbers."""
        return self._columns(cost, 1.0, integer=True)

    def amounts(self, cost: Iterable[float]) -> range:
        """Add a continuous column from 0 on for each ``cost``; their numbers."""
        return self._columns(cost, math.inf, integer=False)

    def _columns(self, cost: Iterable[float], upper: float, *, integer: bool) -> range:
        first = len(self.cost)
        self.cost.extend(cost)
        added = range(first, len(self.cost))
        self.upper.extend([upper] * len(added))
        self.integer.extend([integer] * len(added))
        return added

    def build(self) -> LinearModel:
        """The model."""
        starts, indices, values = _by_rows(self.rows)
        return LinearModel(
            cost=np.array(self.cost, dtype=np.float64),
            lower=np.zeros(len(self.cost)),
            upper=np.array(self.upper, dtype=np.float64),
            integer=np.array(self.integer, dtype=np.bool_),
            starts=starts,
            indices=indices,
            values=values,
            row_lower=np.array([row.lower for row in self.rows], dtype=np.float64),
            row_upper=np.array([row.upper for row in self.rows], dtype=np.float64),
            offset=self.offset,
        )


def _by_rows(rows: Sequence[Row]) -> tuple[Ints, Ints, Floats]:
    """``starts``, ``indices`` and ``values`` of ``rows``."""
    counts = [len(row.columns) for row in rows]
    total = sum(counts)
    return compressed(
        np.repeat(np.arange(len(rows)), counts),
        np.fromiter((column for row in rows for column in row.columns), dtype=np.int64, count=total),
        np.fromiter((value for row in rows for value in row.coefficients), dtype=np.float64, count=total),
        len(rows),
    )


def compressed(row: Ints, column: Ints, value: Floats, rows: int) -> tuple[Ints, Ints, Floats]:
    """``starts``, ``indices`` and ``values`` of a matrix by its terms, each row sorted by column.

    Args:
        row: int64[terms].
        column: int64[terms].
        value: float64[terms]; those of one place are summed, and zeros are left out.
        rows: Number of rows.
    """
    width = int(column.max(initial=0)) + 1
    place, where = np.unique(row * width + column, return_inverse=True)
    values = np.bincount(where, weights=value, minlength=len(place))
    place, values = place[values != 0], values[values != 0]
    row, column = np.divmod(place, width)
    starts = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))]).astype(np.int64)
    return starts, column, values
