"""What the command line and a notebook call. Names load when they are used, so that this import stays light."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remat_cli.api.attempt import Solved
    from remat_cli.api.checking import check
    from remat_cli.api.comparing.sweep import compare
    from remat_cli.api.documents import load_graph, load_plan, save_graph, save_plan
    from remat_cli.api.fitting import fit
    from remat_cli.api.options import SolveOptions
    from remat_cli.api.solving import solve
    from remat_cli.frontends.torch.export import export_torch
    from remat_cli.plan.check import Report
    from remat_cli.zoo.registry import build_graph

_HOME = {
    "Report": "remat_cli.plan.check",
    "SolveOptions": "remat_cli.api.options",
    "Solved": "remat_cli.api.attempt",
    "build_graph": "remat_cli.zoo.registry",
    "check": "remat_cli.api.checking",
    "compare": "remat_cli.api.comparing.sweep",
    "export_torch": "remat_cli.frontends.torch.export",
    "fit": "remat_cli.api.fitting",
    "load_graph": "remat_cli.api.documents",
    "load_plan": "remat_cli.api.documents",
    "save_graph": "remat_cli.api.documents",
    "save_plan": "remat_cli.api.documents",
    "solve": "remat_cli.api.solving",
}

__all__ = [
    "Report",
    "SolveOptions",
    "Solved",
    "build_graph",
    "check",
    "compare",
    "export_torch",
    "fit",
    "load_graph",
    "load_plan",
    "save_graph",
    "save_plan",
    "solve",
]


def __getattr__(name: str) -> Any:
    """Import ``name`` from where it lives."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
