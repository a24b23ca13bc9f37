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
    from remat_cli.api.frameworks import export_torch as export_torch
    from remat_cli.api.frameworks import export_torch_parts as export_torch_parts
    from remat_cli.api.frameworks import profile as profile
    from remat_cli.api.frameworks import remat_backend as remat_backend
    from remat_cli.api.frameworks import run_plan as run_plan
    from remat_cli.api.importing import import_model as import_model
    from remat_cli.api.partitioning import RematPartitioner as RematPartitioner
    from remat_cli.api.showing import describe as describe
    from remat_cli.api.showing import figure as figure
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
    from remat_cli.frontends.torch.training.report import Fitted as Fitted
    from remat_cli.graph.model import Graph as Graph
    from remat_cli.graph.model import Node as Node
    from remat_cli.graph.model import Phase as Phase
    from remat_cli.plan.check import Report as Report
    from remat_cli.plan.comparison import Comparison as Comparison
    from remat_cli.plan.comparison import Ended as Ended
    from remat_cli.plan.comparison import Linked as Linked
    from remat_cli.plan.comparison import Row as Row
    from remat_cli.plan.difference import Difference as Difference
    from remat_cli.plan.explanation import Explanation as Explanation
    from remat_cli.plan.host import Host as Host
    from remat_cli.plan.model import Claim as Claim
    from remat_cli.plan.model import ClaimStatus as ClaimStatus
    from remat_cli.plan.model import Plan as Plan
    from remat_cli.plan.model import Scope as Scope
    from remat_cli.plan.replay import Finding as Finding
    from remat_cli.plan.sensitivity import Offer as Offer
    from remat_cli.plan.sensitivity import Slope as Slope
    from remat_cli.plan.sensitivity import Worth as Worth
    from remat_cli.planning.curve import Curve as Curve
    from remat_cli.planning.curve import Point as Point
    from remat_cli.planning.curve import PointStatus as PointStatus
    from remat_cli.planning.executors import DaskExecutor as DaskExecutor
    from remat_cli.planning.executors import LocalExecutor as LocalExecutor
    from remat_cli.planning.max_batch import MaxBatch as MaxBatch
    from remat_cli.planning.options import Limits as Limits
    from remat_cli.planning.options import SolveOptions as SolveOptions
    from remat_cli.planning.policies import Policy as Policy
    from remat_cli.planning.solved import Solved as Solved
    from remat_cli.units import Budget as Budget
else:
    _HOME = {
        "Budget": "remat_cli.units",
        "CaptureFailed": "remat_cli.errors",
        "Claim": "remat_cli.plan.model",
        "ClaimStatus": "remat_cli.plan.model",
        "Comparison": "remat_cli.plan.comparison",
        "Curve": "remat_cli.planning.curve",
        "DaskExecutor": "remat_cli.planning.executors",
        "Difference": "remat_cli.plan.difference",
        "Ended": "remat_cli.plan.comparison",
        "Ending": "remat_cli.control",
        "ExecutionFailed": "remat_cli.errors",
        "ExitCode": "remat_cli.errors",
        "Explanation": "remat_cli.plan.explanation",
        "Finding": "remat_cli.plan.replay",
        "FrameworkUnavailable": "remat_cli.errors",
        "Graph": "remat_cli.graph.model",
        "Host": "remat_cli.plan.host",
        "Infeasible": "remat_cli.errors",
        "InputError": "remat_cli.errors",
        "Interrupted": "remat_cli.errors",
        "InvalidStrategyPlan": "remat_cli.errors",
        "LicenceLimit": "remat_cli.errors",
        "LimitReached": "remat_cli.errors",
        "NotOneGraph": "remat_cli.errors",
        "Limits": "remat_cli.planning.options",
        "Linked": "remat_cli.plan.comparison",
        "LocalExecutor": "remat_cli.planning.executors",
        "MaxBatch": "remat_cli.planning.max_batch",
        "Policy": "remat_cli.planning.policies",
        "Node": "remat_cli.graph.model",
        "OutOfMemory": "remat_cli.errors",
        "Outcome": "remat_cli.control",
        "Phase": "remat_cli.graph.model",
        "Plan": "remat_cli.plan.model",
        "Point": "remat_cli.planning.curve",
        "PointStatus": "remat_cli.planning.curve",
        "Problem": "remat_cli.errors",
        "Progress": "remat_cli.control",
        "Ran": "remat_cli.frontends.ran",
        "Fitted": "remat_cli.frontends.torch.training.report",
        "RematError": "remat_cli.errors",
        "RematPartitioner": "remat_cli.api.partitioning",
        "Report": "remat_cli.plan.check",
        "Row": "remat_cli.plan.comparison",
        "Scope": "remat_cli.plan.model",
        "SolveOptions": "remat_cli.planning.options",
        "Solved": "remat_cli.planning.solved",
        "SolverFailed": "remat_cli.errors",
        "SolverUnavailable": "remat_cli.errors",
        "StrategyMismatch": "remat_cli.errors",
        "UsageError": "remat_cli.errors",
        "build_graph": "remat_cli.api.frameworks",
        "check": "remat_cli.api.checking",
        "compare": "remat_cli.api.comparing",
        "compare_links": "remat_cli.api.comparing",
        "describe": "remat_cli.api.showing",
        "diff": "remat_cli.api.checking",
        "explain": "remat_cli.api.checking",
        "export_torch": "remat_cli.api.frameworks",
        "export_torch_parts": "remat_cli.api.frameworks",
        "figure": "remat_cli.api.showing",
        "fit": "remat_cli.api.fitting",
        "fitted": "remat_cli.api.fitting",
        "import_model": "remat_cli.api.importing",
        "load_graph": "remat_cli.api.documents",
        "load_plan": "remat_cli.api.documents",
        "max_batch": "remat_cli.api.solving",
        "policy": "remat_cli.api.solving",
        "one_forward": "remat_cli.api.solving",
        "page": "remat_cli.api.showing",
        "plans_of": "remat_cli.api.fitting",
        "profile": "remat_cli.api.frameworks",
        "remat_backend": "remat_cli.api.frameworks",
        "run_plan": "remat_cli.api.frameworks",
        "save_figure": "remat_cli.api.showing",
        "save_graph": "remat_cli.api.documents",
        "save_page": "remat_cli.api.showing",
        "save_plan": "remat_cli.api.documents",
        "solve": "remat_cli.api.solving",
        "solve_curve": "remat_cli.api.solving",
        "solve_smallest": "remat_cli.api.solving",
        "unfit": "remat_cli.api.fitting",
        "worth": "remat_cli.api.comparing",
        "Offer": "remat_cli.plan.sensitivity",
        "Slope": "remat_cli.plan.sensitivity",
        "Worth": "remat_cli.plan.sensitivity",
    }
    __all__ = sorted(_HOME)

    def __getattr__(name: str) -> Any:
        """Import ``name`` from its module."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOME[name]), name)
