"""Compiles linear models of Pyomo to arrays, in one pass and without a file."""

import gc
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyomo.core as pyo
from pyomo.core.expr import (
    EqualityExpression,
    InequalityExpression,
    LinearExpression,
    MonomialTermExpression,
    NegationExpression,
    ProductExpression,
    SumExpression,
)
from pyomo.core.expr.numvalue import native_numeric_types

from remat_cli.mip import Floats, Ints, LinearModel, Names, compressed

_SUMS = frozenset({LinearExpression, SumExpression})
_entrance = threading.Lock()
_inside: list[int] = []
_enabled_before: list[bool] = []


@dataclass(frozen=True, slots=True)
class CompiledModel:
    """Arrays of a Pyomo model.

    Attributes:
        model: The arrays. Variables in no row and not in the objective have the last columns.
        column_of: Column of each variable by its ``id``; fixed variables have none.
        rows_of: Name of a constraint component to its rows: int64[...].
    """

    model: LinearModel
    column_of: dict[int, int]
    rows_of: dict[str, Ints]

    def columns_of(self, component: Any) -> dict[Any, int]:
        """Index of a ``Var`` to column; without the fixed variables."""
        columns = ((key, self.column_of.get(id(variable))) for key, variable in component.items())
        return {key: column for key, column in columns if column is not None}


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Switch Python's cycle collector off: it would traverse the many small objects of a model again and again.

    Several threads may be inside: an abandoned strategy may still be building its model.
    """
    with _entrance:
        if not _inside:
            _enabled_before.append(gc.isenabled())
            gc.disable()
        _inside.append(threading.get_ident())
    try:
        yield
    finally:
        with _entrance:
            _inside.remove(threading.get_ident())
            if not _inside and _enabled_before.pop():
                gc.enable()


def compile_model(stated: Any) -> CompiledModel:
    """Compile a Pyomo model that minimises a linear objective under linear rows.

    The result equals that of Pyomo's ``LinearStandardFormCompiler``, number for number, without rows that always hold,
    and with last columns for the variables that it leaves out. It needs no SciPy.

    Raises:
        ValueError: If something is not linear.
    """
    with without_garbage_collection():
        variables: list[Any] = []
        components: list[tuple[str, int, list[Any]]] = []  # name, number of the first variable, indices
        for component in stated.component_objects(pyo.Var):
            components.append((component.name, len(variables), list(component)))
            variables.extend(component.values())
        terms = _Terms({id(variable): number for number, variable in enumerate(variables)})
        objective = next(stated.component_data_objects(pyo.Objective, active=True))
        offset = terms.add_objective(objective.expr)
        sides: list[float] = []
        kinds: list[int] = []
        rows_of: dict[str, Ints] = {}
        for component in stated.component_objects(pyo.Constraint, active=True):
            first = len(sides)
            for constraint in component.values():
                side, kind = terms.add_relation(constraint.expr)
                sides.append(side)
                kinds.append(kind)
            rows_of[component.name] = np.arange(first, len(sides))
        rhs, kind_of = np.array(sides, dtype=np.float64), np.array(kinds, dtype=np.int64)
        compiled = _compiled(variables, terms, offset, rhs, kind_of, rows_of)
        # By component and index, not by variable: a variable has no name once the model of Pyomo is gone.
        numbers = [terms.number_of[key] for key in compiled.column_of]
        names = Names(numbers, lambda number: _name(components, number))
        return replace(compiled, model=replace(compiled.model, column_names=names))


def _name(components: Sequence[tuple[str, int, Sequence[Any]]], number: int) -> str:
    """``R[3,2]``, as Pyomo calls its variables."""
    name, first, indices = next(component for component in reversed(components) if component[1] <= number)
    index = indices[number - first]
    if index is None:
        return str(name)
    parts = index if isinstance(index, tuple) else (index,)
    return f"{name}[{','.join(map(str, parts))}]"


@dataclass(slots=True)
class _Terms:
    """The terms of the objective and of all rows, one after the other.

    Attributes:
        number_of: Number of each variable by its ``id``.
        counts: Number of terms of each expression.
        numbers: Variable number of each term.
        coefs: Coefficient of each term.
    """

    number_of: dict[int, int]
    counts: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    coefs: list[float] = field(default_factory=list)

    def add_relation(self, relation: Any) -> tuple[float, int]:
        """Append the terms of a row; returns its side, and 1 for <=, -1 for >=, 0 for ==.

        Raises:
            ValueError: If the relation is of another kind, or not linear.
        """
        kind = relation.__class__
        if kind is not InequalityExpression and kind is not EqualityExpression:
            raise ValueError(f"neither an equation nor an inequality with one side: {relation}")
        left, right = relation.args
        before = len(self.numbers)
        if kind is InequalityExpression and left.__class__ in native_numeric_types:  # written: expression >= number
            side, kind_of_row = left - self._collect(right, 1.0), -1
        else:
            side = -self._collect(left, 1.0) - self._collect(right, -1.0)
            kind_of_row = 1 if kind is InequalityExpression else 0
        self.counts.append(len(self.numbers) - before)
        return side, kind_of_row

    def add_objective(self, expression: Any) -> float:
        """Append the terms of the objective; returns its constant."""
        before = len(self.numbers)
        constant = self._collect(expression, 1.0)
        self.counts.append(len(self.numbers) - before)
        return constant

    def _collect(self, expression: Any, factor: float) -> float:
        """Append the terms of ``factor * expression``; returns its constant."""
        number_of, constant = self.number_of, 0.0
        for term in expression.args if expression.__class__ in _SUMS else (expression,):
            kind = term.__class__
            if kind is MonomialTermExpression:
                coefficient, variable = term.args
                self.numbers.append(number_of[id(variable)])
                self.coefs.append(factor * coefficient)
            elif (number := number_of.get(id(term))) is not None:
                self.numbers.append(number)
                self.coefs.append(factor)
            elif kind is NegationExpression:
                constant += self._collect(term.args[0], -factor)
            elif kind in _SUMS:
                constant += self._collect(term, factor)
            elif kind is ProductExpression and term.args[0].__class__ in native_numeric_types:
                constant += self._collect(term.args[1], factor * term.args[0])
            elif kind in native_numeric_types:
                constant += factor * term
            else:
                raise ValueError(f"not linear: {term}")
        return constant


def _compiled(
    variables: Sequence[Any],
    terms: _Terms,
    offset: float,
    rhs: Floats,
    kind: Ints,
    rows_of: dict[str, Ints],
) -> CompiledModel:
    """Arrays of all terms, the objective first: duplicates summed, zeros and fixed variables out, columns sorted."""
    starts, place, coefs = compressed(
        np.repeat(np.arange(len(terms.counts)), terms.counts),
        np.array(terms.numbers, dtype=np.int64),
        np.array(terms.coefs, dtype=np.float64),
        len(terms.counts),
    )
    row = np.repeat(np.arange(len(terms.counts)), np.diff(starts))
    fixed = np.array([v.fixed for v in variables], dtype=np.bool_)
    if fixed.any():
        at = np.array([v.value if v.fixed else 0.0 for v in variables], dtype=np.float64)
        shift = np.bincount(row, weights=coefs * at[place], minlength=1 + len(rhs))
        offset, rhs = offset + float(shift[0]), rhs - shift[1:]
        row, place, coefs = row[~fixed[place]], place[~fixed[place]], coefs[~fixed[place]]
    used = np.unique(place)
    numbers = np.concatenate([used, np.setdiff1d(np.flatnonzero(~fixed), used)])
    column_of = np.full(len(variables), -1, dtype=np.int64)
    column_of[numbers] = np.arange(len(numbers))
    columns = [variables[number] for number in numbers.tolist()]
    cost = np.zeros(len(numbers))
    own = row == 0
    cost[column_of[place[own]]] = coefs[own]
    counts = np.bincount(row[~own] - 1, minlength=len(rhs))
    # A row without terms is dropped if it holds. If it does not, it stays: the solver must report infeasibility.
    stays = (counts > 0) | ((kind <= 0) & (rhs > 0)) | ((kind >= 0) & (rhs < 0))
    rhs, kind = rhs[stays], kind[stays]
    place_of = np.cumsum(stays) - 1
    bounds = [v.bounds for v in columns]
    model = LinearModel(
        cost=cost,
        offset=offset,
        lower=np.array([-np.inf if lower is None else lower for lower, _ in bounds], dtype=np.float64),
        upper=np.array([np.inf if upper is None else upper for _, upper in bounds], dtype=np.float64),
        integer=np.array([not v.is_continuous() for v in columns], dtype=np.bool_),
        starts=np.concatenate([[0], np.cumsum(counts[stays])]).astype(np.int64),
        indices=column_of[place[~own]],
        values=coefs[~own],
        row_lower=np.where(kind <= 0, rhs, -np.inf),
        row_upper=np.where(kind >= 0, rhs, np.inf),
    )
    return CompiledModel(
        model=model,
        column_of={id(variable): column for column, variable in enumerate(columns)},
        rows_of={name: place_of[rows[stays[rows]]] for name, rows in rows_of.items()},
    )
