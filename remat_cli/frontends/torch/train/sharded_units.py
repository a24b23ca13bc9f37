"""Fits modules that ``fully_shard`` (FSDP2) divides into units, in eager mode: each unit runs by a plan of its own.

PyTorch's hooks stay in charge of gathers and reductions: a unit's hooks run around its forward pass, which is compiled,
and find in the graph of autograd what they put there. The plan runs inside, on the gathered parameters that they hand
out. What it saves of these costs nothing, since FSDP2 frees and fills their memory and keeps the tensors.

The module is captured as a copy without data and without hooks, its parameters whole and of the type in which they are
gathered. All that is in no unit runs as it is: the module around the units, the loss. What it keeps is counted, and its
parameters are gathered throughout the step. So do several modules that are one unit, such as the last norm and the head
where Accelerate calls ``fully_shard``; what their collectives take is counted throughout the step, too.

The memory of a step is that of ``plan/sharded_units``; ``planning/unit_choice`` chooses plans, and which units are
resharded, which ``set_reshard_after_forward`` then sets. Process 0 chooses for all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from remat_cli.errors import CaptureFailed, UsageError
from remat_cli.frontends.interconnect import Interconnect
from remat_cli.frontends.torch.capture.capture import (
    Calls,
    Captured,
    Model,
    capture_units,
    own_forward,
    replace_forward,
)
from remat_cli.frontends.torch.capture.refusals import APART
from remat_cli.frontends.torch.capture.results import Use, held_results, tangent_numbers
from remat_cli.frontends.torch.compat.dynamo import (
    call_of,
    not_traced,
    own_code,
    plain_call,
    recompile_limit,
    undistributed,
)
from remat_cli.frontends.torch.compat.fully_sharded import (
    ShardedParameter,
    cast,
    casts,
    is_unit,
    joint_units,
    keeps_as_root,
    parameters_of,
    reshards,
    units_of,
    unusual,
    without_hooks,
)
from remat_cli.frontends.torch.compat.masks import consecutive_positions
from remat_cli.frontends.torch.inductor.joint import tracer_of
from remat_cli.frontends.torch.tensors import leaves, total_bytes
from remat_cli.frontends.torch.train.arguments import device_of_module
from remat_cli.frontends.torch.train.backend import Compiled, backend_with, matching_plan
from remat_cli.frontends.torch.train.fitting import (
    assumptions_on_results,
    costs_of,
    fake_copy,
    model_of,
    require_fittable,
    results_demand,
)
from remat_cli.frontends.torch.train.loop_assumptions import Loss
from remat_cli.frontends.torch.train.module_call import MOST_FORMS, ModuleCall, install, unwrapped_errors
from remat_cli.frontends.torch.train.module_plans import Costs, ModulePlans, PlainPlanner
from remat_cli.frontends.torch.train.ranks import Meeting, decided_by_first
from remat_cli.frontends.torch.train.report import Fitted
from remat_cli.frontends.torch.train.sharded_step import Links, Loop, sharded_step
from remat_cli.frontends.torch.types import FakeMode, Module, Tensor
from remat_cli.plan.derive import derive
from remat_cli.plan.model import Claim, ClaimStatus, Plan, Scope
from remat_cli.plan.sharded_units import (
    Choice,
    ShardedStep,
    UnitGraph,
    UnitRun,
)
from remat_cli.tolerances import SAME_COST


@dataclass(frozen=True, slots=True)
class Chosen:
    """What was chosen for the units of a step.

    Attributes:
        choices: For each unit the nodes that it computes, in order, and whether it is resharded.
        budget_bytes: What the step may take.
        keep_all_bytes: What it takes without recomputation, with the units as they were set.
        least_bytes: No choices take less.
        least_cost: No choices within the budget cost less.
    """

    choices: tuple[tuple[tuple[int, ...], bool], ...]
    budget_bytes: int
    keep_all_bytes: int
    least_bytes: int
    least_cost: float


class Choose(Protocol):
    """Chooses the plans of the units of a step."""

    def __call__(self, step: ShardedStep) -> Chosen:
        """The choices.

        Raises:
            RematError: If there are none within the budget.
        """


def fit_units(
    module: Module,
    batch: Any,
    choose: Choose,
    meeting: Meeting,
    *,
    cost: str = "flops",
    reserve_bytes: int = 0,
    returns: Any = None,
    holds: Any = None,
    loss: Loss | None = None,
    interconnect: Interconnect | None = None,
    **others: Any,
) -> Module:
    """``module`` itself, whose units train by the plans that ``choose`` makes for them; see ``fit_module``.

    Args:
        module: A module for which, and for parts of which, ``fully_shard`` was called.
        batch: See there.
        choose: Chooses plans; called in process 0.
        meeting: Of all processes that fit the module.
        cost: See there, like the arguments from here on.
        reserve_bytes: See there.
        returns: See there.
        holds: See there.
        loss: See there.
        interconnect: The links between ranks; None if nothing is known of them, and gathers cost nothing.
        others: Arguments of ``fit_module`` that are refused here unless they have their default.

    Raises:
        UsageError: If ``fully_shard`` is used in a way that is not planned, or processes have different steps.
        CaptureFailed: If a unit is not one graph.
        RematError: From ``choose``, in all processes.
    """
    require_units(module, others)
    require_fittable(module, batch)
    model = model_of(module, batch)
    fake, mode = _whole_copy(model)
    joint = joint_units(module)
    captured = _captured(fake, mode, _planned_names(module, joint))
    demand = results_demand(captured.calls, returns, loss, mode)
    held = None if captured.calls.output is None else held_results(captured.calls.output, holds)
    plans = ModulePlans(
        PlainPlanner(_unused), costs_of(cost, device_of_module(module), "eager", split=False), 0, "plan", 0
    )
    plans.uses.module = weakref.ref(module)
    for part in captured.graphs:
        use = Use(frozenset(tangent_numbers(part)), frozenset())  # what the loop holds is counted for the whole step
        plans.uses.assume(part, use, use)
    units = [(name, module.get_submodule(name)) for name in captured.order]
    schedule = plans.schedule(type(module).__name__, captured.graphs, captured.calls, demand, held)
    fixed = _fixed_bytes(model) + reserve_bytes
    loop = Loop.of(captured.calls.output, held, demand)
    first = [module.get_submodule(names[0]) for names in joint]
    links = _links(plans.costs, interconnect, units)
    step = sharded_step(schedule, captured.graphs, units, (module, *first), fake, loop, fixed, links)
    chosen, choices = _agreed(step, choose, meeting)
    assumed = "; ".join([*assumptions_on_results(demand, held), *_assumptions_on_units(joint, choices, interconnect)])
    report = _report(type(module).__name__, step, choices, chosen, assumed, counts_workspace=plans.costs.workspace)
    return install(module, UnitsCall(module, [unit for _, unit in units], step, choices, plans, report))


def _agreed(step: ShardedStep, choose: Choose, meeting: Meeting) -> tuple[Chosen, list[Choice]]:
    """What process 0 chooses, in all processes, which must have the same step."""
    if len(set(meeting.entries(_digest(step)))) > 1:
        raise UsageError(
            "the processes have different steps, and all have to gather in the same order",
            hint="give all of them batches of one shape, padded",
        )
    chosen = decided_by_first(partial(choose, step))
    kinds = [step.graphs[call.kind] for call in step.calls]
    pairs = zip(kinds, chosen.choices, strict=True)
    return chosen, [
        Choice(UnitRun.of(unit, derive(unit.graph, computes)), reshard) for unit, (computes, reshard) in pairs
    ]


_RESET = "assumes that gradients are None before each step, as zero_grad leaves them"

_FREE = "gathers in the backward pass are counted as free, since interconnect is not given"


def _planned_names(module: Module, joint: Sequence[Sequence[str]]) -> list[str]:
    """The names of the units that get plans: all but the module itself, and modules that are one unit."""
    apart = {"", *(name for names in joint for name in names)}
    return [name for name, _ in units_of(module) if name not in apart]


def _fixed_bytes(model: Model) -> int:
    """This rank's part of the parameters, the buffers, and the batch."""
    batch = [tensor for _, tensor in leaves((model.inputs, model.keywords))]
    return total_bytes([*model.module.parameters(), *model.module.buffers(), *batch])


def _assumptions_on_units(
    joint: Sequence[Sequence[str]], choices: Sequence[Choice], interconnect: Interconnect | None
) -> list[str]:
    kept = [f"{' and '.join(names)} run as they are, and are counted as gathered all the time" for names in joint]
    free = interconnect is None and any(choice.reshard for choice in choices)
    return [*kept, _RESET, *([_FREE] if free else [])]


def _links(costs: Costs, interconnect: Interconnect | None, units: Sequence[tuple[str, Module]]) -> Links | None:
    """The links between ranks, in the unit of the costs of graphs.

    Raises:
        UsageError: If these are no times, or the mesh has not the dimensions that the interconnect names.
    """
    if interconnect is None:
        return None
    interconnect.require_dimensions(one.dimension for _, unit in units for one in parameters_of(unit) if one.dimension)
    return Links(interconnect, float(costs.model.description.get("launch_us", 0.0)))


def _unused(_graph: Any) -> Any:
    raise AssertionError("the plans of units are chosen together")


def require_units(module: Module, others: Mapping[str, Any]) -> None:
    """Check that a module is divided into units in a way whose memory is known, and that the arguments go with it.

    Raises:
        UsageError: If not.
    """
    if not is_unit(module):
        raise UsageError(
            f"parts of this {type(module).__name__} are sharded by fully_shard, and it is not itself",
            hint="call fully_shard with the whole module, too, and fit the whole",
        )
    usual = {"compiler": ("eager",), "split": (False,), "unknown": ("plan", "error"), "host": (None,), "buckets": ([],)}
    for name, value in others.items():
        if name in usual and value not in usual[name]:
            raise UsageError(f"{name} does not go together with fully_shard", hint=f"leave out {name}")
    units = units_of(module)
    if len(units) == 1 + sum(map(len, joint_units(module))):
        raise UsageError(
            f"fully_shard was called with this {type(module).__name__} alone, so that all of it is gathered at once",
            hint="call it with each block first",
        )
    for _, unit in units:
        unit.reshard()  # after an evaluation, some are gathered
    sharded = {id(one.sharded) for _, unit in units for one in parameters_of(unit)}
    ignored = [name for name, parameter in module.named_parameters() if id(parameter) not in sharded]
    if ignored:
        raise UsageError(
            f"parameter {ignored[0]} is not sharded (ignored_params), and plans do not count its gradient",
            hint="leave out ignored_params",
        )
    for name, unit in units:
        reason = unusual(unit)
        if reason:
            raise UsageError(
                f"{name or 'the module'} is sharded with {reason}, and plans do not count what that takes",
                hint="leave it out, or use torch.utils.checkpoint",
            )
        inside = [other for other, _ in units if name and other.startswith(f"{name}.")]
        if inside:
            raise UsageError(f"unit {name} has units in itself, such as {inside[0]}", hint="call fully_shard with one")
        if name and "forward" in unit.__dict__ and not isinstance(call_of(module), UnitsCall):
            raise UsageError(f"the forward method of unit {name} was replaced", hint="fit the module before that")
    if not keeps_as_root(module):
        raise UsageError(
            "the module around the units is resharded after its forward pass, when its backward pass begins",
            hint="leave out reshard_after_forward there, as fully_shard does",
        )


def _whole_copy(model: Model) -> tuple[Model, FakeMode]:
    """``model`` as it was before ``fully_shard``, with fake tensors; and their mode.

    Its units cast what they are given and return as FSDP2 has them do.
    """
    import torch

    def made(one: ShardedParameter) -> Callable[[], Tensor]:
        trained = bool(one.sharded.requires_grad)

        def make() -> Tensor:
            whole = torch.empty_strided(one.shape, one.stride, dtype=one.gathered, device=one.sharded.device)
            return torch.nn.Parameter(whole, requires_grad=trained)

        return make

    units = units_of(model.module)
    replaced = {id(one.sharded): made(one) for _, unit in units for one in parameters_of(unit)}
    types = {name: casts(unit) for name, unit in units}
    with without_hooks(model.module):
        fake, mode = fake_copy(model, replaced)
    for name, (inputs, results) in types.items():
        unit = fake.module.get_submodule(name)
        unit.register_forward_pre_hook(partial(_cast_inputs, inputs), prepend=True, with_kwargs=True)
        unit.register_forward_hook(partial(_cast_results, results))
    return fake, mode


def _cast_inputs(dtype: Any, _module: Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    return cast(args, dtype), cast(kwargs, dtype)


def _cast_results(dtype: Any, _module: Module, _args: Any, results: Any) -> Any:
    return cast(results, dtype)


@dataclass(frozen=True, slots=True)
class _Captured:
    """The units in the order of their calls, the graphs of like ones once, and their calls."""

    order: list[str]
    graphs: list[Captured]
    calls: Calls


def _captured(fake: Model, mode: FakeMode, names: Sequence[str]) -> _Captured:
    """The graphs of the units with these names.

    Raises:
        CaptureFailed: If a unit is not one graph, has nothing to train, or is not called exactly once.
    """
    calls, order = Calls(), list[str]()
    modules = [fake.module.get_submodule(name) for name in names]
    for name, unit in zip(names, modules, strict=True):
        unit.register_forward_pre_hook(partial(_note_call, order, name))
    alone = "position_ids" not in fake.keywords
    with consecutive_positions() if alone else contextlib.nullcontext():
        graphs, problem = capture_units(fake, mode, modules, calls, tracer_of("eager"))
    if problem:
        at = f"unit {order[-1]}" if order else "the module"
        raise CaptureFailed(f"{at} cannot be captured as one graph: {problem}", hint=APART)
    repeated = [name for name in names if order.count(name) != 1]
    if repeated:
        raise CaptureFailed(
            f"unit {repeated[0]} is called {order.count(repeated[0])} times in a step, and plans are for one call",
            hint="call fully_shard with modules that are called once",
        )
    idle = [name for name, (number, _) in zip(order, calls.runs, strict=True) if number is None]
    if idle:
        raise CaptureFailed(
            f"unit {idle[0]} has nothing to train", hint="leave frozen modules to the module around them"
        )
    return _Captured(order, graphs, calls)


def _note_call(order: list[str], name: str, _module: Module, _args: Any) -> None:
    order.append(name)


def _digest(step: ShardedStep) -> str:
    """A digest of a step in all that plans depend on but costs, since these may be measured."""
    graphs = [
        [[node.id, node.op, node.inputs, node.outputs, node.recompute] for node in unit.graph.nodes]
        for unit in step.graphs
    ]
    calls = [[call.name, call.kind, call.reshards, str(call.memory)] for call in step.calls]
    return hashlib.sha256(json.dumps([graphs, calls, step.fixed_bytes]).encode("utf-8")).hexdigest()


def _report(
    name: str, step: ShardedStep, choices: Sequence[Choice], chosen: Chosen, assumed: str, *, counts_workspace: bool
) -> Callable[[], Fitted]:
    once = math.fsum(step.graphs[call.kind].graph.total_cost for call in step.calls)
    cost = step.cost(choices)
    assert chosen.least_cost <= cost * (1 + SAME_COST), "a bound is above the cost of a plan"
    least = min(chosen.least_cost, cost)  # of equal costs, sums may differ by rounding
    kept = sum(not choice.reshard for choice in choices)
    found = Fitted(
        name=name,
        budget_bytes=chosen.budget_bytes,
        eager_bytes=None,
        keep_all_bytes=chosen.keep_all_bytes,
        plan_bytes=step.peak_bytes(choices),
        least_bytes=chosen.least_bytes,
        extra_cost=100 * (cost / once - 1) if once else 0.0,
        least_extra_cost=100 * (max(least, once) / once - 1) if once else 0.0,
        counts_workspace=counts_workspace,
        assumed=f"{kept} of {len(choices)} units stay gathered between their passes; {assumed}",
        parts=len(choices),
    )
    return lambda: found


def _plan(unit: UnitGraph, run: UnitRun) -> Plan:
    """The plan of a unit as a document; its claim is what holds without the other units."""
    total = unit.graph.total_cost
    optimal = run.cost <= total * (1 + SAME_COST)
    return Plan(
        graph=unit.graph,
        statements=derive(unit.graph, run.computes),
        budget_bytes=unit.graph.fixed_memory + max(run.forward, run.backward),
        claim=Claim(
            ClaimStatus.OPTIMAL if optimal else ClaimStatus.FEASIBLE, run.cost, min(run.cost, total), Scope.ANY_ORDER
        ),
        strategy="sharded-units",
    )


class UnitsCall(ModuleCall):
    """What runs when a module whose units are planned is called: its own call, and the plans in its units.

    Args:
        module: The module.
        units: Its units, in the order of their calls.
        step: Their step.
        choices: What was chosen for them.
        plans: What is known of the results of their graphs.
        report: Says what a step needs.
    """

    def __init__(
        self,
        module: Module,
        units: Sequence[Module],
        step: ShardedStep,
        choices: Sequence[Choice],
        plans: ModulePlans,
        report: Callable[[], Fitted],
    ) -> None:
        super().__init__(module)
        before = call_of(module)
        self._report, self._units, self.plans = report, units, []
        self._reshards: list[bool] = (
            before._reshards if isinstance(before, UnitsCall) else [reshards(unit) for unit in units]
        )
        self._choices = [choice.reshard for choice in choices]
        self._forwards: list[Callable[..., Any]] = []
        forwards: dict[tuple[int, tuple[int, ...]], Callable[..., Any]] = {}
        for call, choice in zip(step.calls, choices, strict=True):
            key = call.kind, choice.run.computes
            if key not in forwards:
                plan = _plan(step.graphs[call.kind], choice.run)
                self.plans = [*self.plans, plan]
                forwards[key] = _planned_forward(plan, plans)
            self._forwards.append(forwards[key])

    def install(self) -> None:
        """Let the units run by their plans."""
        super().install()
        for unit, forward, reshard in zip(self._units, self._forwards, self._choices, strict=True):
            replace_forward([unit], forward)
            unit.set_reshard_after_forward(reshard, recurse=False)

    def remove(self) -> None:
        """Let the module and its units run as they did before."""
        super().remove()
        for unit, reshard in zip(self._units, self._reshards, strict=True):
            unit.__dict__.pop("forward", None)
            unit.set_reshard_after_forward(reshard, recurse=False)

    def report(self) -> Fitted:
        """What a step needs by the plans."""
        return self._report()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's results."""
        return plain_call(self._module)(*args, **kwargs)


def _planned_forward(plan: Plan, plans: ModulePlans) -> Callable[..., Any]:
    """The forward pass of units by a plan; without gradients as they are.

    Another form of the arguments than that of the plan is an error.
    """
    import torch

    def find(compiled: Compiled) -> Plan:
        found, reasons = matching_plan(compiled, [plan])
        if found is None:
            raise UsageError(
                f"a unit is called in another form than fit was given ({'; '.join(reasons)})",
                hint="pad batches to one shape, and fit in the mode and autocast of the training",
            )
        return found

    def refuse(reasons: Sequence[str]) -> None:
        raise UsageError(f"a unit cannot run by plan: {'; '.join(reasons)}")

    compiled = torch.compile(
        own_code(own_forward), backend=backend_with("eager", find, refuse, plans.uses), dynamic=False
    )

    def forward(unit: Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or torch.jit.is_tracing():
            return own_forward(unit, *args, **kwargs)
        with undistributed(max(MOST_FORMS, recompile_limit())), unwrapped_errors():
            return compiled(unit, *args, **kwargs)

    planned: Callable[..., Any] = not_traced(forward)
    return planned
