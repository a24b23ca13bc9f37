"""Rows in the form that Pyomo takes fastest, added with an eye on the clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from remat_cli.control import Control
from remat_cli.milp import _pyomo as pyo

LinearRow = tuple[float | None, Any, float | None]
"""``(lower, linear expression, upper)``."""

_LOOK_EVERY = 4096


def linear(lower: float | None, terms: Sequence[tuple[float, Any]], upper: float | None) -> LinearRow:
    """``lower <= sum of coefficient * variable <= upper`` for ``(coefficient, variable)`` terms."""
    return (lower, pyo.LinearExpression(linear_coefs=[c for c, _ in terms], linear_vars=[v for _, v in terms]), upper)


def add_rows(model: Any, name: str, rows: Iterable[LinearRow], control: Control) -> None:
    """Add ``rows`` to a Pyomo model as one indexed constraint.

    Raises:
        LimitReached, Interrupted: If the control stops meanwhile.
    """
    control.check()
    bodies = []
    for count, row in enumerate(rows):
        if count % _LOOK_EVERY == 0:
            control.check()
        bodies.append(row)

    def rule(_: Any, index: int) -> LinearRow:
        if index % _LOOK_EVERY == 0:
            control.check()
        return bodies[index]

    model.add_component(name, pyo.Constraint(range(len(bodies)), rule=rule))
