"""Pyomo models to arrays, in one pass and without a file."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from remat_cli.milp import _pyomo as pyo
from remat_cli.mip import Ints, LinearModel

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
        rows_of: Name of a constraint component to its rows: int64[...].
    """

    model: LinearModel
    column_of: dict[int, int]
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

    Args:
        model: A ``ConcreteModel`` with one active objective, to be minimised.
    """
    with under_construction():
        form = pyo.LinearStandardFormCompiler().write(model, mixed_form=True)
    columns = form.columns
    matrix = form.A.tocsr()
    rhs = np.asarray(form.rhs, dtype=np.float64)
    kind = np.fromiter((row.bound_type for row in form.rows), dtype=np.int64, count=len(form.rows))
    # bound_type: 1 for <=, -1 for >=, 0 for ==.
    return Compiled(
        model=LinearModel(
            cost=np.asarray(form.c.toarray(), dtype=np.float64)[0],
            offset=float(form.c_offset[0]),
            lower=np.array([-np.inf if v.lb is None else v.lb for v in columns], dtype=np.float64),
            upper=np.array([np.inf if v.ub is None else v.ub for v in columns], dtype=np.float64),
            integer=np.array([not v.is_continuous() for v in columns], dtype=np.bool_),
            starts=matrix.indptr.astype(np.int64),
            indices=matrix.indices.astype(np.int64),
            values=matrix.data.astype(np.float64),
            row_lower=np.where(kind <= 0, rhs, -np.inf),
            row_upper=np.where(kind >= 0, rhs, np.inf),
            column_names=[v.name for v in columns],
        ),
        column_of={id(v): column for column, v in enumerate(columns)},
        rows_of=_rows_of(form.rows),
    )


def _rows_of(rows: Sequence[Any]) -> dict[str, Ints]:
    found: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        found.setdefault(row.constraint.parent_component().name, []).append(index)
    return {name: np.array(indices, dtype=np.int64) for name, indices in found.items()}


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
        column_names=[*main.column_names, *(extra.model.column_names[int(j)] for j in new)],
    )
    return Compiled(model, where, compiled.rows_of)
