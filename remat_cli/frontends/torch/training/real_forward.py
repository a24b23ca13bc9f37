"""One forward pass on the batch itself: for parts of a module that tensors without numbers do not reach."""

from __future__ import annotations

import copy
from typing import Any

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.torch.capturing.calls import Calls
from remat_cli.frontends.torch.capturing.capture import Captured, Model, Way, capture_parts
from remat_cli.frontends.torch.capturing.generators import undisturbed


def captured_for_real(model: Model, calls: Calls, way: Way) -> tuple[list[Captured], str]:
    """As :func:`capture_parts`, but the forward pass of ``model`` is computed.

    A copy of the module runs: it shares the parameters, which a forward pass does not change, and has buffers and
    everything else of its own. What the pass makes stays in memory until the caller drops the result and ``calls``.

    Args:
        model: The module, and a batch with numbers as those in training.
        calls: Receives what the compiled graphs are given and return.
        way: What compiles it.

    Raises:
        CaptureFailed: If the module cannot be copied.
    """
    return capture_parts(Model(_twin(model.module), model.inputs, model.keywords, None), None, calls, way)


def require_no_better_without(model: Model, problem: str) -> None:
    """Check that the forward pass of ``model``, which fails when PyTorch compiles it, does so in eager mode too.

    Only the form of a batch matters, so both may fail for its numbers. If eager mode comes to the end, a step of
    training would fail where it does not without a plan.

    Raises:
        CaptureFailed: If eager mode comes to its end; with ``problem``, what failed.
    """
    import torch

    try:
        with undisturbed(), torch.enable_grad():
            _twin(model.module)(*copy.deepcopy(model.inputs), **copy.deepcopy(dict(model.keywords)))
    except Exception:  # the batch does not suit the module, or is not to be copied
        return
    raise CaptureFailed(
        f"the module runs in eager mode, and fails when PyTorch compiles it: {problem}",
        hint="torch.compiler.disable around what fails leaves it out; modules that it does not fail in can be fitted "
        "one by one",
    )


def _twin(module: Any) -> Any:
    """A copy of ``module`` that shares its parameters."""
    import torch

    held = [item for part in module.modules() for item in vars(part).values()]
    computed = [item for item in held if isinstance(item, torch.Tensor) and not item.is_leaf]
    shared = {id(parameter): parameter for parameter in module.parameters()}
    shared |= {id(tensor): tensor.detach().clone() for tensor in computed}
    try:
        return copy.deepcopy(module, shared)
    except Exception as error:  # the user's module may hold anything
        raise uncopied(error) from error


def uncopied(error: Exception) -> CaptureFailed:
    """The error for a module that cannot be copied."""
    return CaptureFailed(
        f"the module cannot be copied: {type(error).__name__}: {error}",
        hint="fit captures a copy without data; remat export torch:FILE.py:NAME needs none",
    )
