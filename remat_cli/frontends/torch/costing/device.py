"""The rates of the device at hand: measured when they are first needed, and kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remat_cli.errors import Worded
from remat_cli.files import cache_folder, read_text
from remat_cli.frontends.rates import Rates, kept_rates, processor, read_rates
from remat_cli.frontends.torch.costing.measure import LIMIT_S, measure
from remat_cli.frontends.torch.executing.out_of_memory import memory_told
from remat_cli.frontends.torch.telling import Tell, tell_stderr

RATES = "REMAT_RATES"
"""Environment variable with a file of rates, which are taken instead of those of the device at hand."""
_METHOD = 1
"""Number of the way to measure; rates that were measured in another way are not read."""


def device_rates(device: Any, tell: Tell = tell_stderr) -> Rates:
    """The rates of a device that is here.

    In this order: the file that ``REMAT_RATES`` names; the rates that this process has seen, or an earlier one has kept
    for the same processor, number of threads and version of PyTorch; those that are now measured, in two seconds.

    Args:
        device: ``cpu``, ``cuda``, or a device of PyTorch.
        tell: Called before a measurement, and if its result cannot be kept.

    Raises:
        InputError: If the file that the environment names cannot be read, or holds no rates.
        OutOfMemory: If the device's memory is too small for the measurement.
    """
    named = os.environ.get(RATES, "")
    if named:
        return read_rates(*read_text(named))
    asked = DeviceKey.of(device)
    if asked not in _SEEN:
        _SEEN[asked] = _kept_or_measured(asked, tell)
    return _SEEN[asked]


@dataclass(frozen=True, slots=True)
class DeviceKey:
    """All that the speed and the workspace of operations depend on.

    Attributes:
        device: The device as PyTorch names it.
        machine: Its processor or GPU.
        threads: Threads of PyTorch, on a CPU; 0 on a GPU.
        vectors: The vector instructions that PyTorch uses, or the version of CUDA.
        torch: Its version.
    """

    device: str
    machine: str
    threads: int
    vectors: str
    torch: str

    @classmethod
    def of(cls, device: Any) -> DeviceKey:
        """The device at hand."""
        import torch

        version = str(torch.__version__)
        if torch.device(device).type == "cuda":
            return cls(str(device), torch.cuda.get_device_name(device), 0, f"CUDA {torch.version.cuda}", version)
        capability = str(torch.backends.cpu.get_cpu_capability())
        return cls("cpu", processor(), torch.get_num_threads(), capability, version)

    def path(self, folder: str, *more: int) -> Path:
        """The file in the cache folder ``folder`` for what depends on this, and on ``more``."""
        key = [self.device.partition(":")[0], self.machine, self.threads, self.vectors, self.torch, *more]
        return cache_folder(folder) / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}.json"

    def facts(self) -> dict[str, Any]:
        """What is written beside the rates."""
        threads = {"threads": self.threads} if self.threads else {}
        return {"device": self.device.partition(":")[0], "vectors": self.vectors, "torch": self.torch} | threads


_SEEN: dict[DeviceKey, Rates] = {}


def _kept_or_measured(asked: DeviceKey, tell: Tell) -> Rates:
    path = asked.path("rates", _METHOD)

    def measured() -> Rates:
        tell(f"measuring how fast {asked.machine} is, for {LIMIT_S:g} s; kept in {path}")
        device = asked.device.partition(":")[0]
        with memory_told(
            device,
            "measuring its speed",
            Worded('take cost="flops", or make room on it', "take --cost flops, or make room on it"),
        ):
            return Rates(asked.machine, *measure(asked.device), facts=asked.facts())

    return kept_rates(path, measured, tell)
