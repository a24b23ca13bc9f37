"""``RematPartitioner``: divides what ``torch.compile`` compiles by plan. Importing this module needs PyTorch."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from remat_cli.api.arguments import as_text, as_training_budget, options_of
from remat_cli.api.documents import as_plan
from remat_cli.api.fitting import TIME_LIMIT_S, CachedPlanner, plan_folder
from remat_cli.errors import UsageError
from remat_cli.frontends.torch.capture.capture import Captured
from remat_cli.frontends.torch.capture.lower import lower
from remat_cli.frontends.torch.capture.results import Use, whole_use
from remat_cli.frontends.torch.export import described
from remat_cli.frontends.torch.inductor.partitioner import SETTINGS, FindPlan, Partitioner
from remat_cli.frontends.torch.measure.costs import cost_model
from remat_cli.frontends.torch.measure.memory import with_library_workspaces
from remat_cli.frontends.torch.train.backend import Compiled, Find, devices, finder_of, no_plan
from remat_cli.graph.io import graph_sha256
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Compute, Plan
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.solved import Solved
from remat_cli.tracebacks import door
from remat_cli.units import Budget, as_size


class RematPartitioner(Partitioner):
    """Divides by plan what Inductor compiles: ``torch.compile(step, options=RematPartitioner("8GB").options)``.

    Caches of compiled code go by the plan, or by the budget and the way to solve, so none serves another plan's code.

    Args:
        plan: A plan of a graph that was exported with ``compiler="inductor"``, or its file; or a budget for each graph
            that is compiled: ``"8GB"``, ``"80%"`` of what it needs without recomputation, or bytes.
        options: How to solve for a budget; by default ``auto``, for at most 60 s per graph.
        cost: What recomputation should spare for a budget, as for :func:`remat_cli.fit`.
        reserve: Memory to leave for things outside the graph.
        cache: Folder for plans; None for the user's cache folder, ``""`` for none.

    Raises:
        UsageError: If it is neither a plan nor a budget, or the plan is not valid.
        InputError: If a file holds no plan.
        FrameworkUnavailable: If PyTorch is missing, or older than 2.13.
    """

    @door
    def __init__(
        self,
        plan: Plan | Solved | Budget | Path | str | float,
        *,
        options: SolveOptions | None = None,
        cost: str = "device",
        reserve: str | float = 0,
        cache: str | Path | None = None,
    ) -> None:
        if isinstance(plan, Plan | Solved | Path) or (isinstance(plan, str) and plan.endswith((".json", ".yaml"))):
            given = as_plan(plan)
            find, refuse = finder_of(given, compiler="inductor")
            super().__init__(_for_partitioner(find), refuse, _digest(given))
            return
        asked, kept = as_training_budget(plan, "plan"), as_size(reserve, "reserve")
        solving = options_of(options, SolveOptions(time_limit_s=TIME_LIMIT_S))
        if solving.reorder:
            raise UsageError("a partitioner keeps the order of operations", hint="leave reorder out")
        planner = CachedPlanner(asked, solving, plan_folder(cache), kept)
        as_text(cost, "cost")

        def planned(compiled: Compiled) -> Plan:
            captured = compiled.captured
            costs = cost_model(cost, devices(captured.tensors)[0])
            graph = lower(captured, costs.cost, "compiled", whole_use(captured).holds)
            graph = described(graph, captured, costs, source="torch:compile", device=compiled.device)
            graph = with_library_workspaces(graph) if compiled.device == "cpu" else graph
            return planner(replace(graph, fixed_memory=graph.fixed_memory + kept))

        identity = f"{asked} {solving} {cost} {kept}"
        super().__init__(_for_partitioner(planned), lambda reasons: no_plan("error", reasons), identity)

    @property
    def options(self) -> dict[str, Any]:
        """Options for ``torch.compile``: this partitioner, and settings with which Inductor keeps to its plans."""
        return {"custom_partitioner_fn": self, **SETTINGS}


def _for_partitioner(find: Find) -> FindPlan:
    def find_plan(captured: Captured, graph: Graph, use: Use) -> Plan | None:
        return find(Compiled(captured, graph, devices(captured.tensors)[1], use))

    return find_plan


def _digest(plan: Plan) -> str:
    """A digest of the graph and of the order of a plan."""
    order = ",".join(str(s.node) for s in plan.statements if isinstance(s, Compute))
    return hashlib.sha256(f"{graph_sha256(plan.graph)} {order}".encode()).hexdigest()
