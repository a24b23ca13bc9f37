"""Checks that PyTorch is installed, in a version that this frontend supports."""

from remat_cli.errors import FrameworkUnavailable, Worded
from remat_cli.frontends.captured.installed import installed_version, numbers, require_known, require_version

OLDEST = (2, 11)
BELOW = (2, 16)
"""Versions of torch from ``OLDEST`` up to, but not including, ``BELOW`` are supported; pyproject.toml says the same."""
INDUCTOR_OLDEST = (2, 13)
"""The oldest version whose Inductor keeps to plans: with 2.12.1, steps of two small networks took 14% and 7% more."""
DEVICES = ("cpu", "cuda")


def require_torch() -> None:
    """Check that torch can be imported, without importing it.

    Raises:
        FrameworkUnavailable: If torch is missing, or its version is not supported.
    """
    require_version("PyTorch", "torch", OLDEST, BELOW, ("torch",))


def require_inductor() -> None:
    """Check that torch is of a version whose Inductor keeps to plans, without importing it.

    Raises:
        FrameworkUnavailable: If torch is missing, or older.
    """
    require_torch()
    version = installed_version("torch")
    if version is not None and numbers(version) < INDUCTOR_OLDEST:
        oldest = ".".join(map(str, INDUCTOR_OLDEST))
        raise FrameworkUnavailable(
            f"plans for Inductor need PyTorch {oldest} or newer, and {version} is installed, with which steps may take "
            "more memory than their plans",
            hint=f"install PyTorch {oldest} or newer, or plan for eager mode",
        )


def require_device(device: str) -> None:
    """Check that torch can trace and run for ``device``, ``cpu`` or ``cuda``.

    A torch without CUDA aborts the whole process when fake tensors are made on a CUDA device, so check before.

    Raises:
        UsageError: If there is no such kind of device.
        FrameworkUnavailable: If this torch was not built for it.
    """
    require_known(device, "PyTorch", DEVICES)
    require_torch()
    import torch

    if device == "cuda" and not torch.backends.cuda.is_built():
        raise FrameworkUnavailable(
            f"torch {torch.__version__} was built without CUDA",
            hint=Worded(
                'install a build with CUDA, or take device="cpu"; graphs of one are not those of the other',
                "install a build with CUDA, or take --device cpu; graphs of one are not those of the other",
            ),
        )


def require_present(device: str) -> None:
    """Check that the device to run on exists.

    Raises:
        UsageError, FrameworkUnavailable: As :func:`require_device`, and if there is no such device.
    """
    require_device(device)
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise FrameworkUnavailable(
            "there is no CUDA device here",
            hint=Worded(
                'run it where there is one, or with device="cpu"', "run it where there is one, or --device cpu"
            ),
        )
