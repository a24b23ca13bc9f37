"""Checks and prepares what ``fit`` is called with: the module, its batch, other lengths of it, the budget ``auto``."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from remat_cli.errors import UsageError, wrong_type
from remat_cli.frontends.available import available_bytes
from remat_cli.frontends.torch.tensors import leaves, mapped, total_bytes
from remat_cli.frontends.torch.types import Device, Module, Tensor
from remat_cli.graph.model import Graph
from remat_cli.units import Budget, format_bytes

_ORDER = "fit(module, batch, budget)"


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one call of a module: a batch for ``fit_module``."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def require_module(module: Module, batch: Any = None) -> None:
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


def device_of_module(module: Module) -> Device:
    """The device of the module: the CPU, or one CUDA device.

    Raises:
        UsageError: If its tensors are elsewhere, or on several devices.
    """
    import torch

    devices = {tensor.device for tensor in [*module.parameters(), *module.buffers()]} or {torch.device("cpu")}
    if len(devices) > 1 or not {device.type for device in devices} <= {"cpu", "cuda"}:
        raise UsageError(
            f"the module is on {' and '.join(sorted(map(str, devices)))}",
            hint="move all of it to the cpu or to one CUDA device before it is fitted",
        )
    return devices.pop()


def stretched(batch: Any, lengths: Sequence[int]) -> Iterator[Any]:
    """``batch`` with each of ``lengths`` instead of its own, and itself if its own is the largest of them.

    Its length is the second dimension of the first tensor that has one. Every dimension but the first with that size is
    taken for the length, as in masks of ``[batch, 1, length, length]``.

    Raises:
        UsageError: If it has no length, or is longer than all of ``lengths``.
    """
    if not lengths:
        return
    own = _length(batch)
    if own is None:
        raise UsageError(
            "buckets are lengths, and no tensor of the batch has a second dimension",
            hint="leave out buckets, or give fit a batch of [batch, length]",
        )
    if own > max(lengths):
        raise UsageError(
            f"the batch has the length {own}, and the largest bucket is {max(lengths)}",
            hint="the last bucket is the length of the longest batch",
        )
    for length in lengths:
        if length != own or own == max(lengths):
            change = partial(_of_length, own, length)
            if isinstance(batch, Arguments):
                yield Arguments(mapped(batch.args, change), mapped(batch.kwargs, change))
            else:
                yield mapped(batch, change)


def _of_length(own: int, length: int, tensor: Tensor) -> Tensor:
    """A tensor like ``tensor``, of another length."""
    if tensor.dim() < 2 or own not in tensor.shape[1:]:
        return tensor
    shape = [size if k == 0 or size != own else length for k, size in enumerate(tensor.shape)]
    return tensor.new_zeros(shape).requires_grad_(tensor.requires_grad)


def _length(batch: Any) -> int | None:
    """The second dimension of the first tensor that has one."""
    tensors = leaves([batch.args, batch.kwargs] if isinstance(batch, Arguments) else batch)
    return next((int(tensor.shape[1]) for _, tensor in tensors if tensor.dim() > 1), None)


def free_budget(module: Module, batch: Any, least: Callable[[int], int] = int) -> tuple[Budget, str]:
    """What a step of ``module`` can have now, and the same in words.

    This is what is free on the device, what PyTorch's allocator holds of it and does not use, and what the module and
    its batch take already on that device, which plans count. ``least`` gives the least of a number in all processes
    that train together.

    Raises:
        UsageError: If the system does not say what is free, or the module is on several devices.
    """
    where = device_of_module(module)
    tensors = [*module.parameters(), *module.buffers(), *(tensor for _, tensor in leaves(batch))]
    own = total_bytes(tensor for tensor in tensors if tensor.device == where)
    parts = [*(_on_cuda(where) if where.type == "cuda" else _on_cpu()), (own, "of the module and its batch")]
    total = least(sum(size for size, _ in parts))
    in_words = ", ".join(f"{format_bytes(size)} {what}" for size, what in parts if size)
    return Budget(Fraction(total), False, f"{total}B"), f"budget auto: {in_words}"


def _on_cuda(where: Device) -> Sequence[tuple[int, str]]:
    import torch

    free, _ = torch.cuda.mem_get_info(where)
    unused = torch.cuda.memory_reserved(where) - torch.cuda.memory_allocated(where)
    return [(free, f"free on {where}"), (unused, "that PyTorch holds unused")]


def _on_cpu() -> Sequence[tuple[int, str]]:
    free = available_bytes()
    if free is None:
        raise UsageError("this system does not say how much memory is free", hint='give a budget such as "8GB"')
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if here > 1:
        return [(free // here, f"of memory available to each of {here} processes")]
    return [(free, "of memory available")]
