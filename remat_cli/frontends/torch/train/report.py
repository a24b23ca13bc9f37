"""What ``fit`` says of the module that it has planned: the memory of a step by plan, in eager mode, and at least."""

from dataclasses import dataclass

from remat_cli.graph.model import Graph
from remat_cli.units import TIME_UNITS, format_bytes, format_duration


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
        extra_cost: Cost of the recomputation, in percent of the cost of a step without it; with copies, the time of the
            plan by the replay of its queues beyond that cost, in the same percent.
        counts_workspace: Whether the plans count what operations need while they run: always on a CPU, and on CUDA with
            measured costs.
        assumed: What was assumed of the results of the module, in words; empty if nothing was.
        parts: Number of graphs into which the module is divided.
        host_bytes: Most bytes of host memory in use; 0 for plans without copies.
        regions: The regions that run in parts, in words; empty if none does. Results then are equal up to rounding.
        least_extra_cost: No plans within the budget cost less, in percent of the same; None if that is not known.
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
    regions: str = ""
    least_extra_cost: float | None = None

    def __repr__(self) -> str:
        """All figures in one line."""
        eager = "unknown" if self.eager_bytes is None else format_bytes(self.eager_bytes)
        budget = "" if self.budget_bytes is None else f"budget {format_bytes(self.budget_bytes)}, "
        parts = f" in {self.parts} parts" if self.parts > 1 else ""
        host = f", {format_bytes(self.host_bytes)} on the host" if self.host_bytes else ""
        least = "" if self.least_extra_cost is None else f", at least +{self.least_extra_cost:.3g}%"
        return (
            f"{self.name}: {budget}plan {format_bytes(self.plan_bytes)}{parts}{host} (+{self.extra_cost:.3g}%{least}); "
            f"eager {eager}, without recomputation {format_bytes(self.keep_all_bytes)}, "
            f"at least {format_bytes(self.least_bytes)}"
            + ("" if self.counts_workspace else f"; {_WORKSPACE}")
            + (f"; {self.regions}" if self.regions else "")
            + (f"; {self.assumed}" if self.assumed else "")
        )

    def line(self, cost_unit: str, seconds: float, search_s: float | None = None) -> str:
        """What a user wants to know of it, in one line.

        Args:
            cost_unit: Unit of the costs of the plans.
            seconds: How long it took to make them.
            search_s: How much of that was for searches, or for plans in the cache; None if that is not known.
        """
        figures = self.keep_all_bytes, self.plan_bytes, self.budget_bytes, self.extra_cost, cost_unit, seconds
        figures_in_words = saving(*figures, host_bytes=self.host_bytes, search_s=search_s)
        parts = f", in {self.parts} parts" if self.parts > 1 else ""
        notes = ["" if self.counts_workspace else _WORKSPACE, self.regions, self.assumed]
        return "; ".join(filter(None, (f"{self.name}{parts}: {figures_in_words}", *notes)))


def parts_words(*graphs: Graph) -> str:
    """The regions of plans that run in parts, and what that does to the results; empty if none does."""
    found = [
        f"{region} in {parts} parts"
        for graph in graphs
        for region, parts in ({} if graph.origin is None else graph.origin.parts).items()
    ]
    if not found:
        return ""
    return f"{', '.join(found)}: losses and gradients are equal up to rounding, and not bit for bit"


def kernels_words(device: str, *graphs: Graph) -> str:
    """Which kernels of a captured step are not those of eager mode, in words; empty if none is known."""
    payloads = (node.payload for graph in graphs for node in graph.nodes)
    calls = {str(payload.get("call")) for payload in payloads if isinstance(payload, dict)}
    if device != "cuda" or not any("batch_norm" in call for call in calls):
        return ""
    return (
        "batch normalisation is PyTorch's, as under torch.compile, and in eager mode cuDNN's: losses and gradients are "
        "equal up to rounding"
    )


_WORKSPACE = 'the workspace of operations comes on top: cost="measured" counts it'


def saving(
    before_bytes: int,
    plan_bytes: int,
    budget_bytes: int | None,
    extra_percent: float,
    cost_unit: str,
    seconds: float,
    *,
    host_bytes: int = 0,
    search_s: float | None = None,
) -> str:
    """``peak 302 -> 168 MB (-44%) within 180 MB, about +7.7% step time; planned in 5.01 s``.

    Args:
        before_bytes: The peak of a step without recomputation.
        plan_bytes: The peak by plan.
        budget_bytes: What it may be; None without a budget.
        extra_percent: Cost of the recomputation, in percent of the cost of a step.
        cost_unit: Unit of both.
        seconds: How long it took to make the plan.
        host_bytes: Most bytes of host memory in use.
        search_s: How much of that was for the search; None for unknown. It is told if it is less than half: then the
            wait is for the capture, and a plan in the cache does not shorten it.
    """
    before, after = format_bytes(before_bytes), format_bytes(plan_bytes)
    within = "" if budget_bytes is None else f" within {format_bytes(budget_bytes)}"
    planned = f"; planned in {format_duration(seconds)}"
    if search_s is not None and search_s < seconds / 2:
        planned += f" ({format_duration(search_s)} of it for the search)"
    if plan_bytes >= before_bytes:
        return f"peak {after}{within} without recomputation{planned}"
    if before.split()[1] == after.split()[1]:
        before = before.split()[0]
    what = "step time" if cost_unit in TIME_UNITS else {"flops": "FLOPs"}.get(cost_unit, cost_unit)
    extra = f"{extra_percent:.1f}" if extra_percent >= 1 else f"{max(0.0, extra_percent):.2g}"
    share = round(100 * (1 - plan_bytes / before_bytes))
    host = f", {format_bytes(host_bytes)} on the host" if host_bytes else ""
    return f"peak {before} -> {after} (-{share}%){within}{host}, about +{extra}% {what}{planned}"
