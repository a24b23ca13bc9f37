"""Checks that the ``onnx`` package is installed, in a version that this frontend supports."""

from __future__ import annotations

import re
from importlib import metadata

from remat_cli.errors import FrameworkUnavailable
from remat_cli.extras import install_command

OLDEST = (1, 16)
BELOW = (2, 0)
"""Versions of onnx from ``OLDEST`` up to, but not including, ``BELOW`` are supported; pyproject.toml says the same."""


def require_onnx() -> None:
    """Check that onnx can be imported, without importing it.

    Raises:
        FrameworkUnavailable: If onnx is missing, or its version is not supported.
    """
    try:
        version = metadata.version("onnx")
    except metadata.PackageNotFoundError:
        raise FrameworkUnavailable(
            "reading ONNX models needs the onnx package, which is not installed", hint=f"run {install_command('onnx')}"
        ) from None
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if not OLDEST <= found < BELOW:
        known = f"{'.'.join(map(str, OLDEST))} up to, but not including, {'.'.join(map(str, BELOW))}"
        raise FrameworkUnavailable(
            f"this needs onnx from {known}, and {version} is installed", hint=f"run {install_command('onnx')}"
        )
