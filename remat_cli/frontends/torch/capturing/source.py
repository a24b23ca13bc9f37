"""Makes a model of ``train.py:build``: loads the user's file, calls the function, and makes its tensors fake."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remat_cli.errors import CaptureFailed, UsageError
from remat_cli.frontends.torch.capturing.capture import Model
from remat_cli.frontends.torch.capturing.construction import (
    construct,
    construct_for_real,
    leaves_of,
    made_fake,
)
from remat_cli.frontends.torch.capturing.places import frames_of, place_in
from remat_cli.frontends.torch.telling import Tell, tell_stderr

_EXPECTED = (
    "it returns (module, inputs) or (module, inputs, loss): inputs is a tuple of tensors, or a mapping of keyword "
    "arguments; loss takes the module's output and returns a scalar"
)


def load_function(text: str) -> Any:
    """The function that ``FILE.py:NAME`` or ``package.module:NAME`` names.

    Raises:
        UsageError: If there is no such file, module or function, or loading it fails.
    """
    place, separator, name = text.rpartition(":")
    if not separator or not place or not name:
        raise UsageError(f'"{text}" does not name a function', hint="write it like torch:train.py:build")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    found = getattr(module, name, None)
    if not callable(found):
        raise UsageError(f"there is no function {name} in {place}", hint="write it like torch:train.py:build")
    return found


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location(f"_remat_source_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: this is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickling look there
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)  # as Python does for a script: it may import its neighbours
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's code may do anything
        raise _not_loaded(str(path), "loaded", error) from error
    finally:
        sys.path.remove(folder)
    return module


def _load_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:  # the user's code may do anything
        hint = "a file is given with its suffix, as in torch:train.py:build"
        raise _not_loaded(name, "imported", error, hint=hint) from error


def _not_loaded(what: str, done: str, error: Exception, *, hint: str = "") -> UsageError:
    """The error for a file or module that fails while it is imported, with the place in the user's code."""
    place = place_in(frames_of(error))
    at = f" at {place}" if place else ""  # a syntax error names its line itself, and a missing module has none
    return UsageError(f"{what}: cannot be {done}: {type(error).__name__}{at}: {error}", hint=hint)


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
