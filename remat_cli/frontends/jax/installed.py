"""Checks that JAX is installed, in a version that this frontend supports, and that the device is there."""

from importlib import util

from remat_cli.errors import FrameworkUnavailable, Worded
from remat_cli.extras import install_command
from remat_cli.frontends.captured.installed import require_version

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
    require_version("JAX", "jax", OLDEST, BELOW, ("jax",))
    if util.find_spec("flatbuffers") is None:  # jax.export needs it, and does not ask for it
        raise FrameworkUnavailable(
            "JAX writes functions with flatbuffers, which is not installed", hint=f"run {install_command('jax')}"
        )


def require_present(device: str) -> None:
    """Check that the device to run on exists.

    Raises:
        FrameworkUnavailable: As :func:`require_jax`, and if there is no such device.
    """
    require_jax()
    import jax

    try:
        jax.local_devices(backend=_PLATFORMS[device])
    except RuntimeError:
        raise FrameworkUnavailable(
            f"JAX knows no {device} device here",
            hint=Worded(
                'install a JAX with CUDA where there is one, or take device="cpu"',
                "install a JAX with CUDA where there is one, or take --device cpu",
            ),
        ) from None


def device_named(device: str) -> object:
    """The first device of a kind that is there."""
    import jax

    return jax.local_devices(backend=_PLATFORMS[device])[0]
