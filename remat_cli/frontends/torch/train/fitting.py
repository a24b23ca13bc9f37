"""Compiles a module, for a given batch, so that it trains by plan.

The module is captured with fake copies of its tensors, so nothing is computed and no random number is drawn. If another
graph comes later (evaluation after training, a new shape, autocast), it gets a plan at that time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, get_args

from remat_cli.errors import CaptureFailed, UsageError
from remat_cli.frontends.messages import warn
from remat_cli.frontends.torch.capture.capture import Calls, Model, Way
from remat_cli.frontends.torch.capture.construction import as_model
from remat_cli.frontends.torch.capture.costs import cost_model
from remat_cli.frontends.torch.capture.refusals import APART
from remat_cli.frontends.torch.capture.results import Returns, chosen_results, held_results
from remat_cli.frontends.torch.inductor.joint import way_of
from remat_cli.frontends.torch.installed import require_device
from remat_cli.frontends.torch.tensors import storage, storage_bytes
from remat_cli.frontends.torch.train.arguments import Arguments, device_of_module, require_batch, require_module
from remat_cli.frontends.torch.train.loop_assumptions import Loss, LossDemand, demand_of, usual_demand
from remat_cli.frontends.torch.train.module_call import PlannedCall, UnplannedCall, install, require_uncompiled
from remat_cli.frontends.torch.train.module_parts import captured_parts, eager_bytes, fake_copy, plannable
from remat_cli.frontends.torch.train.module_plans import Costs, ModulePlans, PlainPlanner, Planner, Unknown
from remat_cli.frontends.torch.train.remat_backend import backend_with
from remat_cli.frontends.torch.train.report import Fitted
from remat_cli.frontends.torch.train.unplanned_code import measure_python_functions
from remat_cli.frontends.torch.types import FakeMode, Module, Tensor
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Plan
from remat_cli.units import format_bytes

MEASURED = "measured"
"""The costs that ``remat profile`` measures on the device."""
_MORE_PARTS = (
    "parts that are not known yet get a plan when they come, and what they hold is not counted for the others: set "
    "reserve for that"
)
_UNTRIED = "which could not be tried out, and what it needs while it runs is not counted: set reserve for that"


def fit_module(
    module: Module,
    batch: Any,
    planner: Planner | Callable[[Graph], Plan],
    *,
    cost: str = "flops",
    reserve_bytes: int = 0,
    unknown: Unknown = "plan",
    returns: Returns | None = None,
    holds: Returns | None = None,
    loss: Loss | None = None,
    compiler: str = "eager",
) -> Module:
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
        loss: What the loop computes from the results; None for a usual loss, see :func:`usual_demand`.
        compiler: What runs the step: ``eager``, operation by operation, or ``inductor``.

    Raises:
        UsageError: If an argument is none of its values, or the module cannot be called with the batch.
        CaptureFailed: If the module cannot be captured, or nothing of it can be planned.
        FrameworkUnavailable: If PyTorch is missing.
        RematError: From the planner.
    """
    require_device("cpu")
    way = _way(unknown, compiler, cost)
    require_module(module, batch)
    require_batch(batch)
    require_uncompiled(module)
    model, device = _model(module, batch), device_of_module(module)
    costs = Costs(cost_model("flops" if cost == MEASURED else cost, device), cost == MEASURED, device, compiler)
    makes = planner if isinstance(planner, Planner) else PlainPlanner(planner)
    plans = ModulePlans(makes, costs, reserve_bytes, unknown, _bytes(module))
    plans.uses.module = weakref.ref(module)
    fake, mode = fake_copy(model)
    captured = captured_parts(model, fake, mode, way)
    if not captured.parts:
        return _unplanned(module, captured.more, unknown)
    untried = measure_python_functions(captured.calls, list(module.parameters()))
    parts, calls, plans.refused = plannable(captured.parts, captured.calls)
    demand = _demand(calls, returns, loss, mode)
    held = None if calls.output is None else held_results(calls.output, holds)
    name = type(module).__name__
    plans.plan_parts(name, parts, calls, demand, held)
    _warn_of(captured.more, untried)
    eager = None if captured.unknown_sizes or calls.ways.differ else eager_bytes(fake, mode, returns, loss)
    notes = (_assumption(demand, held), captured.assumed, _drawn(calls), _unplanned_code(plans.unplanned_bytes))
    report = partial(plans.report, name, eager, "; ".join(filter(None, notes)))
    return _installed(module, plans, len(parts), report)


def _installed(module: Module, plans: ModulePlans, parts: int, report: Callable[[], Fitted]) -> Module:
    """``module``, whose calls run by ``plans`` from now on; it is compiled in ``parts`` graphs."""
    backend = backend_with(plans.costs.compiler, plans.find, plans.refuse, plans.uses)
    strict = plans.unknown != "warn"
    return install(module, PlannedCall(module, backend, parts, strict=strict, plans=plans.plans, report=report))


def _unplanned(module: Module, why: str, unknown: Unknown) -> Module:
    """``module``, of which nothing can be planned; it runs as it is if the user accepts that.

    Raises:
        CaptureFailed: If not.
    """
    message = f"nothing of {type(module).__name__} can be planned, since PyTorch does not compile it: {why}"
    if unknown != "warn":
        raise CaptureFailed(
            message,
            hint=f'{APART}; or fit modules in it one by one; unknown="warn" trains it as it is, without a budget',
        )
    warn(f"remat: {message}; it trains as it is, with whatever memory that takes")
    return install(module, UnplannedCall(module))


def _demand(calls: Calls, returns: Returns | None, loss: Loss | None, mode: FakeMode) -> LossDemand | None:
    """What the loop asks of the results of a module; None if a capture did not come to them."""
    if calls.output is None:
        return None
    if loss is not None:
        return demand_of(loss, calls.output, mode)
    return usual_demand(chosen_results(calls.output, returns))


def _assumption(demand: LossDemand | None, held: Sequence[Tensor] | None) -> str:
    """What is assumed of the results, in words; empty if nothing is.

    Args:
        demand: What the loop asks of the results.
        held: Those that it still has when the backward pass begins; None for all.
    """
    if demand is None:
        return ""
    chosen, notes = demand.chosen, []
    if chosen.others:
        names = ", ".join(name or "the result" for name in chosen.names)
        take = "takes" if len(chosen.names) == 1 else "take"
        notes.append(f"assumes that of {len(chosen.names) + chosen.others} results only {names} {take} a gradient")
    if held is not None:
        notes.append("assumes that the loop has no other results than holds= names when the backward pass begins")
    if demand.usual:
        notes.append(
            f"assumes that the loss takes {format_bytes(demand.loss_bytes)} at most, as cross entropy does "
            "(loss=FUNCTION counts it)"
        )
    if demand.uncounted:
        notes.append(
            "does not count what operations of the loss need only while they run, since it does not run on random "
            f"results ({demand.uncounted}): set reserve for that"
        )
    return "; ".join(notes)


def _warn_of(more: str, untried: Sequence[str]) -> None:
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


def _unplanned_code(kept_bytes: int) -> str:
    """What is counted for code that no plan is for, in words; empty if there is none."""
    if not kept_bytes:
        return ""
    return (
        f"code that is in no plan keeps {format_bytes(kept_bytes)} for its backward pass, which is counted; what it "
        "needs only while its forward pass runs is not"
    )


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


def _model(module: Module, batch: Any) -> Model:
    if isinstance(batch, Arguments):
        return Model(module, batch.args, batch.kwargs, None)
    return as_model((module, batch), "fit")


def _bytes(module: Module) -> int:
    """Bytes of a module's tensors, each storage once."""
    tensors = [*module.parameters(), *module.buffers()]
    return sum({storage(tensor): storage_bytes(tensor) for tensor in tensors}.values())
