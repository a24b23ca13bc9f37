"""The budget ``auto``: all memory that a step can have on the device of its module."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from remat_cli.errors import UsageError
from remat_cli.frontends.available import available_bytes
from remat_cli.frontends.torch.tensors import leaves, storage, storage_bytes
from remat_cli.frontends.torch.training.arguments import device_of_module
from remat_cli.units import Budget, format_bytes


def free_budget(module: Any, batch: Any, least: Callable[[int], int] = int) -> tuple[Budget, str]:
    """What a step of ``module`` can have now, and the same in words.

    This is what is free on the device, what PyTorch's allocator holds of it and does not use, and what the module and
    its batch take already, which plans count.

    Args:
        module: The module, on its device.
        batch: Its inputs; those on that device count.
        least: The least of a number in all processes that train together.

    Raises:
        UsageError: If the system does not say what is free, or the module is on several devices.
    """
    where = device_of_module(module)
    tensors = [*module.parameters(), *module.buffers(), *(tensor for _, tensor in leaves(batch))]
    own = sum({storage(t): storage_bytes(t) for t in tensors if t.device == where}.values())
    parts = [*(_on_cuda(where) if where.type == "cuda" else _on_cpu()), (own, "of the module and its batch")]
    found = least(sum(size for size, _ in parts))
    told = f"{', '.join(f'{format_bytes(size)} {what}' for size, what in parts if size)}"
    return Budget(Fraction(found), False, f"{found}B"), f"budget auto: {told}"


def _on_cuda(where: Any) -> Sequence[tuple[int, str]]:
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
