"""Checks that a module and a batch are what they are called, with a hint for what may be meant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from remat_cli.errors import UsageError, wrong_type
from remat_cli.graph.model import Graph

_ORDER = "fit(module, batch, budget)"


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one call of a module: a batch for ``fit_module``."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def require_module(module: Any, batch: Any = None) -> None:
    """Check that ``module`` is a module; ``batch``, which comes after it, may tell of a wrong order.

    Raises:
        UsageError: If it is not.
    """
    import torch

    if isinstance(module, torch.nn.Module):
        return
    name = getattr(module, "__name__", type(module).__name__)
    if isinstance(batch, torch.nn.Module):
        hint = f"the module comes first: {_ORDER}"
    elif isinstance(module, type) and issubclass(module, torch.nn.Module):
        raise UsageError(f"fit takes a torch.nn.Module, but this is the class {name}", hint=f"make one: {name}(...)")
    elif isinstance(module, Graph):
        hint = "for a graph take solve(graph, budget)"
    elif isinstance(module, torch.optim.Optimizer):
        hint = f"give it the module whose parameters this optimizes: {_ORDER}"
    elif isinstance(module, Mapping):
        hint = "load it into a module: module.load_state_dict(...)"
    elif callable(module):
        hint = "put a function into the forward method of a module"
    else:
        hint = _ORDER
    raise UsageError(f"fit takes a torch.nn.Module, but this is {type(module).__name__}", hint=hint)


def require_batch(batch: Any) -> None:
    """Check that ``batch`` is one.

    Raises:
        UsageError: If it is not.
    """
    import torch

    if isinstance(batch, torch.Tensor | Mapping | tuple | list | Arguments):
        return
    kind = type(batch).__name__
    hint = "one batch of a loader will do: next(iter(loader))"
    if kind == "ndarray":
        hint = "make a tensor of it: torch.from_numpy(batch)"
    raise UsageError(f"a batch is a tensor, a tuple, or a mapping of keyword arguments, but this is {kind}", hint=hint)


def require_results(returns: Any) -> None:
    """Check that ``returns`` names results: by key, attribute or position, one or several.

    Raises:
        UsageError: If it does not.
    """
    several = returns if isinstance(returns, list | tuple | set) else [returns]
    if returns is None or all(isinstance(name, str | int) and not isinstance(name, bool) for name in several):
        return
    raise wrong_type("returns", returns, "names or positions of results", hint='write "loss" or ["loss", "logits"]')


def device_of_module(module: Any) -> Any:
    """The device of the module: the CPU, or one CUDA device.

    Raises:
        UsageError: If its tensors are elsewhere, or on several devices.
    """
    import torch

    found = {tensor.device for tensor in [*module.parameters(), *module.buffers()]} or {torch.device("cpu")}
    if len(found) > 1 or not {device.type for device in found} <= {"cpu", "cuda"}:
        raise UsageError(
            f"the module is on {' and '.join(sorted(map(str, found)))}",
            hint="move all of it to the cpu or to one CUDA device before it is fitted",
        )
    return found.pop()
