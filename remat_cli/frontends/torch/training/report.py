"""What ``fit`` says of the module that it has planned: the memory of a step by plan, in eager mode, and at least."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.units import format_bytes


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
        counts_workspace: Whether the plans count what operations need while they run: always on a CPU, and on CUDA with
            measured costs.
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
    counts_workspace: bool = True
    assumed: str = ""
    parts: int = 1
    host_bytes: int = 0

    def __repr__(self) -> str:
        """All figures in one line."""
        eager = "unknown" if self.eager_bytes is None else format_bytes(self.eager_bytes)
        budget = "" if self.budget_bytes is None else f"budget {format_bytes(self.budget_bytes)}, "
        workspace = '; the workspace of operations comes on top: cost="measured" counts it'
        parts = f" in {self.parts} parts" if self.parts > 1 else ""
        host = f", {format_bytes(self.host_bytes)} on the host" if self.host_bytes else ""
        return (
            f"{self.name}: {budget}plan {format_bytes(self.plan_bytes)}{parts}{host} (+{self.extra_cost:.3g}%); "
            f"eager {eager}, without recomputation {format_bytes(self.keep_all_bytes)}, "
            f"at least {format_bytes(self.least_bytes)}"
            + ("" if self.counts_workspace else workspace)
            + (f"; {self.assumed}" if self.assumed else "")
        )
