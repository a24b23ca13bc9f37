"""Compiles a module, for a given batch, so that it trains by plan.

The module is captured with fake copies of its tensors, so nothing is computed and no random number is drawn. If another
graph comes later (evaluation after training, a new shape, autocast), it gets a plan at that time.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

from remat_cli.errors import CaptureFailed, Infeasible, NotOneGraph, RematError, UsageError
from remat_cli.frontends.messages import warn
from remat_cli.frontends.torch.capturing.capture import Calls, Captured, Model, Way, capture_parts, no_graph
from remat_cli.frontends.torch.capturing.construction import as_model
from remat_cli.frontends.torch.capturing.costs import CostModel, cost_model
from remat_cli.frontends.torch.capturing.lower import lower
from remat_cli.frontends.torch.capturing.placeholders import joint_inputs
from remat_cli.frontends.torch.capturing.refusals import APART
from remat_cli.frontends.torch.capturing.results import Returns, chosen_results, held_results, uses, with_tangents
from remat_cli.frontends.torch.export import described
from remat_cli.frontends.torch.inductor.joint import way_of
from remat_cli.frontends.torch.inductor.library_calls import with_library_workspaces
from remat_cli.frontends.torch.installed import require_device
from remat_cli.frontends.torch.measuring.memory import with_workspaces
from remat_cli.frontends.torch.reading import read_step
from remat_cli.frontends.torch.tensors import leaves, storage, storage_bytes
from remat_cli.frontends.torch.training.arguments import Arguments, device_of_module, require_batch, require_module
from remat_cli.frontends.torch.training.backend import Compiled, Unplanned, chosen, no_plan
from remat_cli.frontends.torch.training.course import course_of
from remat_cli.frontends.torch.training.eager import eager_peak
from remat_cli.frontends.torch.training.fake_copy import fake_copy
from remat_cli.frontends.torch.training.in_place import PlannedCall, UnplannedCall, install, require_uncompiled
from remat_cli.frontends.torch.training.loss import Asked, Loss, asked_by, asked_by_a_usual_loss
from remat_cli.frontends.torch.training.outside import sizes_unknown
from remat_cli.frontends.torch.training.real_forward import captured_for_real, error_of
from remat_cli.frontends.torch.training.remat_backend import backend_with
from remat_cli.frontends.torch.training.report import Fitted
from remat_cli.frontends.torch.training.sharing import Held, crossing_bytes, planned, without_plan
from remat_cli.frontends.torch.training.trying import try_out
from remat_cli.frontends.torch.training.uses import Uses, copied_bytes
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Plan
from remat_cli.plan.replay import replay
from remat_cli.units import format_bytes

Planner = Callable[[Graph], Plan]
"""Returns a valid plan of a graph, within the budget, or raises a RematError."""
Unknown = Literal["plan", Unplanned]
"""How to treat a graph that comes later: plan it too, or as ``Unplanned`` treats a graph without a plan."""
MEASURED = "measured"
"""The costs that ``remat profile`` measures on the device."""


_MORE_PARTS = (
    "parts that are not known yet get a plan when they come, and what they hold is not counted for the others: set "
    "reserve for that"
)
_UNTRIED = "which could not be tried out, and what it needs while it runs is not counted: set reserve for that"


def fit_module(
    module: Any,
    batch: Any,
    planner: Planner,
    *,
    cost: str = "flops",
    reserve_bytes: int = 0,
    unknown: Unknown = "plan",
    returns: Returns | None = None,
    holds: Returns | None = None,
    loss: Loss | None = None,
    compiler: str = "eager",
) -> Any:
    """``module`` itself, compiled in place to train by the plans that ``planner`` makes for it.

    Args:
        module: The module, on its device and in the mode in which it trains. Only its call changes. A module that is
            fitted already gets new plans.
        batch: Its inputs: a tensor, a tuple, a mapping of keyword arguments, or ``Arguments``. Only their form matters.
        planner: Makes plans.
        cost: ``device``, ``flops``, ``roofline:NAME``, or ``measured``: every operation is run on the module's device.
        reserve_bytes: Fixed memory for things outside the graph, such as the optimizer's state.
        unknown: How to treat other graphs that come later: ``plan`` them too, which is an error if there is no plan;
            ``warn``: plan them, and without a plan run them as they are after a warning; or ``error``.
        returns: The results that take a gradient; None to find out, see :func:`chosen_results`.
        holds: The results that the loop still has when the backward pass begins, besides numbers; None for all.
        loss: What the loop computes from the results; None for a usual loss, see :func:`asked_by_a_usual_loss`.
        compiler: What runs the step: ``eager``, operation by operation, or ``inductor``.

    Raises:
        UsageError, FrameworkUnavailable, CaptureFailed: As their names say.
        RematError: From the planner.
    """
    require_device("cpu")
    way = _way(unknown, compiler, cost)
    require_module(module, batch)
    require_batch(batch)
    require_uncompiled(module)
    model = _model(module, batch)
    where = device_of_module(module)
    costs = cost_model("flops" if cost == MEASURED else cost, where)
    found = _Plans(where, costs, cost == MEASURED, compiler, planner, reserve_bytes, unknown, _bytes(module))
    fake, mode = fake_copy(model)
    parts, more, calls, numbers, unknown_sizes = _captured(model, fake, mode, way)
    if not parts:
        return _unplanned(module, more, unknown)
    untried = try_out(calls, list(module.parameters()))
    parts, calls, found.unplanned = _plannable(parts, calls)
    asked = _asked(calls, returns, loss, mode)
    held = None if calls.output is None else held_results(calls.output, holds)
    name = type(module).__name__
    found.plan_all(name, parts, calls, asked, held)
    _warn_of(more, untried)
    eager = None if unknown_sizes or calls.ways.differ else _eager_bytes(fake, mode, returns, loss)
    said = (_assumption(asked, held), numbers, _drawn(calls), _beside_plans(found.outside_bytes))
    report = partial(found.report, name, eager, "; ".join(filter(None, said)))
    backend = backend_with(compiler, found.find, found.refuse, found.uses)
    strict = unknown != "warn"
    return install(module, PlannedCall(module, backend, len(parts), strict=strict, plans=found.plans, report=report))


def _captured(model: Model, fake: Model, mode: Any, way: Way) -> tuple[list[Captured], str, Calls, str, bool]:
    """The parts of a module, alone, since the user's loop computes the loss and calls ``backward()``.

    Returns:
        The parts; why there may be more, or why there are none; how the module called them; what was assumed; and
        whether sizes of code outside of them depend on a pass with data.

    Raises:
        CaptureFailed: If it has nothing to train; or see :func:`_reached`.
        UsageError: See :func:`_reached`.
    """
    calls = Calls()
    parts, more = capture_parts(fake, mode, calls, way)
    if not parts and not more:
        problem = no_graph(fake, mode)
        if not isinstance(problem, NotOneGraph):
            raise problem
        return [], problem.reason, calls, "", False
    unknown_sizes = sizes_unknown(calls)
    reached, why, calls, numbers = _reached(model, parts, more, calls, way, unknown_sizes)
    return reached, why if reached or why else more, calls, numbers, unknown_sizes


def _unplanned(module: Any, why: str, unknown: Unknown) -> Any:
    """``module``, of which nothing can be planned; it runs as it is if the user accepts that.

    Raises:
        CaptureFailed: If not.
    """
    said = f"nothing of {type(module).__name__} can be planned, since PyTorch does not compile it: {why}"
    if unknown != "warn":
        raise CaptureFailed(
            said,
            hint=f'{APART}; or fit modules in it one by one; unknown="warn" trains it as it is, without a budget',
        )
    warn(f"remat: {said}; it trains as it is, with whatever memory that takes")
    return install(module, UnplannedCall(module))


def _require_suitable(model: Model) -> None:
    """Check that the module can be called with the batch, without remat.

    Raises:
        UsageError: If it raises an error of its own.
    """
    error = error_of(model)
    if error is not None:
        raise UsageError(
            f"{type(model.module).__name__} cannot be called with this batch: {type(error).__name__}: {error}",
            hint="the batch is what the module is called with: x for model(x), (x, y) for model(x, y), "
            '{"x": x} for model(x=x)',
        ) from error


def _asked(calls: Calls, returns: Returns | None, loss: Loss | None, mode: Any) -> Asked | None:
    """What the loop asks of the results of a module; None if a capture did not come to them."""
    if calls.output is None:
        return None
    if loss is not None:
        return asked_by(loss, calls.output, mode)
    return asked_by_a_usual_loss(chosen_results(calls.output, returns))


def _eager_bytes(fake: Model, mode: Any, returns: Returns | None, loss: Loss | None) -> int | None:
    """The peak of a step in eager mode, if it can be told.

    It comes after the capture, since the first call of a module may change it.
    """
    batch_tensors = [tensor for _, tensor in leaves([fake.inputs, fake.keywords])]

    def chosen(output: Any) -> Sequence[Any]:
        return chosen_results(output, returns).tensors if loss is None else [loss(output)]

    return eager_peak(fake, mode, chosen, batch_tensors)


@dataclass(slots=True)
class _Plans:
    """The plans made so far, and how to make more.

    Attributes:
        where: Device of the module.
        costs: The cost model for lowering.
        measured: Whether to measure costs before planning.
        compiler: What runs the plans.
        planner: Makes plans.
        reserve_bytes: Added to the fixed memory of every graph.
        unknown: How to treat graphs that come later.
        module_bytes: Bytes of all parameters and buffers of the module.
        plans: The plans made so far.
        uses: What is known of the results of graphs.
        shares: For each graph that was planned first, what other parts hold meanwhile.
        alone: The graphs of the module's parts.
        kept: For each call of one of them, its graph with what others hold, if nothing is recomputed.
        outside_bytes: What code without a plan keeps for its backward pass.
        unplanned: Why parts of the module have no plan; they are counted as code without one.
    """

    where: Any
    costs: CostModel
    measured: bool
    compiler: str
    planner: Planner
    reserve_bytes: int
    unknown: Unknown
    module_bytes: int
    plans: list[Plan] = field(default_factory=list)
    uses: Uses = field(default_factory=Uses)
    shares: list[_Share] = field(default_factory=list)
    alone: list[Graph] = field(default_factory=list)
    kept: list[Graph] = field(default_factory=list)
    outside_bytes: int = 0
    unplanned: Sequence[str] = ()

    @property
    def counts_workspace(self) -> bool:
        """Whether plans count the workspace of operations."""
        return self.measured or self.where.type == "cpu"

    def budget_bytes(self) -> int | None:
        """The budget in bytes; None if the planner has none, or does not know it yet."""
        found: int | None = getattr(self.planner, "budget_bytes", None)
        return found

    def plan_all(
        self, name: str, captured: Sequence[Captured], calls: Calls, asked: Asked | None, held: Sequence[Any] | None
    ) -> None:
        """Plan the parts of the module, which share the budget.

        Args:
            name: Of the module.
            captured: Its parts.
            calls: How the module called them.
            asked: What the loop asks of the results.
            held: The results that it still has when the backward pass begins; None for all.
        """
        chosen = None if asked is None else asked.chosen
        found = zip(captured, uses(captured, calls, chosen, held), uses(captured, calls, chosen), strict=True)
        for part, use, whole in found:
            self.uses.assume(part, use, whole)
        self._plan_parts(name, captured, calls, asked)

    def _plan_parts(self, name: str, captured: Sequence[Captured], calls: Calls, asked: Asked | None) -> None:
        graphs = []
        for number, one in enumerate(captured):
            graph = self.lowered(one, name + (f".{number}" if number else ""))
            graph = described(graph, one, self.costs, source=f"torch:{graph.name}", device=self.where.type)
            graphs.append(self._prepared(graph))
        course = course_of(graphs, captured, calls, asked)
        self.alone, self.kept = [part.graph for part in course.parts], without_plan(course)
        self.outside_bytes = course.kept_outside_bytes
        settle = getattr(self.planner, "settle", None)
        budget = None if settle is None else settle(self.kept)
        plans, held = planned(course, budget, self.planner)
        self.plans += plans
        for graph, plan, beside in zip(self.alone, plans, held, strict=True):
            crossing = crossing_bytes(graph, plan.statements)
            self.shares.append(_Share(_operations(graph), _above(graph), beside, crossing))

    def report(self, name: str, eager_bytes: int | None, assumed: str) -> Fitted:
        """What there is to say of the plans of the module's parts."""
        plans = self.plans[: len(self.alone)]
        seen = [replay(plan.graph, plan.statements, host=plan.host if plan.copies else None) for plan in plans]
        took = math.fsum(one.time for one in seen)
        once = math.fsum(plan.graph.total_cost for plan in plans)
        return Fitted(
            name=name,
            budget_bytes=self.budget_bytes(),
            eager_bytes=None if eager_bytes is None else eager_bytes + self.reserve_bytes,
            keep_all_bytes=max(map(no_remat_peak, self.kept)),
            plan_bytes=max(one.peak_bytes for one in seen),
            least_bytes=max(peak_bound(graph).bytes for graph in self.alone),
            extra_cost=100 * (took / once - 1) if once else 0.0,
            counts_workspace=self.counts_workspace,
            assumed=assumed,
            parts=len(plans),
            host_bytes=sum(one.host_peak_bytes for one in seen),
        )

    def lowered(self, captured: Captured, name: str) -> Graph:
        """The graph of ``captured`` as it is assumed to be used."""
        use = self.uses.use_of(captured)
        graph = lower(with_tangents(captured, use.takes), self.costs.cost, name, use.holds)
        return replace(graph, fixed_memory=graph.fixed_memory + copied_bytes(captured, use))

    def _prepared(self, graph: Graph) -> Graph:
        """``graph`` with the reserve, with measured costs if the user chose so, and on a CPU with workspace."""
        if self.measured:
            graph = _measured(graph, self.where)
        elif self.counts_workspace:
            graph = (with_library_workspaces if self.compiler == "inductor" else with_workspaces)(graph)
        return replace(graph, fixed_memory=graph.fixed_memory + self.reserve_bytes)

    def add(self, graph: Graph, planner: Planner, before: Plan | None) -> Plan:
        """Plan a graph that comes later; if the module has several parts, beside what the others hold.

        Its plan takes the place of the one that was there ``before`` and assumed something that does not hold.
        """
        plan = self._beside(self._prepared(graph), planner)
        at = next((k for k, one in enumerate(self.plans) if one is before), len(self.plans))
        self.plans[at : at + 1] = [plan]
        if at < len(self.alone):
            self.alone[at] = self.kept[at] = plan.graph
        return plan

    def _beside(self, graph: Graph, planner: Planner) -> Plan:
        same = [share for share in self.shares if share.operations == _operations(graph)]
        share = max(same or self.shares, key=lambda share: share.held.between_bytes, default=None)
        if share is None:
            return planner(graph)
        # Two parts that have nothing in common tell nothing of another batch.
        factor = _above(graph) / max(1, share.above_bytes) if same else 1.0
        try:
            # For a smaller batch, the others hold less than that; most often there is room for all of it.
            return planner(self._shared(graph, share, max(1.0, factor), known=bool(same)))
        except Infeasible:
            if factor >= 1:
                raise
        return planner(self._shared(graph, share, factor, known=bool(same)))

    def _shared(self, graph: Graph, share: _Share, factor: float, *, known: bool) -> Graph:
        """``graph`` with what others hold, by a factor; if it is ``known``, it may hold no more than its share."""
        held, budget = share.held.scaled(factor), self.budget_bytes()
        if known and budget is not None and (len(self.shares) > 1 or held != Held()):
            held = held.leaving(graph, budget, round(share.crossing_bytes * factor))
        return held.added(graph)

    def find(self, compiled: Compiled) -> Plan | None:
        """A plan for the compiled graph: an existing one if one fits, else a new one.

        Raises:
            RematError: If there is none, and the user has not asked for a warning.
        """
        plan, reasons = chosen(compiled, self.plans)
        if plan is not None:
            return plan
        again = compiled.before is not None  # so it is one that ``fit`` was given, and ``unknown`` is about others
        if self.unknown != "error" or again or getattr(self.planner, "foresees", False):
            planner = getattr(self.planner, "always", self.planner) if again else self.planner
            try:
                return self.add(self._graph(compiled), planner, compiled.before)
            except RematError as error:
                if self.unknown == "plan" or (again and self.unknown != "warn"):
                    raise _later(error) from None
                reasons = [error.message]
        self.refuse(reasons)
        return None

    def refuse(self, reasons: Sequence[str]) -> None:
        """Warn that a graph runs without a plan, if the user has asked for that, or has been told of it before.

        Raises:
            UsageError: If not.
        """
        if set(reasons) <= set(self.unplanned):
            return
        no_plan("warn" if self.unknown == "warn" else "error", reasons, 'unknown="warn" runs it without one')

    def _graph(self, compiled: Compiled) -> Graph:
        """The compiled graph with costs. Its fixed memory includes the whole module.

        Buffers cannot be distinguished from inputs here, so they count twice: too much is safe, too little is not.
        """
        import torch

        if compiled.device != self.where.type:
            raise UsageError(f"it has tensors on {compiled.device}, and the module is on {self.where}")
        captured = compiled.captured
        holds = None if compiled.use is None else compiled.use.holds
        graph = lower(captured, self.costs.cost, f"graph {len(self.plans) + 1}", holds)
        known = {storage(t): storage_bytes(t) for t in captured.tensors if isinstance(t, torch.nn.Parameter)}
        fixed = graph.fixed_memory + compiled.copied_bytes + max(0, self.module_bytes - sum(known.values()))
        graph = described(graph, captured, self.costs, source="torch:compile", device=compiled.device)
        return replace(graph, fixed_memory=fixed)


@dataclass(frozen=True, slots=True)
class _Share:
    """What other parts hold beside one part.

    Attributes:
        operations: The operations of the part.
        above_bytes: What it needs without recomputation beside its fixed memory.
        held: What the others hold.
        crossing_bytes: What it holds itself between its two passes, which the others count on.
    """

    operations: tuple[str | None, ...]
    above_bytes: int
    held: Held
    crossing_bytes: int


def _operations(graph: Graph) -> tuple[str | None, ...]:
    return tuple(node.op for node in graph.nodes)


def _above(graph: Graph) -> int:
    return no_remat_peak(graph) - graph.fixed_memory


def _later(error: RematError) -> RematError:
    """``error`` of a graph that comes in training, with what accepts it."""
    known = f"{error.hint}; " if error.hint else ""
    said = f"this call of the module needs another plan than those before: {error.message}"
    return type(error)(said, hint=f'{known}unknown="warn" trains without a plan where there is none')


def _assumption(asked: Asked | None, held: Sequence[Any] | None) -> str:
    """What is assumed of the results, in words; empty if nothing is.

    Args:
        asked: What the loop asks of the results.
        held: Those that it still has when the backward pass begins; None for all.
    """
    if asked is None:
        return ""
    picked, said = asked.chosen, []
    if picked.others:
        names = ", ".join(name or "the result" for name in picked.names)
        take = "takes" if len(picked.names) == 1 else "take"
        said.append(f"assumes that of {len(picked.names) + picked.others} results only {names} {take} a gradient")
    if held is not None:
        said.append("assumes that the loop has no other results than holds= names when the backward pass begins")
    if asked.usual:
        said.append(
            f"assumes that the loss takes {format_bytes(asked.loss_bytes)} at most, as cross entropy does "
            "(loss=FUNCTION counts it)"
        )
    return "; ".join(said)


def _warn_of(more: Any, untried: Sequence[str]) -> None:
    """Warn of what the plans do not count: parts that are not known yet, and backward passes that were not tried."""
    if more:
        warn(f"remat: the model is not a single graph: {more}; {_MORE_PARTS}")
    if untried:
        warn(f"remat: the backward pass of {', '.join(untried)} is code of its own, {_UNTRIED}")


def _drawn(calls: Calls) -> str:
    """What is assumed of a forward pass that draws what it runs, in words; empty if it does not."""
    if not calls.ways.differ:
        return ""
    return f"what it runs is random; the plan is for the largest of the {len(calls.ways.sizes)} paths that were tried"


def _beside_plans(outside_bytes: int) -> str:
    """What is counted for code that no plan is for, in words; empty if there is none."""
    if not outside_bytes:
        return ""
    return (
        f"code that is in no plan keeps {format_bytes(outside_bytes)} for its backward pass, which is counted; what it "
        "needs only while its forward pass runs is not"
    )


def _measured(graph: Graph, where: Any) -> Graph:
    """``graph`` with measured times, sizes and workspaces. The state of the user's random generators is preserved."""
    import torch

    from remat_cli.frontends.captured.profiling import measure_operations
    from remat_cli.frontends.torch.measuring.profile import operation_bench

    here = torch.cuda.device(where) if where.type == "cuda" else contextlib.nullcontext()
    with torch.random.fork_rng(), here, operation_bench(read_step(graph), where.type, seed=0) as bench:
        return measure_operations(bench, repeats=3, warmup=1)


def _way(unknown: str, compiler: str, cost: str) -> Way:
    """What compiles the step.

    Raises:
        UsageError: If one of these is none of its values, or they do not go together.
    """
    if unknown not in get_args(Unknown):
        raise UsageError(f'"{unknown}" is not a way to treat unknown graphs', hint="choose plan, warn or error")
    way = way_of(compiler)
    if compiler != "eager" and cost == MEASURED:
        raise UsageError(
            "measured costs are of operations that run one by one, and Inductor joins them",
            hint="leave cost out, or take roofline:a100",
        )
    return way


def _model(module: Any, batch: Any) -> Model:
    if isinstance(batch, Arguments):
        return Model(module, batch.args, batch.kwargs, None)
    return as_model((module, batch), "fit")


def _bytes(module: Any) -> int:
    """Bytes of a module's tensors, each storage once."""
    tensors = [*module.parameters(), *module.buffers()]
    return sum({storage(tensor): storage_bytes(tensor) for tensor in tensors}.values())


def _plannable(parts: list[Captured], calls: Calls) -> tuple[list[Captured], Calls, list[str]]:
    """The parts that remat can plan; a warning tells of the others, which run without a plan, and why.

    Raises:
        CaptureFailed: If there is but one part, and it cannot be planned; or if none can.
    """
    refused: dict[int, CaptureFailed] = {}
    for number, part in enumerate(parts):
        try:
            joint_inputs(part)
        except CaptureFailed as error:
            refused[number] = error
    if not refused:
        return parts, calls, []
    first = next(iter(refused.values()))
    if len(refused) == len(parts):
        raise first
    warn(
        f"remat: {len(refused)} of the {len(parts)} parts of the model run without a plan: what they keep for the "
        f"backward pass is counted, and cannot be made less ({first.message})"
    )
    planned = [part for number, part in enumerate(parts) if number not in refused]
    return planned, calls.without(refused), [error.message for error in refused.values()]


def _reached(
    model: Model, parts: list[Captured], more: str, calls: Calls, way: Way, unknown_sizes: bool
) -> tuple[list[Captured], str, Calls, str]:
    """What a forward pass on the batch reaches beyond ``parts``, where tensors without numbers stopped for ``more``.

    It also tells how much code outside of the parts keeps, where tensors without data cannot. There are no parts if
    PyTorch cannot compile the pass, which runs without it. The last item of the result says what was assumed.

    Raises:
        UsageError: If the pass fails without PyTorch's compiler, too.
        CaptureFailed: If the module cannot be copied, or takes the gradient of a gradient.
    """
    if not more and not unknown_sizes:
        return parts, more, calls, ""
    found = Calls()
    reached, problem = captured_for_real(model, found, way)
    if found.output is None:
        _require_suitable(model)
        return [], problem, found, ""
    if not more and len(reached) == len(parts):
        return reached, more, found, ""
    if len(reached) < len(parts):  # it goes another way
        return parts, more, calls, ""
    if found.ways.differ:  # that what it runs is random is said elsewhere
        return reached, problem, found, ""
    assumed = f"assumes that the model takes the same way as with this batch, since its way depends on numbers ({more})"
    return reached, problem, found, assumed
