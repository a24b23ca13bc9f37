"""Checks that JAX is installed, in a version that this frontend supports, and that the device is there."""

from __future__ import annotations

import re
from importlib import metadata, util

from remat_cli.errors import FrameworkUnavailable, UsageError
from remat_cli.extras import install_command

OLDEST = (0, 10)
BELOW = (0, 11)
"""Versions of jax from ``OLDEST`` up to, but not including, ``BELOW`` are supported; pyproject.toml says the same."""
DEVICES = ("cpu", "cuda")
_PLATFORMS = {"cpu": "cpu", "cuda": "gpu"}
"""The devices by JAX's own names."""


def require_jax() -> None:
    """Check that jax can be imported, without importing it.

    Raises:
        FrameworkUnavailable: If jax is missing, or its version is not supported, or it cannot write functions.
    """
    try:
        version = metadata.version("jax")
    except metadata.PackageNotFoundError:
        raise FrameworkUnavailable(
            "this needs JAX, which is not installed", hint=f"run {install_command('jax')}"
        ) from None
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if not OLDEST <= found < BELOW:
        known = f"{'.'.join(map(str, OLDEST))} up to, but not including, {'.'.join(map(str, BELOW))}"
        raise FrameworkUnavailable(
            f"this needs JAX from {known}, and {version} is installed", hint=f"run {install_command('jax')}"
        )
    if util.find_spec("flatbuffers") is None:  # jax.export needs it, and does not ask for it
        raise FrameworkUnavailable(
            "JAX writes functions with flatbuffers, which is not installed", hint=f"run {install_command('jax')}"
        )


def require_present(device: str) -> None:
    """Check that the device to run on exists.

    Raises:
        UsageError: If there is no such kind of device.
        FrameworkUnavailable: As :func:`require_jax`, and if there is no such device.
    """
    if device not in DEVICES:
        raise UsageError(f'"{device}" is not a device', hint=f"choose one of {', '.join(DEVICES)}")
    require_jax()
    import jax

    try:
        jax.local_devices(backend=_PLATFORMS[device])
    except RuntimeError:
        raise FrameworkUnavailable(
            f"JAX knows no {device} device here",
            hint="install a JAX with CUDA where there is one, or take --device cpu",
        ) from None


def device_named(device: str) -> object:
    """The first device of a kind that is there."""
    import jax

    return jax.local_devices(backend=_PLATFORMS[device])[0]
