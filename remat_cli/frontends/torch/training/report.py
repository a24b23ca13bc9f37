"""What ``fit`` says of the module that it has planned: the memory of a step by plan, in eager mode, and at least."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.graph.model import Graph
from remat_cli.plan.model import Allocate, Compute, Deallocate, Plan
from remat_cli.units import format_bytes

_WORKSPACE = {
    "convolution": 2.0,
    "convolution_backward": 2.0,
    "native_batch_norm_backward": 1.0,
    "_scaled_dot_product_flash_attention_for_cpu": 0.3,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 1.0,
}
"""Workspace of operations as a share of the bytes that they read and write: the largest seen on a CPU."""


def likely_workspace(plan: Plan) -> int:
    """By how much operations may exceed the peak of ``plan``, in bytes, if its graph does not count workspace.

    An estimate by the kind of operation; only a measurement tells (``cost="measured"``).
    """
    graph, live, highest, peak = plan.graph, 0, 0, 0
    sizes: dict[str, int] = {}
    for statement in plan.statements:
        if isinstance(statement, Allocate):
            sizes[statement.register] = graph.size[statement.value]
            live += graph.size[statement.value]
        elif isinstance(statement, Deallocate):
            live -= sizes[statement.register]
        elif isinstance(statement, Compute):
            node = graph.nodes[statement.node]
            peak = max(peak, live + node.workspace)
            highest = max(highest, live + node.workspace + _likely(graph, statement.node))
    return highest - peak


def _likely(graph: Graph, index: int) -> int:
    node = graph.nodes[index]
    touched = sum(graph.size[value] for value in node.inputs) + sum(node.outputs)
    return round(_WORKSPACE.get(node.op or "", 0.0) * touched)


@dataclass(frozen=True, slots=True)
class Fitted:
    """Memory of a training step of a fitted module, in bytes, fixed memory included.

    Attributes:
        name: The module.
        budget_bytes: What the step may use; None if the planner has no budget.
        eager_bytes: What eager mode needs, workspace of operations left out; None if it is not known.
        keep_all_bytes: What the captured step needs without recomputation.
        plan_bytes: What the plans need.
        least_bytes: No plan needs less.
        extra_cost: Cost of the recomputation, as a share of the cost of a step; with copies the time of the plan by
            the replay of its queues, beyond that cost.
        workspace_bytes: By how much operations may exceed ``plan_bytes``, as far as is known; 0 if they are measured.
        assumed: What was assumed of the results of the module, in words; empty if nothing was.
        parts: Number of graphs into which the module is divided.
        host_bytes: Most bytes of host memory in use; 0 for plans without copies.
    """

    name: str
    budget_bytes: int | None
    eager_bytes: int | None
    keep_all_bytes: int
    plan_bytes: int
    least_bytes: int
    extra_cost: float
    workspace_bytes: int = 0
    assumed: str = ""
    parts: int = 1
    host_bytes: int = 0

    def __repr__(self) -> str:
        """All figures in one line."""
        eager = "unknown" if self.eager_bytes is None else format_bytes(self.eager_bytes)
        budget = "" if self.budget_bytes is None else f"budget {format_bytes(self.budget_bytes)}, "
        workspace = f"; workspace of operations comes on top: up to {format_bytes(self.workspace_bytes)}"
        parts = f" in {self.parts} parts" if self.parts > 1 else ""
        host = f", {format_bytes(self.host_bytes)} on the host" if self.host_bytes else ""
        return (
            f"{self.name}: {budget}plan {format_bytes(self.plan_bytes)}{parts}{host} (+{self.extra_cost:.3g}%); "
            f"eager {eager}, without recomputation {format_bytes(self.keep_all_bytes)}, "
            f"at least {format_bytes(self.least_bytes)}"
            + (workspace if self.workspace_bytes else "")
            + (f"; {self.assumed}" if self.assumed else "")
        )
