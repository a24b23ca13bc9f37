"""Tries out the backward passes of autograd functions that are written in Python and that PyTorch does not compile.

What they need while they run cannot be known otherwise: they may compute a forward pass again, as those of layers that
can be reversed and of PyTorch's checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

from remat_cli.frontends.torch.capturing.capture import Calls, Tried
from remat_cli.frontends.torch.capturing.random_state import undisturbed
from remat_cli.frontends.torch.compat.autograd import gradient_sizes, gradients_for, kept_by
from remat_cli.frontends.torch.compat.fake_tensors import is_fake
from remat_cli.frontends.torch.measuring.memory import changes_of
from remat_cli.frontends.torch.training.outside import written_in_python


def try_out(calls: Calls, parameters: Sequence[Any]) -> list[str]:
    """Note in ``calls`` what the backward passes of autograd functions written in Python need.

    The gradients of ``parameters`` are afterwards what they were. Returns the names of the functions that could not be
    tried: only a pass on a CPU with data can be measured, and one process alone, since they may send to others.
    """
    untried: list[str] = []
    for node in written_in_python(calls):
        found = _tried(node, parameters) if _can_be_tried(node, parameters) else None
        if found is None:
            untried.append(type(node).__name__.removesuffix("Backward"))
        else:
            calls.tried[node] = found
    return list(dict.fromkeys(untried))


def _can_be_tried(node: Any, parameters: Sequence[Any]) -> bool:
    import torch

    alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
    return alone and all(t.device.type == "cpu" and not is_fake(t) for t in [*kept_by(node), *parameters])


def _tried(node: Any, parameters: Sequence[Any]) -> Tried | None:
    """What the backward pass of ``node`` needs; None if it does not stand alone."""
    import torch

    failed: list[str] = []

    def called() -> Iterator[Callable[[], Any]]:
        given = gradients_for(node)

        def call() -> Any:
            try:
                return node.apply(*given)
            except Exception as error:  # it is the user's code, and expects what a backward pass is given
                failed.append(type(error).__name__)
                return None

        yield call

    with undisturbed(), torch.no_grad(), _without_gradients(parameters):
        [changes] = changes_of(called())
        made = tuple(parameter for parameter in parameters if parameter.grad is not None)
    if failed:
        return None
    return Tried(gradient_sizes(node)[0] + max(accumulate(changes, initial=0)), made)


@contextmanager
def _without_gradients(parameters: Sequence[Any]) -> Iterator[None]:
    """Within this context the parameters have none; then they have those that they had."""
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient
