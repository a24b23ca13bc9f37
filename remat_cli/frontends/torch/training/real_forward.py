"""One forward pass on the batch itself: for parts of a module that tensors without numbers do not reach."""

from __future__ import annotations

import copy
from typing import Any

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.torch.capturing.capture import Calls, Captured, Model, Way, capture_parts
from remat_cli.frontends.torch.capturing.random_state import undisturbed


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


def error_of(model: Model) -> Exception | None:
    """What a copy of ``model`` raises when its forward pass is computed on the batch; None if nothing.

    Raises:
        CaptureFailed: If the module cannot be copied.
    """
    import torch

    twin = _twin(model.module)
    try:
        with undisturbed(), torch.enable_grad():
            twin(*model.inputs, **model.keywords)
    except Exception as error:  # it is the user's module
        return error
    return None


def _twin(module: Any) -> Any:
    """A copy of ``module`` that shares its parameters, and has buffers and everything else of its own."""
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
