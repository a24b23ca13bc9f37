"""The functions for users, and the classes that they take, return and raise. Each name is imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # For type checkers, which cannot follow ``__getattr__`` below; remat_cli itself needs them too.
    from remat_cli.api.checking import check as check
    from remat_cli.api.checking import diff as diff
    from remat_cli.api.checking import explain as explain
    from remat_cli.api.comparing import compare as compare
    from remat_cli.api.comparing import compare_links as compare_links
    from remat_cli.api.comparing import worth as worth
    from remat_cli.api.documents import load_graph as load_graph
    from remat_cli.api.documents import load_plan as load_plan
    from remat_cli.api.documents import save_graph as save_graph
    from remat_cli.api.documents import save_plan as save_plan
    from remat_cli.api.fitting import fit as fit
    from remat_cli.api.fitting import fitted as fitted
    from remat_cli.api.fitting import plans_of as plans_of
    from remat_cli.api.fitting import unfit as unfit
    from remat_cli.api.frameworks import build_graph as build_graph
    from remat_cli.api.frameworks import export_jax as export_jax
    from remat_cli.api.frameworks import export_tensorflow as export_tensorflow
    from remat_cli.api.frameworks import export_torch as export_torch
    from remat_cli.api.frameworks import export_torch_parts as export_torch_parts
    from remat_cli.api.frameworks import profile as profile
    from remat_cli.api.frameworks import remat_backend as remat_backend
    from remat_cli.api.frameworks import run_plan as run_plan
    from remat_cli.api.importing import import_model as import_model
    from remat_cli.api.memory import FitsAnswer as FitsAnswer
    from remat_cli.api.memory import fits as fits
    from remat_cli.api.partitioning import RematPartitioner as RematPartitioner
    from remat_cli.api.pipelining import pipeline as pipeline
    from remat_cli.api.showing import describe as describe
    from remat_cli.api.showing import figure as figure
    from remat_cli.api.showing import load_snapshot as load_snapshot
    from remat_cli.api.showing import page as page
    from remat_cli.api.showing import save_figure as save_figure
    from remat_cli.api.showing import save_page as save_page
    from remat_cli.api.solving import max_batch as max_batch
    from remat_cli.api.solving import one_forward as one_forward
    from remat_cli.api.solving import policy as policy
    from remat_cli.api.solving import solve as solve
    from remat_cli.api.solving import solve_curve as solve_curve
    from remat_cli.api.solving import solve_smallest as solve_smallest
    from remat_cli.control import Ending as Ending
    from remat_cli.control import Outcome as Outcome
    from remat_cli.control import Progress as Progress
    from remat_cli.errors import CaptureFailed as CaptureFailed
    from remat_cli.errors import ExecutionFailed as ExecutionFailed
    from remat_cli.errors import ExitCode as ExitCode
    from remat_cli.errors import FrameworkUnavailable as FrameworkUnavailable
    from remat_cli.errors import Infeasible as Infeasible
    from remat_cli.errors import InputError as InputError
    from remat_cli.errors import Interrupted as Interrupted
    from remat_cli.errors import InvalidStrategyPlan as InvalidStrategyPlan
    from remat_cli.errors import LicenceLimit as LicenceLimit
    from remat_cli.errors import LimitReached as LimitReached
    from remat_cli.errors import NotOneGraph as NotOneGraph
    from remat_cli.errors import OutOfMemory as OutOfMemory
    from remat_cli.errors import Problem as Problem
    from remat_cli.errors import RematError as RematError
    from remat_cli.errors import SolverFailed as SolverFailed
    from remat_cli.errors import SolverUnavailable as SolverUnavailable
    from remat_cli.errors import StrategyMismatch as StrategyMismatch
    from remat_cli.errors import UsageError as UsageError
    from remat_cli.frontends.ran import Ran as Ran
    from remat_cli.frontends.torch.train.report import Fitted as Fitted
    from remat_cli.graph.model import Graph as Graph
    from remat_cli.graph.model import Node as Node
    from remat_cli.graph.model import Phase as Phase
    from remat_cli.plan.check import Report as Report
    from remat_cli.plan.comparison import Comparison as Comparison
    from remat_cli.plan.comparison import Ended as Ended
    from remat_cli.plan.comparison import Linked as Linked
    from remat_cli.plan.comparison import Offer as Offer
    from remat_cli.plan.comparison import Row as Row
    from remat_cli.plan.comparison import Slope as Slope
    from remat_cli.plan.comparison import Worth as Worth
    from remat_cli.plan.difference import Difference as Difference
    from remat_cli.plan.explanation import Explanation as Explanation
    from remat_cli.plan.host import Host as Host
    from remat_cli.plan.model import Claim as Claim
    from remat_cli.plan.model import ClaimStatus as ClaimStatus
    from remat_cli.plan.model import Plan as Plan
    from remat_cli.plan.model import Scope as Scope
    from remat_cli.plan.replay import Finding as Finding
    from remat_cli.planning.curve import Curve as Curve
    from remat_cli.planning.curve import Point as Point
    from remat_cli.planning.curve import PointStatus as PointStatus
    from remat_cli.planning.executors import DaskExecutor as DaskExecutor
    from remat_cli.planning.executors import LocalExecutor as LocalExecutor
    from remat_cli.planning.max_batch import MaxBatch as MaxBatch
    from remat_cli.planning.options import Limits as Limits
    from remat_cli.planning.options import SolveOptions as SolveOptions
    from remat_cli.planning.pipelining import Pipeline as Pipeline
    from remat_cli.planning.policies import Policy as Policy
    from remat_cli.planning.solved import Solved as Solved
    from remat_cli.reports.snapshot import Recorded as Recorded
    from remat_cli.units import Budget as Budget
else:
    _NAMES = {
        "remat_cli.api.checking": ("check", "diff", "explain"),
        "remat_cli.api.comparing": ("compare", "compare_links", "worth"),
        "remat_cli.api.documents": ("load_graph", "load_plan", "save_graph", "save_plan"),
        "remat_cli.api.fitting": ("fit", "fitted", "plans_of", "unfit"),
        "remat_cli.api.frameworks": (
            "build_graph",
            "export_jax",
            "export_tensorflow",
            "export_torch",
            "export_torch_parts",
            "profile",
            "remat_backend",
            "run_plan",
        ),
        "remat_cli.api.importing": ("import_model",),
        "remat_cli.api.partitioning": ("RematPartitioner",),
        "remat_cli.api.pipelining": ("pipeline",),
        "remat_cli.api.memory": ("FitsAnswer", "fits"),
        "remat_cli.api.showing": ("describe", "figure", "load_snapshot", "page", "save_figure", "save_page"),
        "remat_cli.api.solving": ("max_batch", "one_forward", "policy", "solve", "solve_curve", "solve_smallest"),
        "remat_cli.control": ("Ending", "Outcome", "Progress"),
        "remat_cli.errors": (
            "CaptureFailed",
            "ExecutionFailed",
            "ExitCode",
            "FrameworkUnavailable",
            "Infeasible",
            "InputError",
            "Interrupted",
            "InvalidStrategyPlan",
            "LicenceLimit",
            "LimitReached",
            "NotOneGraph",
            "OutOfMemory",
            "Problem",
            "RematError",
            "SolverFailed",
            "SolverUnavailable",
            "StrategyMismatch",
            "UsageError",
        ),
        "remat_cli.frontends.ran": ("Ran",),
        "remat_cli.frontends.torch.train.report": ("Fitted",),
        "remat_cli.graph.model": ("Graph", "Node", "Phase"),
        "remat_cli.plan.check": ("Report",),
        "remat_cli.plan.comparison": ("Comparison", "Ended", "Linked", "Offer", "Row", "Slope", "Worth"),
        "remat_cli.plan.difference": ("Difference",),
        "remat_cli.plan.explanation": ("Explanation",),
        "remat_cli.plan.host": ("Host",),
        "remat_cli.plan.model": ("Claim", "ClaimStatus", "Plan", "Scope"),
        "remat_cli.plan.replay": ("Finding",),
        "remat_cli.planning.curve": ("Curve", "Point", "PointStatus"),
        "remat_cli.planning.executors": ("DaskExecutor", "LocalExecutor"),
        "remat_cli.planning.max_batch": ("MaxBatch",),
        "remat_cli.planning.options": ("Limits", "SolveOptions"),
        "remat_cli.planning.pipelining": ("Pipeline",),
        "remat_cli.planning.policies": ("Policy",),
        "remat_cli.planning.solved": ("Solved",),
        "remat_cli.reports.snapshot": ("Recorded",),
        "remat_cli.units": ("Budget",),
    }
    """The public names of each module."""
    _HOME = {name: module for module, names in _NAMES.items() for name in names}
    __all__ = sorted(_HOME)

    def __getattr__(name: str) -> Any:
        """Import ``name`` from its module."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOME[name]), name)
