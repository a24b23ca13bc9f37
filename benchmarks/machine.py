"""The machine of a benchmark, its versions, and the load by other programs. No names of hosts, no paths."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from remat_cli.version import __version__

ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = """
click diffusers fastjsonschema gurobipy highspy jax jsonschema keras numba numpy ortools pulp pyomo pyyaml rich scipy
swiglpk tensorflow tensorflow-cpu torch transformers
"""
PACKAGES = tuple(_PACKAGES.split())
_BUSY = 0.1
"""Cores that other programs may use before a machine counts as shared. Untuned."""


def machine() -> dict[str, Any]:
    """Processor (after the GPU that this process uses, if any), cores that it may use, memory, operating system."""
    gpu = _gpu_model()
    return {
        "cores": cores(),
        "cpu": f"{gpu}; {_cpu_model()}" if gpu else _cpu_model(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "system": f"{platform.system()} {platform.machine()}",
    }


@cache
def versions() -> dict[str, Any]:
    """Versions of Python, remat (with its commit) and the relevant packages; None for one that is not installed.

    Determined once, because the commit may change while benchmarks run.
    """
    return {
        "commit": _commit(),
        "packages": {name: _version(name) for name in PACKAGES},
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "remat": __version__,
    }


@dataclass(frozen=True, slots=True)
class Load:
    """The load of the machine and of this program at one moment."""

    average: float
    wall_s: float
    busy_s: float | None
    own_s: float

    @classmethod
    def now(cls) -> Load:
        """Now."""
        own = os.times()
        return cls(
            average=os.getloadavg()[0],
            wall_s=time.monotonic(),
            busy_s=_busy_s(),
            own_s=own.user + own.system + own.children_user + own.children_system,
        )

    def until_now(self) -> dict[str, Any]:
        """The load since then: ``average_before`` (one minute), and the cores that other programs used, on average.

        Only cores that this process may use count. ``shared`` if the others used more than a tenth of one, or if the
        process may use all cores and that load was above 1. The load average alone is not enough: if a run has several
        benchmarks, it includes the previous one.
        """
        end = Load.now()
        others = None
        if self.busy_s is not None and end.busy_s is not None:
            wall_s = max(end.wall_s - self.wall_s, 1e-3)
            others = round(max(0.0, end.busy_s - self.busy_s - (end.own_s - self.own_s)) / wall_s, 2)
        return {
            "average_before": round(self.average, 2),
            "others_cores": others,
            "shared": (self.average > 1 and cores() == os.cpu_count()) or (others is not None and others > _BUSY),
        }


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []  # not Linux
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown"


def _gpu_model() -> str:
    """The GPU that PyTorch runs on in this process, if it does."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():  # asking more would start CUDA, and forks would have none
        return ""
    return f"{torch.cuda.get_device_properties(0).name}, CUDA {torch.version.cuda}"


def _busy_s() -> float | None:
    """Seconds that the cores of this process together have been busy since the machine started; None if unknown."""
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None  # not Linux
    ours = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    ticks = 0
    for name, *fields in (line.split() for line in lines if line.startswith("cpu")):
        if name in ours:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
            ticks += user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of this checkout, with ``+changes`` if the program differs from it; None without git."""
    head = _git("rev-parse", "--short=12", "HEAD")
    if head is None:
        return None
    return head + ("+changes" if _git("status", "--porcelain", "--", "remat_cli", "benchmarks/*.py") else "")


def _git(*arguments: str) -> str | None:
    try:
        told = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return told.stdout.strip() if told.returncode == 0 else None
