"""Makes a model of ``train.py:build``: loads the user's file and calls the function, under fake tensors."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remat_cli.errors import CaptureFailed, UsageError
from remat_cli.frontends.torch.capturing.capture import Model
from remat_cli.frontends.torch.private import convertible

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
        raise UsageError(f"{path}: cannot be loaded: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(folder)
    return module


def _load_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:  # the user's code may do anything
        raise UsageError(
            f"{name}: cannot be imported: {type(error).__name__}: {error}",
            hint="a file is given with its suffix, as in torch:train.py:build",
        ) from error


def build_model(function: Any, mode: Any, device: str) -> Model:
    """Call ``function`` under ``mode`` with ``device`` as the default, and check that it returned a model.

    Raises:
        CaptureFailed: If it fails, or does not return a model.
    """
    import torch

    name = getattr(function, "__name__", "build")
    try:
        with mode, torch.device(device), convertible(mode):
            returned = function()
    except Exception as error:  # the user's code may do anything
        raise CaptureFailed(
            f"{name}() failed under fake tensors: {type(error).__name__}: {error}",
            hint="tensors have shapes and no data here: leave out loading weights, .item(), .numpy() and the like",
        ) from error
    return as_model(returned, name)


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
