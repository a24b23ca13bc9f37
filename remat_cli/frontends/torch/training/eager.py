"""What eager mode needs: the live storages of a step on tensors without data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from remat_cli.frontends.torch.capturing.capture import Model
from remat_cli.frontends.torch.compat.fake_tensors import silent_fakes
from remat_cli.frontends.torch.measuring.memory import live_storages
from remat_cli.frontends.torch.tensors import storage, storage_bytes
from remat_cli.frontends.torch.training.loss import usual_loss


def eager_peak(model: Model, mode: Any, chosen: Callable[[Any], Sequence[Any]], inputs: Sequence[Any]) -> int | None:
    """Peak bytes of one step of ``model`` in eager mode, workspace of operations left out.

    The results are held until the end of the backward pass. Gradients are there at the end, and not at the start.

    Args:
        model: A model with fake tensors of ``mode``.
        mode: The fake mode.
        chosen: From what the module returns to the results that take a gradient.
        inputs: All tensors of the batch.

    Returns:
        The bytes, parameters, buffers and inputs included; None if fake tensors cannot follow the step.
    """
    import torch

    module = model.module
    given = [*module.parameters(), *module.buffers(), *inputs]
    fixed = sum({storage(tensor): storage_bytes(tensor) for tensor in given}.values())
    try:
        with silent_fakes(), mode, torch.enable_grad(), live_storages()(given) as live:
            output = module(*model.inputs, **model.keywords)
            losses = list(map(usual_loss(), chosen(output)))
            torch.autograd.backward(losses)
    except Exception:  # anything can happen in a user's model; the figure is for information only
        return None
    finally:
        module.zero_grad(set_to_none=True)
    return fixed + int(live.peak_bytes)
