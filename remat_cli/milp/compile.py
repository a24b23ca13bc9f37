"""Pyomo models to arrays, in one pass and without a file."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
