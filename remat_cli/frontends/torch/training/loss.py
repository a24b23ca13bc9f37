"""The loss that a loop computes from what a module returns: which results take a gradient, and what memory it takes.

The loss runs between the forward and the backward pass of the module. What it keeps is gone when the backward pass of
the module begins, but for the gradients of the results.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from remat_cli.errors import CaptureFailed, UsageError
from remat_cli.frontends.torch.capturing.results import Chosen
from remat_cli.frontends.torch.compat.fake_tensors import is_fake, silent_fakes
from remat_cli.frontends.torch.compat.operators import weak_storage
from remat_cli.frontends.torch.measuring.memory import live_storages
from remat_cli.frontends.torch.tensors import dense_bytes, leaves

Loss = Callable[[Any], Any]
"""From what a module returns to a number that takes a gradient."""
_USUAL = 3
"""How many times the results that it reads a loss is assumed to take beside them, in float32 at least. Cross entropy
takes that at the start of its backward pass: the logarithm of softmax, its gradient, and that of the results. The mean
of squares takes two."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a loop asks of the results of a module.

    Attributes:
        chosen: The results that take a gradient.
        loss_bytes: Most bytes that the loss takes at a time, in its forward or its backward pass, the gradients of the
            results included.
        number_bytes: Bytes of the loss and of its gradient, which the loop has to the end of the backward pass; 0 if
            the module returns its loss.
        usual: Whether that is what a usual loss takes, because the loss is not known.
    """

    chosen: Chosen
    loss_bytes: int = 0
    number_bytes: int = 0
    usual: bool = False


def asked_by_a_usual_loss(chosen: Chosen) -> Asked:
    """What a loss asks that is not known, and computed outside of the module. A number is a loss itself."""
    size = sum(_in_float(tensor) for tensor in chosen.tensors if tensor.numel() > 1)
    return Asked(chosen, _USUAL * size, 2 * 4 if size else 0, usual=size > 0)


def usual_loss() -> Callable[[Any], Any]:
    """A loss that takes what one is assumed to take that is not known."""
    import torch

    class Loss(torch.autograd.Function):  # type: ignore[misc]  # torch is Any to the type checker
        @staticmethod
        def forward(ctx: Any, tensor: Any) -> Any:
            ctx.form = tensor.shape, tensor.dtype, tensor.device
            ctx.save_for_backward(tensor.new_empty(_in_float(tensor), dtype=torch.uint8))
            return tensor.new_zeros((), dtype=torch.float32)

        @staticmethod
        def backward(ctx: Any, *_tangents: Any) -> Any:
            shape, dtype, device = ctx.form
            more = [torch.empty_like(kept) for kept in ctx.saved_tensors * (_USUAL - 2)]  # while the result is made
            result = torch.empty(shape, dtype=dtype, device=device)
            del more
            return result

    return lambda tensor: Loss.apply(tensor) if tensor.numel() > 1 else tensor


def _in_float(tensor: Any) -> int:
    """Bytes of a tensor in float32, in its own type if that is larger."""
    return int(dense_bytes(tensor) // tensor.dtype.itemsize * max(4, tensor.dtype.itemsize))


def asked_by(loss: Loss, output: Any, mode: Any) -> Asked:
    """What ``loss`` asks of ``output``, what a module returned.

    Args:
        loss: The loss.
        output: Results with a graph of autograd.
        mode: The fake mode of its tensors, if they are fake.

    Raises:
        UsageError: If the loss is not a number, or depends on no result.
        CaptureFailed: If it cannot be computed.
    """
    import torch

    given = list(leaves(output))
    found = [(name, tensor) for name, tensor in given if tensor.requires_grad]
    under = mode if any(is_fake(tensor) for _, tensor in given) else contextlib.nullcontext()
    try:
        with silent_fakes(), under, torch.enable_grad(), live_storages()([tensor for _, tensor in given]) as live:
            value = loss(output)
            _require_number(value)
            number = live.sizes.get(weak_storage(value), 0) + value.nbytes
            made = torch.autograd.grad(value, [tensor for _, tensor in found], allow_unused=True)
    except UsageError:
        raise
    except Exception as error:  # it is the user's function
        raise CaptureFailed(
            f"loss could not be computed on what the module returned: {type(error).__name__}: {error}",
            hint="its labels have to be of the given batch; without loss, set reserve to what it takes",
        ) from error
    takes = [one for one, gradient in zip(found, made, strict=True) if gradient is not None]
    if not takes:
        raise UsageError("the loss depends on none of the results of the module", hint="is there a detach() in it?")
    names, tensors = zip(*takes, strict=True)
    chosen = Chosen(tensors=tensors, names=names, others=len(found) - len(takes))
    return Asked(chosen, max(1, live.peak_bytes), number)


def _require_number(value: Any) -> None:
    """Check that a loss is a number that takes a gradient.

    Raises:
        UsageError: If not.
    """
    import torch

    if not isinstance(value, torch.Tensor):
        raise UsageError(
            f"loss returned {type(value).__name__}, and not a tensor",
            hint="loss=lambda output: criterion(output, labels)",
        )
    if value.numel() != 1 or not value.requires_grad:
        form = f"{value.numel()} numbers" if value.numel() != 1 else "a number that takes no gradient"
        raise UsageError(f"loss returned {form}", hint="it has to be one number, and depend on the results")
