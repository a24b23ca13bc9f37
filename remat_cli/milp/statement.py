"""Pyomo models whose variables are referred to by number; a number is the column unless variables are left out.

A formulation states its rows once, over numbers. They are passed to Pyomo here, and the clock is checked on the way.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, TypeVar

from remat_cli.control import Control
from remat_cli.milp import _pyomo as pyo
from remat_cli.milp.compile import Compiled, compile_model
from remat_cli.mip import Row

_LOOK_EVERY = 4096
"""Rows between two checks of the clock: a few milliseconds. Untuned."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class Statement:
    """A Pyomo model under construction.

    Attributes:
        model: The ``ConcreteModel``. The index of every variable is its number, over all components.
        control: Checked while rows are added.
        variables: The Pyomo variable of each number.
        plus: The term 1 * variable of each; most coefficients are 1 or -1, and expressions may share terms.
        minus: The term -1 * variable of each.
        keys: Name, first number and keys of each component.
    """

    model: Any
    control: Control
    variables: list[Any] = field(default_factory=list)
    plus: list[Any] = field(default_factory=list)
    minus: list[Any] = field(default_factory=list)
    keys: list[tuple[str, int, Sequence[Any]]] = field(default_factory=list)

    @classmethod
    def named(cls, name: str, control: Control) -> Statement:
        """An empty statement."""
        return cls(pyo.ConcreteModel(name=name), control)

    def binaries(self, name: str, keys: Sequence[Key]) -> dict[Key, int]:
        """Add a variable of 0 or 1 for each key; their numbers."""
        return self._variables(name, keys, domain=pyo.Binary)

    def amounts(self, name: str, keys: Sequence[Key], most: float | None = None) -> dict[Key, int]:
        """Add a continuous variable from 0 to ``most`` for each key; their numbers."""
        return self._variables(name, keys, domain=pyo.NonNegativeReals, bounds=(0, most))

    def _variables(self, name: str, keys: Sequence[Key], **kind: Any) -> dict[Key, int]:
        numbers = range(len(self.variables), len(self.variables) + len(keys))
        component = pyo.Var(numbers, **kind)
        self.model.add_component(name, component)
        variables = list(component.values())
        self.variables.extend(variables)
        self.plus.extend(map(pyo.MonomialTermExpression, zip(repeat(1.0), variables)))
        self.minus.extend(map(pyo.MonomialTermExpression, zip(repeat(-1.0), variables)))
        self.keys.append((name, numbers.start, keys))
        return dict(zip(keys, numbers, strict=True))

    def add_rows(self, name: str, rows: Iterable[Row]) -> None:
        """Add ``rows``, over numbers, as one indexed constraint.

        Raises:
            LimitReached, Interrupted: If the control stops meanwhile.
        """
        bodies = [self._relation(row) for row in self.control.watched(rows)]

        def rule(_: Any, index: int) -> Any:
            if index % _LOOK_EVERY == 0:
                self.control.check()
            return bodies[index]

        self.model.add_component(name, pyo.Constraint(range(len(bodies)), rule=rule))

    def _relation(self, row: Row) -> Any:
        """``row`` in Pyomo, as a finished relation, because Pyomo is slow to process tuples."""
        lower, upper = row.lower, row.upper
        body = self._sum(row.columns, row.coefficients)
        if lower == upper:
            return pyo.EqualityExpression((body, upper))
        if lower == -math.inf:
            return pyo.InequalityExpression((body, upper), strict=False)
        if upper == math.inf:
            return pyo.InequalityExpression((lower, body), strict=False)
        return pyo.RangedExpression((lower, body, upper), strict=(False, False))

    def minimise(self, numbers: Sequence[int], coefficients: Sequence[float], constant: float = 0.0) -> None:
        """Set the objective."""
        self.model.objective = pyo.Objective(expr=self._sum(numbers, coefficients, constant))

    def _sum(self, numbers: Sequence[int], coefficients: Sequence[float], constant: float = 0.0) -> Any:
        plus, minus, variables, term = self.plus, self.minus, self.variables, pyo.MonomialTermExpression
        args = [
            plus[k] if c == 1.0 else minus[k] if c == -1.0 else term((c, variables[k]))
            for k, c in zip(numbers, coefficients, strict=True)
        ]
        return pyo.LinearExpression([constant, *args] if constant else args)

    def compiled(self) -> Compiled:
        """The arrays; columns are named by component and key, such as ``R[3,2]``."""
        return compile_model(self.model, self.name)

    def name(self, number: int) -> str:
        """The name of variable ``number``; variables added after the statement are named ``w``."""
        for name, first, keys in reversed(self.keys):
            if first <= number < first + len(keys):
                key = keys[number - first]
                parts = key if isinstance(key, tuple) else (key,)
                return f"{name}[{','.join(map(str, parts))}]"
        return f"w[{number}]"
