"""Captures the graphs of a module for ``fit``, on copies of it: without data, or sharing its parameters.

Without data nothing is computed and no random number is drawn. Where the way of a module depends on numbers, one
forward pass on the batch itself reaches the parts that tensors without data do not.
"""

import copy
from dataclasses import dataclass, replace

from remat_cli.errors import CaptureFailed, NotOneGraph, UsageError
from remat_cli.frontends.messages import warn
from remat_cli.frontends.torch.capture.capture import Calls, Captured, Model, Tracer, capture_parts, no_graph
from remat_cli.frontends.torch.capture.placeholders import unplannable
from remat_cli.frontends.torch.capture.random_state import undisturbed
from remat_cli.frontends.torch.capture.results import Returns, trained_results
from remat_cli.frontends.torch.compat.fake_tensors import new_fake_mode, silent_fakes
from remat_cli.frontends.torch.measure.memory import live_storages
from remat_cli.frontends.torch.tensors import mapped, total_bytes
from remat_cli.frontends.torch.train.loop_assumptions import Loss, usual_loss
from remat_cli.frontends.torch.train.unplanned_code import sizes_unknown
from remat_cli.frontends.torch.types import FakeMode, Module, Tensor


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

    Args:
        model: The module and its batch.
        fake: Their copy without data.
        mode: The mode of the copy.
        tracer: What compiles it.

    Raises:
        CaptureFailed: If it has nothing to train; or see :func:`_reached`.
        UsageError: See :func:`_reached`.
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


def fake_copy(model: Model) -> tuple[Model, FakeMode]:
    """``model`` with fake tensors, and their mode. Everything else in it is copied."""
    mode = new_fake_mode()
    tensors = [*model.module.parameters(), *model.module.buffers()]
    copies = {id(tensor): mode.from_tensor(tensor) for tensor in tensors}
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
