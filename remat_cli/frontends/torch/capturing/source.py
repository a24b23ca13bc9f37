"""Makes a model of the user's function: calls it, and makes its tensors fake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.torch.capturing.capture import Model
from remat_cli.frontends.torch.capturing.construction import (
    construct,
    construct_for_real,
    leaves_of,
    made_fake,
)
from remat_cli.frontends.torch.telling import Tell, tell_stderr

_EXPECTED = (
    "it returns (module, inputs) or (module, inputs, loss): inputs is a tuple of tensors, or a mapping of keyword "
    "arguments; loss takes the module's output and returns a scalar"
)


def build_model(function: Any, mode: Any, device: str, tell: Tell = tell_stderr) -> Model:
    """Call ``function`` with ``device`` as the default, and check that it returned a model; its tensors are fake.

    Args:
        function: The user's function.
        mode: The fake mode of the tensors.
        device: ``cpu`` or ``cuda``.
        tell: Called before real construction takes much memory.

    Raises:
        CaptureFailed: If it fails, or does not return a model.
    """
    import torch

    model = as_model(construct(function, mode, device, tell), getattr(function, "__name__", "build"))
    held = [*model.module.parameters(), *model.module.buffers(), *leaves_of(model.inputs), *leaves_of(model.keywords)]
    made_fake([tensor for tensor in held if isinstance(tensor, torch.Tensor)], mode)
    return model


def build_real(function: Any, device: str, tell: Tell, reason: str) -> Model:
    """As :func:`build_model`, but all tensors are real; ``reason`` says why.

    Raises:
        CaptureFailed: If it fails, or does not return a model.
    """
    return as_model(construct_for_real(function, device, tell, reason), getattr(function, "__name__", "build"))


def as_model(returned: Any, name: str) -> Model:
    """The model in ``returned``, which the function ``name`` returned.

    Raises:
        CaptureFailed: If it is not of the expected form.
    """
    import torch

    if not isinstance(returned, tuple) or not 2 <= len(returned) <= 3:
        raise CaptureFailed(f"{name}() returned {type(returned).__name__}", hint=_EXPECTED)
    module, inputs = returned[:2]
    loss = returned[2] if len(returned) == 3 else None
    if not isinstance(module, torch.nn.Module):
        raise CaptureFailed(f"{name}() returned {type(module).__name__} as the module", hint=_EXPECTED)
    if loss is not None and not callable(loss):
        raise CaptureFailed(f"{name}() returned {type(loss).__name__} as the loss", hint=_EXPECTED)
    if isinstance(inputs, Mapping):
        return Model(module, (), dict(inputs), loss)
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, tuple | list):
        raise CaptureFailed(f"{name}() returned {type(inputs).__name__} as the inputs", hint=_EXPECTED)
    return Model(module, tuple(inputs), {}, loss)
