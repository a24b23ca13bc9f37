"""What trainers keep beside the step that is planned: the optimizer's state, accumulated gradients, buckets of DDP."""

import inspect
from collections.abc import Iterable
from typing import Any

from remat_cli.errors import UsageError

_TRIAL = (64, 64)
"""Shape of the parameter on which an optimizer is tried."""


def state_bytes(optimizer: Any) -> int:
    """Bytes of the state that ``optimizer`` will keep, from what a new one of its kind keeps for a small parameter.

    Of sharded parameters it is that of this rank's part.

    Raises:
        UsageError: If no such optimizer can be made.
    """
    optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate and Lightning wrap it
    total = 0.0
    for group in optimizer.param_groups:
        known = inspect.signature(type(optimizer)).parameters
        options = {name: value for name, value in group.items() if name in known and name != "params"}
        for dtype in {parameter.dtype for parameter in group["params"]}:
            share = _per_element(type(optimizer), options, dtype)
            total += share * sum(_here(p) for p in group["params"] if p.dtype == dtype and p.requires_grad)
    return int(total)


def gradient_bytes(parameters: Iterable[Any]) -> int:
    """Bytes of the gradients of all parameters that take one."""
    return sum(_here(p) * p.element_size() for p in parameters if p.requires_grad)


def _here(parameter: Any) -> int:
    """Elements of a parameter on this rank."""
    from remat_cli.frontends.torch.compat.distributed import local_tensor

    return int(local_tensor(parameter).numel())


def _per_element(kind: type[Any], options: dict[str, Any], dtype: Any) -> float:
    """Bytes of state for each element of a parameter, after one step."""
    import torch

    parameter = torch.nn.Parameter(torch.zeros(_TRIAL, dtype=dtype))
    parameter.grad = torch.ones_like(parameter)
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            trial = kind([parameter], **options)
            trial.step()
    except Exception as error:  # any library's optimizer
        raise UsageError(
            f"what {kind.__name__} keeps for a parameter is not known: {type(error).__name__}: {error}",
            hint='say it: reserve="2GB"; twice the bytes of the parameters for Adam',
        ) from error
    state = trial.state[parameter].values()
    kept = sum(t.numel() * t.element_size() for t in state if isinstance(t, torch.Tensor) and t.dim())
    return float(kept / parameter.numel())
