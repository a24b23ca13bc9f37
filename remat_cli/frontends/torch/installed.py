"""Checks that PyTorch is installed, in a version that this frontend supports."""

from __future__ import annotations

import re
from importlib import metadata

from remat_cli.errors import FrameworkUnavailable, UsageError
from remat_cli.extras import install_command

OLDEST = (2, 11)
BELOW = (2, 16)
"""Versions of torch from ``OLDEST`` up to, but not including, ``BELOW`` are supported; pyproject.toml says the same."""
DEVICES = ("cpu", "cuda")


def require_torch() -> None:
    """Check that torch can be imported, without importing it.

    Raises:
        FrameworkUnavailable: If torch is missing, or its version is not supported.
    """
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        raise FrameworkUnavailable(
            "this needs PyTorch, which is not installed", hint=f"run {install_command('torch')}"
        ) from None
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if not OLDEST <= found < BELOW:
        known = f"{'.'.join(map(str, OLDEST))} up to, but not including, {'.'.join(map(str, BELOW))}"
        raise FrameworkUnavailable(
            f"this needs PyTorch from {known}, and {version} is installed", hint=f"run {install_command('torch')}"
        )


def require_device(device: str) -> None:
    """Check that torch can trace and run for ``device``, ``cpu`` or ``cuda``.

    A torch without CUDA aborts the whole process when fake tensors are made on a CUDA device, so check before.

    Raises:
        UsageError: If there is no such kind of device.
        FrameworkUnavailable: If this torch was not built for it.
    """
    if device not in DEVICES:
        raise UsageError(f'"{device}" is not a device', hint=f"choose one of {', '.join(DEVICES)}")
    require_torch()
    import torch

    if device == "cuda" and not torch.backends.cuda.is_built():
        raise FrameworkUnavailable(
            f"torch {torch.__version__} was built without CUDA",
            hint="install a build with CUDA, or take --device cpu; graphs of one are not those of the other",
        )


def require_present(device: str) -> None:
    """Check that the device to run on exists.

    Raises:
        UsageError, FrameworkUnavailable: As :func:`require_device`, and if there is no such device.
    """
    require_device(device)
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise FrameworkUnavailable("there is no CUDA device here", hint="run it where there is one, or --device cpu")
