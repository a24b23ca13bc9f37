"""Compiles a module, for a given batch, so that it trains by plan.

The module is captured with fake copies of its tensors, so nothing is computed and no random number is drawn. Where its
path depends on numbers, one forward pass of a copy on the batch itself reaches the parts that tensors without data do
not. If another graph comes later (evaluation after training, a new shape, autocast), it gets a plan at that time.
"""

import copy
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

from remat_cli.errors import CaptureFailed, NotOneGraph, UsageError
from remat_cli.frontends.interconnect import Interconnect
from remat_cli.frontends.messages import warn
from remat_cli.frontends.torch.capture.capture import Calls, Captured, Model, Tracer, capture_parts, no_graph
from remat_cli.frontends.torch.capture.construction import as_model
from remat_cli.frontends.torch.capture.placeholders import unplannable
from remat_cli.frontends.torch.capture.random_state import undisturbed
from remat_cli.frontends.torch.capture.refusals import APART
from remat_cli.frontends.torch.capture.results import Returns, held_results, trained_results
from remat_cli.frontends.torch.compat.fake_tensors import new_fake_mode, silent_fakes
from remat_cli.frontends.torch.inductor.joint import tracer_of
from remat_cli.frontends.torch.installed import require_device
from remat_cli.frontends.torch.measure.costs import cost_model
from remat_cli.frontends.torch.measure.memory import live_storages
from remat_cli.frontends.torch.regions import require_splittable
from remat_cli.frontends.torch.tensors import mapped, total_bytes
from remat_cli.frontends.torch.train.arguments import Arguments, device_of_module, require_batch, require_module
from remat_cli.frontends.torch.train.backend import backend_with
from remat_cli.frontends.torch.train.loop_assumptions import Loss, LossDemand, demand_of, usual_demand, usual_loss
from remat_cli.frontends.torch.train.module_call import PlannedCall, UnplannedCall, install, require_uncompiled
from remat_cli.frontends.torch.train.module_plans import Costs, ModulePlans, PlainPlanner, Planner, Unknown
from remat_cli.frontends.torch.train.report import kernels_words
from remat_cli.frontends.torch.train.unplanned_code import measure_python_functions, sizes_unknown
from remat_cli.frontends.torch.types import Device, FakeMode, Module, Tensor
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
    split: bool = False,
    interconnect: Interconnect | None = None,
) -> Module:
    """``module`` itself, compiled in place to train by the plans that ``planner`` makes for it.

    Args:
        module: The module; one that is fitted already gets new plans.
        batch: Its inputs as :func:`remat_cli.fit` takes them, or ``Arguments``. Only their form matters, unless PyTorch
            cannot follow the module without numbers.
        planner: Makes plans.
        cost: As for ``fit``, like the arguments from ``unknown`` on.
        reserve_bytes: Fixed memory for things outside the graph.
        unknown: See there.
        returns: See there, and :func:`trained_results` for None.
        holds: See there.
        loss: See there, and :func:`usual_demand` for None.
        compiler: See there.
        split: See there.
        interconnect: The links between ranks; None if nothing is known of them.

    Raises:
        UsageError: If an argument is none of its values, or the module cannot be called with the batch.
        CaptureFailed: If the module cannot be captured, or nothing of it can be planned.
        FrameworkUnavailable: If PyTorch is missing.
        RematError: From the planner.
    """
    require_device("cpu")
    tracer = _way(unknown, compiler, cost)
    require_fittable(module, batch)
    costs = costs_of(cost, device_of_module(module), compiler, interconnect, split=split)
    planner = planner if isinstance(planner, Planner) else PlainPlanner(planner)
    plans = ModulePlans(planner, costs, reserve_bytes, unknown, total_bytes([*module.parameters(), *module.buffers()]))
    plans.uses.module = weakref.ref(module)
    fake, mode = fake_copy(model := model_of(module, batch))
    captured = captured_parts(model, fake, mode, tracer)
    if not captured.parts:
        return _unplanned(module, captured.more, unknown)
    untried = measure_python_functions(captured.calls, list(module.parameters()))
    parts, calls, plans.refused = plannable(captured.parts, captured.calls)
    demand = results_demand(calls, returns, loss, mode)
    held = None if calls.output is None else held_results(calls.output, holds)
    plans.plan_parts(type(module).__name__, parts, calls, demand, held)
    _warn_of(captured.more, untried)
    eager = None if captured.unknown_sizes or calls.paths.differ else eager_bytes(fake, mode, returns, loss)
    notes = [*assumptions_on_results(demand, held), captured.assumed, *_more_assumptions(calls, plans)]
    report = partial(plans.report, type(module).__name__, eager, "; ".join(filter(None, notes)))
    backend, strict = backend_with(compiler, plans.find, plans.refuse, plans.uses), unknown != "warn"
    return install(module, PlannedCall(module, backend, len(parts), strict=strict, plans=plans.plans, report=report))


def require_fittable(module: Module, batch: Any) -> None:
    """Check that a module can be fitted for a batch."""
    require_module(module, batch)
    require_batch(batch)
    require_uncompiled(module)


def costs_of(
    cost: str, device: Device, compiler: str, interconnect: Interconnect | None = None, *, split: bool
) -> Costs:
    """How graphs get their costs, with the arguments of ``fit``."""
    if split:
        require_splittable(compiler)
    model = cost_model("flops" if cost == MEASURED else cost, device)
    return Costs(model, cost == MEASURED, device, compiler, split, interconnect)


def _unplanned(module: Module, why: str, unknown: Unknown) -> Module:
    """``module``, of which nothing can be planned; it runs as it is if the user accepts that."""
    message = f"nothing of {type(module).__name__} can be planned, since PyTorch does not compile it: {why}"
    if unknown != "warn":
        raise CaptureFailed(
            message,
            hint=f'{APART}; or fit modules in it one by one; unknown="warn" trains it as it is, without a budget',
        )
    warn(f"remat: {message}; it trains as it is, with whatever memory that takes")
    return install(module, UnplannedCall(module))


def results_demand(calls: Calls, returns: Returns | None, loss: Loss | None, mode: FakeMode) -> LossDemand | None:
    """What the loop asks of the results of a module; None if a capture did not come to them."""
    if calls.output is None:
        return None
    if loss is not None:
        return demand_of(loss, calls.output, mode)
    return usual_demand(trained_results(calls.output, returns))


def assumptions_on_results(demand: LossDemand | None, held: Sequence[Tensor] | None) -> list[str]:
    """What is assumed of the results, in words; ``held`` are those alive in the backward pass, None for all."""
    if demand is None:
        return []
    trained, notes = demand.trained, []
    if trained.others:
        names = ", ".join(name or "the result" for name in trained.names)
        take = "takes" if len(trained.names) == 1 else "take"
        notes.append(f"assumes that of {len(trained.names) + trained.others} results only {names} {take} a gradient")
    if held is not None:
        named = " and those that holds= names" if held else ""
        notes.append(f"assumes that the backward pass finds no results alive but numbers{named}")
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
    return notes


def _more_assumptions(calls: Calls, plans: ModulePlans) -> list[str]:
    """What is assumed of a forward pass that draws what it runs, of kernels, and of code in no plan, in words."""
    notes = [kernels_words(plans.costs.device.type, *(plan.graph for plan in plans.plans))]
    if calls.paths.differ:
        count = len(calls.paths.sizes)
        notes.append(f"what it runs is random; the plan is for the largest of the {count} paths that were tried")
    if plans.unplanned_bytes:
        notes.append(
            f"code that is in no plan keeps {format_bytes(plans.unplanned_bytes)} for its backward pass, which is "
            "counted; what it needs only while its forward pass runs is not"
        )
    return notes


def _warn_of(more: str, untried: Sequence[str]) -> None:
    """Warn of what the plans do not count: parts that are not known yet, and backward passes that were not tried."""
    if more:
        warn(f"remat: the model is not a single graph: {more}; {_MORE_PARTS}")
    if untried:
        warn(f"remat: the backward pass of {', '.join(untried)} is code of its own, {_UNTRIED}")


def _way(unknown: str, compiler: str, cost: str) -> Tracer:
    """What compiles the step."""
    if unknown not in get_args(Unknown):
        raise UsageError(f'"{unknown}" is not a way to treat unknown graphs', hint="choose plan, warn or error")
    tracer = tracer_of(compiler)
    if compiler != "eager" and cost == MEASURED:
        raise UsageError(
            "measured costs are of operations that run one by one, and Inductor joins them",
            hint="leave cost out, or take roofline:a100",
        )
    return tracer


def model_of(module: Module, batch: Any) -> Model:
    """A module and its batch as a model without a loss."""
    if isinstance(batch, Arguments):
        return Model(module, batch.args, batch.kwargs, None)
    return as_model((module, batch), "fit")


@dataclass(frozen=True, slots=True)
class CapturedParts:
    """The graphs of a module, and how it came to them.

    Attributes:
        parts: The graphs; none if PyTorch compiles nothing of the module.
        more: Why there may be more, or why there are none; empty if these are all.
        calls: How the module called them.
        assumed: What was assumed to reach them, in words; empty if nothing was.
        unknown_sizes: Whether sizes of code outside of them depend on a pass with data.
    """

    parts: list[Captured]
    more: str
    calls: Calls
    assumed: str = ""
    unknown_sizes: bool = False


def captured_parts(model: Model, fake: Model, mode: FakeMode, tracer: Tracer) -> CapturedParts:
    """The graphs of a module, alone, since the user's loop computes the loss and calls ``backward()``.

    ``fake`` is the copy of the module and its batch without data, of ``mode``.

    Raises:
        CaptureFailed: If it has nothing to train, cannot be copied, or takes the gradient of a gradient.
        UsageError: If it cannot be called with the batch.
    """
    calls = Calls()
    parts, more = capture_parts(fake, mode, calls, tracer)
    if not parts and not more:
        problem = no_graph(fake, mode)
        if not isinstance(problem, NotOneGraph):
            raise problem
        return CapturedParts([], problem.reason, calls)
    without_data = CapturedParts(parts, more, calls, unknown_sizes=sizes_unknown(calls))
    if not more and not without_data.unknown_sizes:
        return without_data
    reached = _reached(model, without_data, tracer)
    return reached if reached.parts or reached.more else replace(reached, more=more)


def _reached(model: Model, without_data: CapturedParts, tracer: Tracer) -> CapturedParts:
    """What a forward pass on the batch reaches beyond the parts that tensors without numbers come to.

    It also tells how much code outside of the parts keeps, where tensors without data cannot. There are no parts if
    PyTorch cannot compile the pass, which runs without it. What the pass makes stays in memory as long as its calls.
    """
    calls, unknown_sizes = Calls(), without_data.unknown_sizes
    # A copy of the module runs: it shares the parameters, which a forward pass does not change.
    twin = Model(_twin(model.module), model.inputs, model.keywords, None)
    parts, problem = capture_parts(twin, None, calls, tracer)
    if calls.output is None:
        _require_suitable(model)
        return CapturedParts([], problem, calls, unknown_sizes=unknown_sizes)
    stopped_by, count = without_data.more, len(without_data.parts)
    if not stopped_by and len(parts) == count:
        return CapturedParts(parts, "", calls, unknown_sizes=unknown_sizes)
    if len(parts) < count:  # it goes another way
        return without_data
    if calls.paths.differ:  # that what it runs is random is said elsewhere
        return CapturedParts(parts, problem, calls, unknown_sizes=unknown_sizes)
    assumed = (
        f"assumes that the model takes the same way as with this batch, since its way depends on numbers ({stopped_by})"
    )
    return CapturedParts(parts, problem, calls, assumed, unknown_sizes)


def _require_suitable(model: Model) -> None:
    """Check that the module can be called with the batch, without remat."""
    import torch

    twin = _twin(model.module)
    try:
        with undisturbed(), torch.enable_grad():
            twin(*model.inputs, **model.keywords)
    except Exception as error:  # it is the user's module
        raise UsageError(
            f"{type(model.module).__name__} cannot be called with this batch: {type(error).__name__}: {error}",
            hint="the batch is what the module is called with: x for model(x), (x, y) for model(x, y), "
            '{"x": x} for model(x=x)',
        ) from error


def plannable(parts: list[Captured], calls: Calls) -> tuple[list[Captured], Calls, list[str]]:
    """The parts that remat can plan; a warning tells of the others, which run without a plan, and why.

    Raises:
        CaptureFailed: If there is but one part, and it cannot be planned; or if none can.
    """
    refused = unplannable(parts)
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


def _twin(module: Module) -> Module:
    """A copy of ``module`` that shares its parameters, and has buffers and everything else of its own."""
    shared = {id(parameter): parameter for parameter in module.parameters()}
    shared |= {id(tensor): tensor.detach().clone() for tensor in _computed(module)}
    try:
        return copy.deepcopy(module, shared)
    except Exception as error:  # the user's module may hold anything
        raise _uncopied(error) from error


def _uncopied(error: Exception) -> CaptureFailed:
    """The error for a module that cannot be copied."""
    return CaptureFailed(
        f"the module cannot be copied: {type(error).__name__}: {error}",
        hint="fit captures a copy without data; remat export torch:FILE.py:NAME needs none",
    )


def fake_copy(model: Model, replaced: Mapping[int, Callable[[], Tensor]] | None = None) -> tuple[Model, FakeMode]:
    """``model`` with fake tensors, and their mode. Everything else in it is copied.

    Tensors with an id in ``replaced`` become what the function there makes in that mode.
    """
    mode = new_fake_mode()
    replaced = replaced or {}
    tensors = [*model.module.parameters(), *model.module.buffers()]
    copies = {id(tensor): mode.from_tensor(tensor) for tensor in tensors if id(tensor) not in replaced}
    with mode:
        copies |= {key: make() for key, make in replaced.items()}
    copies |= {id(tensor): mode.from_tensor(tensor.detach()) for tensor in _computed(model.module)}
    try:
        module = copy.deepcopy(model.module, copies)
    except Exception as error:  # the user's module may hold anything
        raise _uncopied(error) from error
    inputs, keywords = mapped((model.inputs, model.keywords), mode.from_tensor)
    return Model(module, inputs, keywords, None), mode


def _computed(module: Module) -> list[Tensor]:
    """Tensors in a module that a computation made, as the old ``weight_norm`` does; ``deepcopy`` refuses them."""
    import torch

    held = [item for part in module.modules() for item in vars(part).values()]
    return [item for item in held if isinstance(item, torch.Tensor) and not item.is_leaf]


def eager_bytes(fake: Model, mode: FakeMode, returns: Returns | None, loss: Loss | None) -> int | None:
    """Peak bytes of one step in eager mode, workspace of operations left out; None if fake tensors cannot follow it.

    The results are held until the end of the backward pass. Gradients are there at the end, and not at the start. It
    comes after the capture, since the first call of a module may change it.
    """
    import torch

    module, fixed = fake.module, fake.tensors()
    try:
        with silent_fakes(), mode, torch.enable_grad(), live_storages()(fixed) as live:
            output = module(*fake.inputs, **fake.keywords)
            roots = trained_results(output, returns).tensors if loss is None else [loss(output)]
            torch.autograd.backward(list(map(usual_loss(), roots)))
    except Exception:  # anything can happen in a user's model; the figure is for information only
        return None
    finally:
        module.zero_grad(set_to_none=True)
    return total_bytes(fixed) + int(live.peak_bytes)
