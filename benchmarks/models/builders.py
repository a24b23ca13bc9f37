"""Builds the models that ``suite.toml`` and ``foreign.toml`` describe.

``remat export torch:benchmarks/models/builders.py:NAME`` takes any of them: every name is a function without arguments.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from operator import attrgetter
from typing import Any

from benchmarks.models import tasks
from benchmarks.models.listing import FOREIGN, MODELS, Listed
from benchmarks.models.tasks import Built

_MODELS = {model.name: model for model in (*MODELS, *FOREIGN) if model.make}


def __getattr__(name: str) -> Callable[[], Built]:
    if name not in _MODELS:
        raise AttributeError(name)
    return partial(build, _MODELS[name])


def build(model: Listed) -> Built:
    """The module, then its inputs, then what its loss needs: random numbers are drawn in this order."""
    module = _module(model)
    inputs = {name: _input(value) for name, value in model.make.get("inputs", {}).items()}
    task, *arguments = model.make.get("task", ["supervised"])
    return getattr(tasks, task)(module, *arguments, **inputs)


def _module(model: Listed) -> Any:
    from benchmarks.models import operators  # noqa: F401 - has to come before torchvision

    library = import_module({"torchvision": "torchvision.models"}.get(model.library, model.library))
    name, _, config = model.make["make"].removesuffix(")").partition("(")
    if config:
        options = {key: _configured(library, value) for key, value in model.make["options"].items()}
        return getattr(library, name)(getattr(library, config)(**options))
    options = model.make["options"]
    if model.library != "torchvision":  # which wants lists
        options = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    if model.library == "diffusers":
        return getattr(library, name)(**options)
    if model.library == "timm" and "." not in name:
        return library.create_model(name, num_classes=10, **options)
    return attrgetter(name)(library)(num_classes=10, **options)


def _configured(library: Any, value: Any) -> Any:
    """A configuration within a configuration, or the value itself."""
    if not isinstance(value, dict) or "config" not in value:
        return value
    return getattr(library, value["config"])(**{key: v for key, v in value.items() if key != "config"})


def _input(value: Any) -> Any:
    """``[FUNCTION, ARGUMENTS...]``, a function of :mod:`benchmarks.models.tasks`, or the value itself."""
    return getattr(tasks, value[0])(*value[1:]) if isinstance(value, list) else value
