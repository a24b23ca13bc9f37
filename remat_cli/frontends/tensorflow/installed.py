"""Checks that TensorFlow is installed, in a version that this frontend supports."""

import contextlib
import importlib
import os
import sys

from remat_cli.errors import FrameworkUnavailable, Worded
from remat_cli.frontends.captured.installed import require_version

OLDEST = (2, 15)
BELOW = (2, 22)
"""Versions of TensorFlow from ``OLDEST`` up to, but not including, ``BELOW`` are supported; pyproject.toml says the
same."""
DEVICES = ("cpu", "gpu")
_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-macos")


def require_tensorflow() -> None:
    """Check that TensorFlow can be imported, without importing it.

    Raises:
        FrameworkUnavailable: If it is missing, or its version is not supported.
    """
    require_version("TensorFlow", "tensorflow", OLDEST, BELOW, _DISTRIBUTIONS)


def require_device(device: str) -> None:
    """Check that TensorFlow is here, and has ``device``, ``cpu`` or ``gpu``.

    Raises:
        FrameworkUnavailable: If TensorFlow or the device is missing.
    """
    require_tensorflow()
    quieten()
    import tensorflow as tf

    if device == "gpu" and not tf.config.list_physical_devices("GPU"):
        raise FrameworkUnavailable(
            f"TensorFlow {tf.__version__} sees no GPU here",
            hint=Worded(
                'run it where there is one, or with device="cpu"', "run it where there is one, or --device cpu"
            ),
        )


def quieten() -> None:
    """Import TensorFlow without the notes that it writes on standard error, unless the user has asked for some."""
    if "tensorflow" in sys.modules or "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    # Some notes are written before that holds, by code that does not go through Python's standard error.
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # no standard error to keep silent
            standard_error = os.dup(2)
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 2)
            os.close(silent)
            stack.callback(os.close, standard_error)
            stack.callback(os.dup2, standard_error, 2)
        importlib.import_module("tensorflow")


def count_allocations() -> None:
    """Before TensorFlow is imported: let its allocator on the CPU count bytes, as it does on a GPU."""
    if "tensorflow" not in sys.modules:
        os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
