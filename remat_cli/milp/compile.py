"""Pyomo models to arrays, in one pass and without a file."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pyomo.repn.plugins.standard_form import LinearStandardFormCompiler

from remat_cli.mip import LinearModel


@dataclass(frozen=True, slots=True)
class Compiled:
    """Arrays of a Pyomo model, and where its variables went.

    Attributes:
        model: The arrays.
        column_of: ``id`` of a Pyomo variable to its column. Variables that are fixed, or that no row and no
            objective mentions, have none.
    """

    model: LinearModel
    column_of: dict[int, int]


@contextmanager
def collection_paused() -> Iterator[None]:
    """Keep Python's cycle collector from walking the many small objects of a model under construction."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def compile_model(model: Any) -> Compiled:
    """Compile a Pyomo model that minimises a linear objective under linear rows.

    Args:
        model: A ``ConcreteModel`` with one active objective, to be minimised.
    """
    with collection_paused():
        form = LinearStandardFormCompiler().write(model, mixed_form=True)
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
    return Compiled(model, where)
