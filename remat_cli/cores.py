"""The number of cores that this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Cores that this process may use: fewer than the machine has where a container or ``taskset`` says so."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
