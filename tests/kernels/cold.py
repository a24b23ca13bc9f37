"""Processes that start with no machine code, or with damaged."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

FLOW = """
import numpy as np
from remat_cli.control import Control
from remat_cli.kernels.compiling import ready, wait
print(ready("flow"))
assert wait("flow", Control())
from remat_cli.kernels.flow import sink_side
arcs = [np.array(numbers, dtype=np.int64) for numbers in ([0, 1], [1, 2], [3, 4])]
assert sink_side(*arcs, 3, 0, 2).tolist() == [False, True, True]
"""
"""Says whether there is machine code, and uses some."""


def start(code: str, cache: Path | None, *, package: Path | None = None, **options) -> subprocess.Popen[str]:
    """Start ``code`` in a process of its own, with warnings as errors and ``cache`` for machine code."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"PYTHONPATH": str(package or Path(__file__).parents[2])}
    environment |= {"NUMBA_CACHE_DIR": str(cache)} if cache else {}
    environment |= options.pop("env", {})
    return subprocess.Popen(
        [sys.executable, "-P", "-B", "-W", "error", "-c", textwrap.dedent(code)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """What the process prints; it must end well and complain of nothing."""
    out, err = process.communicate(timeout=280)
    assert (process.returncode, err) == (0, "")
    return out.strip()


def script(code: str, cache: Path | None, **options) -> str:
    """Run ``code`` to its end."""
    return finish(start(code, cache, **options))
