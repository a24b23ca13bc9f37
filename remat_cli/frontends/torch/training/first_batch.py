"""Fits a module when training first calls it, on the arguments, the mode and the autocast of that call.

Frameworks make the first batch themselves, and often change it on its way: they drop columns, add arguments, move it to
another device, or run the module under autocast. What the module is called with is known only then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from remat_cli.errors import UsageError
from remat_cli.frontends.torch.compat.dynamo import (
    call_of,
    not_traced,
    plain_call,
    recompile_limit,
    set_call,
    undistributed,
)
from remat_cli.frontends.torch.training.arguments import Arguments, require_module
from remat_cli.frontends.torch.training.in_place import OwnCall, require_uncompiled


class FirstCall(OwnCall):
    """Runs a module as it is until it is called in training; then fits it, and leaves the place to its planned call.

    Args:
        module: The module to fit.
        fitted: Fits it on the arguments of the call.
    """

    def __init__(self, module: Any, fitted: Callable[[Arguments], Any]) -> None:
        self._module, self._fitted = module, not_traced(fitted)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's results; with gradients and in training by plan."""
        import torch

        module = self._module
        if not module.training or not torch.is_grad_enabled() or torch.jit.is_tracing():
            return plain_call(module)(*args, **kwargs)
        with undistributed(recompile_limit()):  # the module in DDP is captured as a whole
            self._fitted(Arguments(args, kwargs))
        call = call_of(module)
        if call is self:
            raise UsageError(f"{type(module).__name__} was not fitted by its first call")
        return call(*args, **kwargs)


def fit_first_call(module: Any, fitted: Callable[[Arguments], Any]) -> Any:
    """``module`` itself, which is fitted by ``fitted`` when it is first called in training.

    Raises:
        UsageError: If it is not a module, or compiled already.
    """
    require_module(module)
    require_uncompiled(module)
    set_call(module, FirstCall(module, fitted))
    return module
