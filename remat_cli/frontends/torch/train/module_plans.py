"""Makes and keeps the plans of a module's graphs, which share one budget.

The graphs into which PyTorch divides a module are planned together, when it is fitted. A graph that comes later
(evaluation after training, another shape, autocast) is planned alone, beside what the others hold by their plans.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, runtime_checkable

from remat_cli.errors import Infeasible, RematError, UsageError
from remat_cli.frontends.interconnect import Interconnect
from remat_cli.frontends.torch.capture.capture import Calls, Captured
from remat_cli.frontends.torch.capture.lower import lower
from remat_cli.frontends.torch.capture.results import uses, with_tangents
from remat_cli.frontends.torch.document import read_step
from remat_cli.frontends.torch.export import described
from remat_cli.frontends.torch.measure.collectives import with_collectives
from remat_cli.frontends.torch.measure.costs import CostModel
from remat_cli.frontends.torch.measure.memory import with_library_workspaces, with_workspaces
from remat_cli.frontends.torch.measure.part_workspaces import part_workspaces
from remat_cli.frontends.torch.regions import with_regions
from remat_cli.frontends.torch.tensors import total_bytes
from remat_cli.frontends.torch.train.backend import Compiled, Unplanned, matching_plan, no_plan
from remat_cli.frontends.torch.train.budget_split import Reservation, keep_all_graphs, plan_parts
from remat_cli.frontends.torch.train.loop_assumptions import LossDemand, ResultUses, copied_bytes
from remat_cli.frontends.torch.train.part_schedule import Part, PartSchedule, saved_by, schedule_of
from remat_cli.frontends.torch.train.report import Fitted, parts_words
from remat_cli.frontends.torch.types import Device, Tensor
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph
from remat_cli.graph.splitting import least_in_parts
from remat_cli.plan.model import Plan
from remat_cli.plan.replay import replay

Unknown = Literal["plan", Unplanned]
"""How to treat a graph that comes later: plan it too, or as ``Unplanned`` treats a graph without a plan."""


@runtime_checkable
class Planner(Protocol):
    """Makes the plans of a module within one budget."""

    @property
    def budget_bytes(self) -> int | None:
        """The budget; None if there is none, or it is not settled yet."""

    @property
    def plans_ahead(self) -> bool:
        """Whether it has made plans for graphs that come later, so that it is asked for them where they are errors."""

    def settle(self, graphs: Sequence[Graph], agree: Callable[[int], int] = int) -> int | None:
        """The budget in bytes, from now on, of a module with these graphs; None without a budget.

        ``agree`` makes one budget of those of several processes.
        """

    def __call__(self, graph: Graph) -> Plan:
        """A valid plan of ``graph``, within the budget.

        Raises:
            RematError: If there is none.
        """

    def search(self, graph: Graph) -> Plan:
        """The same, by a search even if later graphs are not searched for."""


@dataclass(slots=True)
class PlainPlanner:
    """A function from a graph to a plan as a :class:`Planner` without a budget."""

    function: Callable[[Graph], Plan]
    budget_bytes: int | None = None
    plans_ahead: bool = False

    def settle(self, graphs: Sequence[Graph], agree: Callable[[int], int] = int) -> int | None:
        """None: there is no budget."""

    def __call__(self, graph: Graph) -> Plan:
        """What the function returns."""
        return self.function(graph)

    def search(self, graph: Graph) -> Plan:
        """What the function returns."""
        return self.function(graph)


@dataclass(frozen=True, slots=True)
class Costs:
    """How the graphs of a module are lowered and measured.

    Attributes:
        model: The cost model for lowering.
        measured: Whether every operation is run on the device before planning.
        device: The device of the module.
        compiler: What runs the plans: ``eager`` or ``inductor``.
        split: Whether graphs offer regions that may run in parts.
        interconnect: The links between ranks; None if nothing is known of them.
    """

    model: CostModel
    measured: bool
    device: Device
    compiler: str
    split: bool = False
    interconnect: Interconnect | None = None

    @property
    def workspace(self) -> bool:
        """Whether plans count the workspace of operations."""
        return self.measured or self.device.type == "cpu"

    def of(self, graph: Graph) -> Graph:
        """``graph`` with measured costs if the user chose so, with workspace on a CPU, with regions if asked for."""
        if self.split and not self.workspace:
            return with_regions(graph, self.model.cost)
        if self.split:
            return with_regions(with_workspaces(graph), self.model.cost, part_workspaces)
        if self.measured:
            return _profiled(graph, self.device)
        if not self.workspace:
            return graph
        return with_library_workspaces(graph) if self.compiler == "inductor" else with_workspaces(graph)


@dataclass(frozen=True, slots=True)
class PartPlan:
    """A part of the module as it was planned first, for graphs of the same operations that come later.

    Attributes:
        operations: The operations of the part.
        above_bytes: What it needs without recomputation beside its fixed memory.
        reservation: What the other parts hold.
        saved_bytes: What it holds itself between its two passes, which the others count on.
    """

    operations: tuple[str | None, ...]
    above_bytes: int
    reservation: Reservation
    saved_bytes: int


@dataclass(slots=True)
class ModulePlans:
    """The plans made so far, and how to make more.

    Attributes:
        planner: Makes plans.
        costs: How graphs get their costs.
        reserve_bytes: Added to the fixed memory of every graph.
        unknown: How to treat graphs that come later.
        module_bytes: Bytes of all parameters and buffers of the module.
        uses: What is known of the results of graphs.
        plans: The plans made so far; first those of the module's parts.
        parts: The parts as they were planned first.
        part_graphs: Their graphs now.
        keep_all: For each call of one of them, its graph with what others hold, if nothing is recomputed.
        unplanned_bytes: What code without a plan keeps for its backward pass.
        refused: Why parts of the module have no plan; they are counted as code without one.
    """

    planner: Planner
    costs: Costs
    reserve_bytes: int
    unknown: Unknown
    module_bytes: int
    uses: ResultUses = field(default_factory=ResultUses)
    plans: list[Plan] = field(default_factory=list)
    parts: list[PartPlan] = field(default_factory=list)
    part_graphs: list[Graph] = field(default_factory=list)
    keep_all: list[Graph] = field(default_factory=list)
    unplanned_bytes: int = 0
    refused: Sequence[str] = ()

    def plan_parts(
        self,
        name: str,
        captured: Sequence[Captured],
        calls: Calls,
        demand: LossDemand | None,
        held: Sequence[Tensor] | None,
    ) -> None:
        """Plan the parts of the module, which share the budget.

        Args:
            name: Of the module.
            captured: Its parts.
            calls: How the module called them.
            demand: What the loop asks of the results.
            held: The results that it still has when the backward pass begins; None for all.
        """
        takes = None if demand is None else demand.trained
        if self.costs.split and len(captured) > 1:
            raise UsageError(
                f"regions in parts are for a module that is one graph, and PyTorch makes {len(captured)} of this one",
                hint="leave split out, or fit modules in it one by one",
            )
        assumed = zip(captured, uses(captured, calls, takes, held), uses(captured, calls, takes), strict=True)
        for part, use, with_all_held in assumed:
            self.uses.assume(part, use, with_all_held)
        schedule = self.schedule(name, captured, calls, demand, held)
        self.part_graphs = [part.graph for part in schedule.parts]
        self.keep_all = keep_all_graphs(schedule)
        self.unplanned_bytes = schedule.unplanned_bytes
        plans, reservations = plan_parts(schedule, self.planner.settle(self.keep_all), self.planner)
        self.plans += plans
        for graph, plan, reservation in zip(self.part_graphs, plans, reservations, strict=True):
            saved = saved_by(Part(plan.graph if plan.graph.origin else graph), plan.statements).value_bytes
            self.parts.append(PartPlan(_operations(graph), _above_bytes(graph), reservation, saved))

    def schedule(
        self,
        name: str,
        captured: Sequence[Captured],
        calls: Calls,
        demand: LossDemand | None,
        held: Sequence[Tensor] | None,
    ) -> PartSchedule:
        """The schedule of the parts, with costs, once it is assumed how their results are used."""
        graphs = [self._part_graph(part, name, number) for number, part in enumerate(captured)]
        copied = [copied_bytes(part, self.uses.use_of(part)) for part in captured]
        return schedule_of(graphs, captured, calls, demand, held, copied)

    def _part_graph(self, captured: Captured, name: str, number: int) -> Graph:
        """The graph of a part as it is assumed to be used, with costs."""
        use = self.uses.use_of(captured)
        name += f".{number}" if number else ""
        costs = with_collectives(self.costs.model, self.costs.interconnect, captured)
        graph = lower(with_tangents(captured, use.takes), costs.cost, name, use.holds)
        graph = replace(graph, fixed_memory=graph.fixed_memory + (copied_bytes(captured, use) or 0))
        device = self.costs.device.type
        return self._prepared(described(graph, captured, costs, source=f"torch:{name}", device=device))

    def _prepared(self, graph: Graph) -> Graph:
        """``graph`` with costs and the reserve."""
        graph = self.costs.of(graph)
        return replace(graph, fixed_memory=graph.fixed_memory + self.reserve_bytes)

    def report(self, name: str, eager_bytes: int | None, assumed: str) -> Fitted:
        """What there is to say of the plans of the module's parts."""
        plans = self.plans[: len(self.part_graphs)]
        replays = [replay(plan.graph, plan.statements, host=plan.host if plan.copies else None) for plan in plans]
        time = math.fsum(one.time for one in replays)
        once = math.fsum(plan.graph.whole.no_remat_cost for plan in plans)
        return Fitted(
            name=name,
            budget_bytes=self.planner.budget_bytes,
            eager_bytes=None if eager_bytes is None else eager_bytes + self.reserve_bytes,
            keep_all_bytes=max(map(no_remat_peak, self.keep_all)),
            plan_bytes=max(one.peak_bytes for one in replays),
            least_bytes=max(peak_bound(least_in_parts(graph)).bytes for graph in self.part_graphs),
            extra_cost=100 * (time / once - 1) if once else 0.0,
            counts_workspace=self.costs.workspace,
            assumed=assumed,
            parts=len(plans),
            host_bytes=sum(one.host_peak_bytes for one in replays),
            regions=parts_words(*(plan.graph for plan in plans)),
        )

    def find(self, compiled: Compiled) -> Plan | None:
        """A plan for the compiled graph: an existing one if one fits, else a new one.

        Raises:
            RematError: If there is none, and the user has not asked for a warning.
        """
        plan, reasons = matching_plan(compiled, self.plans)
        if plan is not None:
            return plan
        # A step has refuted what its plan assumed: the graph is one that ``fit`` was given, and ``unknown`` is about
        # others.
        again = compiled.before is not None
        if self.unknown != "error" or again or self.planner.plans_ahead:
            make = self.planner.search if again else self.planner
            try:
                return self._add(self._later_graph(compiled), make, compiled.before)
            except RematError as error:
                if self.unknown == "plan" or (again and self.unknown == "error"):
                    raise _later(error) from None
                reasons = [error.message]
        self.refuse(reasons)
        return None

    def refuse(self, reasons: Sequence[str]) -> None:
        """Warn that a graph runs without a plan, if the user has asked for that, or has been told of it before.

        Raises:
            UsageError: If not.
        """
        if set(reasons) <= set(self.refused):
            return
        no_plan("warn" if self.unknown == "warn" else "error", reasons, 'unknown="warn" runs it without one')

    def _later_graph(self, compiled: Compiled) -> Graph:
        """The compiled graph with costs. Its fixed memory includes the whole module.

        Buffers cannot be distinguished from inputs here, so they count twice: too much is safe, too little is not.
        """
        import torch

        if compiled.device != self.costs.device.type:
            raise UsageError(f"it has tensors on {compiled.device}, and the module is on {self.costs.device}")
        captured = compiled.captured
        holds = None if compiled.use is None else compiled.use.holds
        costs = with_collectives(self.costs.model, self.costs.interconnect, captured)
        graph = lower(captured, costs.cost, f"graph {len(self.plans) + 1}", holds)
        read = total_bytes(one for one in captured.tensors if isinstance(one, torch.nn.Parameter))
        fixed = graph.fixed_memory + compiled.copied_bytes + max(0, self.module_bytes - read)
        graph = described(graph, captured, costs, source="torch:compile", device=compiled.device)
        return self._prepared(replace(graph, fixed_memory=fixed))

    def _add(self, graph: Graph, make: Callable[[Graph], Plan], before: Plan | None) -> Plan:
        """Plan a graph that comes later; if the module has several parts, beside what the others hold.

        Its plan takes the place of the one that was there ``before`` and assumed something that does not hold.
        """
        plan = self._beside_others(graph, make)
        at = next((k for k, one in enumerate(self.plans) if one is before), len(self.plans))
        self.plans[at : at + 1] = [plan]
        if at < len(self.part_graphs):
            self.part_graphs[at] = self.keep_all[at] = plan.graph.whole
        return plan

    def _beside_others(self, graph: Graph, make: Callable[[Graph], Plan]) -> Plan:
        """A plan of ``graph`` beside the other parts, as they were beside the part of the same operations."""
        same = [part for part in self.parts if part.operations == _operations(graph)]
        part = max(same or self.parts, key=lambda one: one.reservation.between_bytes, default=None)
        if part is None:
            return make(graph)
        # Two parts that have nothing in common tell nothing of another batch.
        factor = _above_bytes(graph) / max(1, part.above_bytes) if same else 1.0
        try:
            # For a smaller batch, the others hold less than that; most often there is room for all of it.
            return make(self._with_others(graph, part, max(1.0, factor), limited=bool(same)))
        except Infeasible:
            if factor >= 1:
                raise
        return make(self._with_others(graph, part, factor, limited=bool(same)))

    def _with_others(self, graph: Graph, part: PartPlan, factor: float, *, limited: bool) -> Graph:
        """``graph`` with what others hold beside ``part``, by a factor.

        If it is ``limited``, it may hold no more between its two passes than the others count on.
        """
        reservation, budget = part.reservation.scaled(factor), self.planner.budget_bytes
        if limited and budget is not None and (len(self.parts) > 1 or reservation != Reservation()):
            reservation = reservation.limiting(graph, budget, round(part.saved_bytes * factor))
        return reservation.added(graph)


def _operations(graph: Graph) -> tuple[str | None, ...]:
    return tuple(node.op for node in graph.nodes)


def _above_bytes(graph: Graph) -> int:
    return no_remat_peak(graph) - graph.fixed_memory


def _later(error: RematError) -> RematError:
    """``error`` of a graph that comes in training, with what accepts it."""
    hint = f"{error.hint}; " if error.hint else ""
    message = f"this call of the module needs another plan than those before: {error.message}"
    return type(error)(message, hint=f'{hint}unknown="warn" trains without a plan where there is none')


def _profiled(graph: Graph, device: Device) -> Graph:
    """``graph`` with measured times, sizes and workspaces. The state of the user's random generators is preserved."""
    import torch

    from remat_cli.frontends.captured.profiling import measure_operations
    from remat_cli.frontends.torch.measure.benches import operation_bench

    current = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    with torch.random.fork_rng(), current, operation_bench(read_step(graph), device.type, seed=0) as bench:
        return measure_operations(bench, repeats=3, warmup=1)
