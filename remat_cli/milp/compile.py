"""Pyomo models to arrays, in one pass and without a file."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, overload

import numpy as np

from remat_cli.milp import _pyomo as pyo
from remat_cli.mip import Floats, Ints, LinearModel

_PYOMO_LOG = logging.getLogger("pyomo")
_entrance = threading.Lock()
_inside: list[int] = []
_before: list[tuple[bool, int]] = []


@dataclass(frozen=True, slots=True)
class Compiled:
    """Arrays of a Pyomo model, and where its variables went.

    Attributes:
        model: The arrays.
        column_of: ``id`` of a Pyomo variable to its column. Variables that are fixed, or that no row and no
            objective mentions, have none.
        variables: The variable of each column.
        rows_of: Name of a constraint component to its rows: int64[...].
    """

    model: LinearModel
    column_of: dict[int, int]
    variables: Sequence[Any]
    rows_of: dict[str, Ints]


@contextmanager
def under_construction() -> Iterator[None]:
    """Build or compile a model inside: fast, and silent when it is broken off.

    Python's cycle collector would walk the many small objects again and again, and Pyomo would log an error when a
    rule of ours raises because time is up. Several threads may be inside: one may have been left behind there.
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


def compile_model(model: Any) -> Compiled:
    """Compile a Pyomo model that minimises a linear objective under linear rows.

    What Pyomo's own ``LinearStandardFormCompiler`` makes of it, number for number, but for rows that always hold; and
    without SciPy, whose statistics Pyomo would import with it, in half a second.

    Args:
        model: A ``ConcreteModel`` with one active objective, to be minimised.

    Raises:
        ValueError: If something is not linear.
    """
    with under_construction():
        terms = _Terms()
        objective = next(model.component_data_objects(pyo.Objective, active=True))
        offset = terms.add(objective.expr)
        sides: list[float] = []
        kinds: list[int] = []
        rows_of: dict[str, Ints] = {}
        for rows in model.component_objects(pyo.Constraint, active=True):
            first = len(sides)
            for row in rows.values():
                lower, body, upper = row.to_bounded_expression(evaluate_bounds=True)
                # 1 for <=, -1 for >=, 0 for ==; a row with two sides is two.
                for side, kind in ((upper, 0),) if lower == upper else ((upper, 1), (lower, -1)):
                    if side is not None:
                        sides.append(side - terms.add(body))
                        kinds.append(kind)
            rows_of[rows.name] = np.arange(first, len(sides))
        rhs, kind_of = np.array(sides, dtype=np.float64), np.array(kinds, dtype=np.int64)
        return _compiled(terms, offset, rhs, kind_of, rows_of)


@dataclass(slots=True)
class _Terms:
    """The terms of one linear expression after the other.

    Attributes:
        columns: Variables that come up, each with all of its component, in the order in which they do.
        of: ``id`` of a variable to its place among them.
        counts: Terms of each expression.
        places: Of the variable of each term.
        coefs: Of each term.
    """

    columns: list[Any] = field(default_factory=list)
    of: dict[int, int] = field(default_factory=dict)
    counts: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    coefs: list[float] = field(default_factory=list)

    def add(self, expression: Any) -> float:
        """Take an expression; the constant in it."""
        if type(expression) is not pyo.LinearExpression:
            standard = pyo.generate_standard_repn(expression, quadratic=False)
            if not standard.is_linear():
                raise ValueError(f"not linear: {expression}")
            expression = pyo.LinearExpression(
                constant=standard.constant, linear_coefs=standard.linear_coefs, linear_vars=standard.linear_vars
            )
        constant, before, of = 0.0, len(self.places), self.of
        for term in expression.args:
            if type(term) is pyo.MonomialTermExpression:
                coef, variable = term.args
                key = id(variable)
                self.places.append(of[key] if key in of else self._place(variable))
                self.coefs.append(coef)
            elif isinstance(term, Real):
                constant += float(term)
            else:
                self.places.append(self._place(term))
                self.coefs.append(1.0)
        self.counts.append(len(self.places) - before)
        return constant

    def _place(self, variable: Any) -> int:
        for other in variable.parent_component().values():
            if id(other) not in self.of:
                self.of[id(other)] = len(self.columns)
                self.columns.append(other)
        return self.of[id(variable)]


@dataclass(frozen=True, slots=True)
class _Names(Sequence[str]):
    """Names of Pyomo variables, put together when somebody asks: hardly anyone does, and it takes long."""

    variables: Sequence[Any]

    def __len__(self) -> int:
        """Number of names."""
        return len(self.variables)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        """One name, or several."""
        if isinstance(index, slice):
            return _Names(self.variables[index])
        name: str = self.variables[index].name
        return name


def _compiled(terms: _Terms, offset: float, rhs: Floats, kind: Ints, rows_of: dict[str, Ints]) -> Compiled:
    """Arrays of all terms, the objective first; duplicates summed, zeros and fixed variables out, columns sorted."""
    total = len(terms.columns)
    row = np.repeat(np.arange(len(terms.counts)), terms.counts)
    key = row * total + np.array(terms.places, dtype=np.int64)
    key, where = np.unique(key, return_inverse=True)
    coefs = np.bincount(where, weights=np.array(terms.coefs, dtype=np.float64), minlength=len(key))
    key, coefs = key[coefs != 0], coefs[coefs != 0]
    row, place = np.divmod(key, max(1, total))
    fixed = np.array([v.fixed for v in terms.columns], dtype=np.bool_)
    if fixed.any():
        at = np.array([v.value if v.fixed else 0.0 for v in terms.columns], dtype=np.float64)
        shift = np.bincount(row, weights=coefs * at[place], minlength=1 + len(rhs))
        offset, rhs = offset + float(shift[0]), rhs - shift[1:]
        row, place, coefs = row[~fixed[place]], place[~fixed[place]], coefs[~fixed[place]]
    used = np.unique(place)
    column = np.zeros(total, dtype=np.int64)
    column[used] = np.arange(len(used))
    columns = [terms.columns[k] for k in used]
    cost = np.zeros(len(used))
    own = row == 0
    cost[column[place[own]]] = coefs[own]
    counts = np.bincount(row[~own] - 1, minlength=len(rhs))
    # A row without terms says nothing if it holds, and else that nothing fits: that is for the solver to say.
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
            indices=column[place[~own]],
            values=coefs[~own],
            row_lower=np.where(kind <= 0, rhs, -np.inf),
            row_upper=np.where(kind >= 0, rhs, np.inf),
            column_names=_Names(columns),
        ),
        column_of={id(v): index for index, v in enumerate(columns)},
        variables=columns,
        rows_of=rows_of,
    )


def append_block(compiled: Compiled, block: Any) -> Compiled:
    """``compiled`` with the rows of ``block`` appended, and its new variables as new columns.

    Args:
        compiled: The main model; not changed.
        block: A ``ConcreteModel`` with rows over variables of the main model and its own, and any objective: the costs
            of its own variables count, those of the main model's variables do not count twice.
    """
    extra = compile_model(block)
    main = compiled.model
    where = dict(compiled.column_of)
    for key in extra.column_of:
        where.setdefault(key, len(where))
    to_main = np.empty(extra.model.columns, dtype=np.int64)
    for key, column in extra.column_of.items():
        to_main[column] = where[key]
    new = np.flatnonzero(to_main >= main.columns)
    variables = [*compiled.variables, *(extra.variables[j] for j in new.tolist())]
    model = replace(
        main,
        cost=np.concatenate([main.cost, extra.model.cost[new]]),
        lower=np.concatenate([main.lower, extra.model.lower[new]]),
        upper=np.concatenate([main.upper, extra.model.upper[new]]),
        integer=np.concatenate([main.integer, extra.model.integer[new]]),
        starts=np.concatenate([main.starts, main.starts[-1] + extra.model.starts[1:]]),
        indices=np.concatenate([main.indices, to_main[extra.model.indices]]),
        values=np.concatenate([main.values, extra.model.values]),
        row_lower=np.concatenate([main.row_lower, extra.model.row_lower]),
        row_upper=np.concatenate([main.row_upper, extra.model.row_upper]),
        column_names=_Names(variables),
    )
    return Compiled(model, where, variables, compiled.rows_of)
