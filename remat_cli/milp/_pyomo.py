"""What the formulations use of Pyomo, imported when a model is first stated: half a second that listings do without.

Use it as ``from remat_cli.milp import _pyomo as pyo``, in the place of ``import pyomo.environ as pyo``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_ELSEWHERE = {
    "LinearExpression": "pyomo.core.expr.numeric_expr",
    "LinearStandardFormCompiler": "pyomo.repn.plugins.standard_form",
}


def __getattr__(name: str) -> Any:
    """``name`` of ``pyomo.environ``, or of the module that is known to have it; found once."""
    if name.startswith("__"):
        raise AttributeError(name)
    environ = import_module("pyomo.environ")
    value = getattr(import_module(_ELSEWHERE[name]) if name in _ELSEWHERE else environ, name)
    globals()[name] = value
    return value
