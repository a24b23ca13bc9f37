"""The functions that the command line and notebooks call. Each name is imported on first use: the import stays fast."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # For type checkers, which cannot follow ``__getattr__`` below; remat_cli itself needs them too.
    from remat_cli.api.checking import check as check
    from remat_cli.api.documents import load_graph as load_graph
    from remat_cli.api.documents import load_plan as load_plan
    from remat_cli.api.documents import save_graph as save_graph
    from remat_cli.api.documents import save_plan as save_plan
    from remat_cli.api.fitting import fit as fit
    from remat_cli.api.importing import import_model as import_model
    from remat_cli.frontends.torch.capturing.export import export_torch as export_torch
    from remat_cli.frontends.torch.measuring.profile import profile as profile
    from remat_cli.frontends.torch.measuring.run import run_plan as run_plan
    from remat_cli.frontends.torch.training.backend import remat_backend as remat_backend
    from remat_cli.plan.check import Report as Report
    from remat_cli.planning.batches import MaxBatch as MaxBatch
    from remat_cli.planning.batches import max_batch as max_batch
    from remat_cli.planning.batches import one_forward as one_forward
    from remat_cli.planning.comparing.sweep import compare as compare
    from remat_cli.planning.curve import Curve as Curve
    from remat_cli.planning.curve import solve_curve as solve_curve
    from remat_cli.planning.job import Solved as Solved
    from remat_cli.planning.options import SolveOptions as SolveOptions
    from remat_cli.planning.smallest import solve_smallest as solve_smallest
    from remat_cli.planning.solving import solve as solve
    from remat_cli.zoo.registry import build_graph as build_graph
else:
    _HOME = {
        "Curve": "remat_cli.planning.curve",
        "MaxBatch": "remat_cli.planning.batches",
        "Report": "remat_cli.plan.check",
        "SolveOptions": "remat_cli.planning.options",
        "Solved": "remat_cli.planning.job",
        "build_graph": "remat_cli.zoo.registry",
        "check": "remat_cli.api.checking",
        "compare": "remat_cli.planning.comparing.sweep",
        "export_torch": "remat_cli.frontends.torch.capturing.export",
        "fit": "remat_cli.api.fitting",
        "import_model": "remat_cli.api.importing",
        "load_graph": "remat_cli.api.documents",
        "load_plan": "remat_cli.api.documents",
        "max_batch": "remat_cli.planning.batches",
        "one_forward": "remat_cli.planning.batches",
        "profile": "remat_cli.frontends.torch.measuring.profile",
        "remat_backend": "remat_cli.frontends.torch.training.backend",
        "run_plan": "remat_cli.frontends.torch.measuring.run",
        "save_graph": "remat_cli.api.documents",
        "save_plan": "remat_cli.api.documents",
        "solve": "remat_cli.planning.solving",
        "solve_curve": "remat_cli.planning.curve",
        "solve_smallest": "remat_cli.planning.smallest",
    }
    __all__ = sorted(_HOME)

    def __getattr__(name: str) -> Any:
        """Import ``name`` from its module."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOME[name]), name)
