"""Pyomo models to arrays, in one pass and without a file."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

from remat_cli.milp import _pyomo as pyo
from remat_cli.mip import Floats, Ints, LinearModel, Names, compressed

_PYOMO_LOG = logging.getLogger("pyomo")
_entrance = threading.Lock()
_inside: list[int] = []
_before: list[tuple[bool, int]] = []


@dataclass(frozen=True, slots=True)
class Compiled:
    """Arrays of a Pyomo model, and the columns of its variables.

    Attributes:
        model: The arrays.
        column_of: int64[variables], the column of each variable by number; -1 if it is fixed. Variables in no row and
            not in the objective have the last columns, since rows that come later may speak of them.
        rows_of: Name of a constraint component to its rows: int64[...].
        name: Gives the name of a variable by number.
    """

    model: LinearModel
    column_of: Ints
    rows_of: dict[str, Ints]
    name: Callable[[int], str]

    def column(self, number: int) -> int:
        """The column of a variable; -1 if it is fixed."""
        return int(self.column_of[number])


@contextmanager
def under_construction() -> Iterator[None]:
    """Build or compile a model inside this context: faster, and without log output if it is stopped.

    Python's cycle collector would traverse the many small objects repeatedly, and Pyomo would log an error if a rule
    raises because time is up. Several threads may be inside: an abandoned strategy may still be building its model.
    """
    with _entrance:
        if not _inside:
            _before.append((gc.isenabled(), _PYOMO_LOG.level))
            gc.disable()
            _PYOMO_LOG.setLevel(logging.CRITICAL)
        _inside.append(threading.get_ident())
    try:
        yield
    finally:
        with _entrance:
            _inside.remove(threading.get_ident())
            if not _inside:
                was_enabled, level = _before.pop()
                _PYOMO_LOG.setLevel(level)
                if was_enabled:
                    gc.enable()


def compile_model(model: Any, name: Callable[[int], str] | None = None) -> Compiled:
    """Compile a Pyomo model that minimises a linear objective under linear rows.

    The result equals that of Pyomo's ``LinearStandardFormCompiler``, number for number, without rows that always hold,
    and with last columns for the variables that it leaves out. It needs no SciPy, whose statistics Pyomo would import
    in half a second.

    Args:
        model: A ``ConcreteModel`` with one active objective, to be minimised. The index of every variable is its
            number: from 0 on, over all components in the order in which they were added.
        name: Gives the name of a variable by number; None for Pyomo's names.

    Raises:
        ValueError: If something is not linear, or a variable has another index.
    """
    with under_construction():
        numbered = [item for component in model.component_objects(pyo.Var) for item in component.items()]
        if [number for number, _ in numbered] != list(range(len(numbered))):
            raise ValueError("the index of a variable is not its number")
        variables = [variable for _, variable in numbered]
        terms = _Terms()
        objective = next(model.component_data_objects(pyo.Objective, active=True))
        offset = terms.add(objective.expr)
        sides: list[float] = []
        kinds: list[int] = []
        rows_of: dict[str, Ints] = {}
        for rows in model.component_objects(pyo.Constraint, active=True):
            first = len(sides)
            for row in rows.values():
                lower, body, upper = row.to_bounded_expression()
                # 1 for <=, -1 for >=, 0 for ==; a row with two sides becomes two rows.
                for side, kind in ((upper, 0),) if lower == upper else ((upper, 1), (lower, -1)):
                    if side is not None:
                        sides.append(side - terms.add(body))
                        kinds.append(kind)
            rows_of[rows.name] = np.arange(first, len(sides))
        rhs, kind_of = np.array(sides, dtype=np.float64), np.array(kinds, dtype=np.int64)
        return _compiled(variables, terms, offset, rhs, kind_of, rows_of, name or (lambda k: str(variables[k].name)))


@dataclass(slots=True)
class _Terms:
    """The terms of a sequence of linear expressions.

    Attributes:
        counts: Number of terms of each expression.
        numbers: Variable number of each term.
        coefs: Coefficient of each term.
    """

    counts: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    coefs: list[float] = field(default_factory=list)

    def add(self, expression: Any) -> float:
        """Append the terms of an expression; returns its constant."""
        if type(expression) is not pyo.LinearExpression:
            standard = pyo.generate_standard_repn(expression, quadratic=False)
            if not standard.is_linear():
                raise ValueError(f"not linear: {expression}")
            expression = pyo.LinearExpression(
                constant=standard.constant, linear_coefs=standard.linear_coefs, linear_vars=standard.linear_vars
            )
        constant, before, term_type = 0.0, len(self.numbers), pyo.MonomialTermExpression
        for term in expression.args:
            if type(term) is term_type:
                coef, variable = term.args
                self.numbers.append(variable.index())
                self.coefs.append(coef)
            elif isinstance(term, Real):
                constant += float(term)
            else:  # a variable by itself
                self.numbers.append(term.index())
                self.coefs.append(1.0)
        self.counts.append(len(self.numbers) - before)
        return constant


def _compiled(
    variables: Sequence[Any],
    terms: _Terms,
    offset: float,
    rhs: Floats,
    kind: Ints,
    rows_of: dict[str, Ints],
    name: Callable[[int], str],
) -> Compiled:
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
    rows_of = {name: place_of[rows[stays[rows]]] for name, rows in rows_of.items()}
    bounds = [v.bounds for v in columns]
    return Compiled(
        model=LinearModel(
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
            column_names=Names(numbers.tolist(), name),
        ),
        column_of=column_of,
        rows_of=rows_of,
        name=name,
    )
