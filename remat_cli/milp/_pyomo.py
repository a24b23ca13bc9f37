"""The parts of Pyomo that formulations use, imported when a model is first stated: listings save 0.1 s.

Use it as ``from remat_cli.milp import _pyomo as pyo``, in the place of ``import pyomo.environ as pyo``, which would
import all that Pyomo can do (writers, solvers, transformations) and take three times as long.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_ELSEWHERE = {
    "EqualityExpression": "pyomo.core.expr.relational_expr",
    "InequalityExpression": "pyomo.core.expr.relational_expr",
    "LinearExpression": "pyomo.core.expr.numeric_expr",
    "MonomialTermExpression": "pyomo.core.expr.numeric_expr",
    "RangedExpression": "pyomo.core.expr.relational_expr",
    "generate_standard_repn": "pyomo.repn.standard_repn",
}


def __getattr__(name: str) -> Any:
    """``name`` from ``pyomo.core`` or from its module in ``_ELSEWHERE``; looked up once."""
    if name.startswith("__"):
        raise AttributeError(name)
    value = getattr(import_module(_ELSEWHERE.get(name, "pyomo.core")), name)
    globals()[name] = value
    return value
