"""A device with limited memory: a real one with CUDA, or a CPU with an artificial limit.

With the second, tests run the same code as a GPU. PyTorch's profiler reports the memory of a step after it; if that is
more than the limit, the error is raised that CUDA would have raised.
"""

import contextlib
import fcntl
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

_SESSIONS = 5
"""Sessions of the profiler before giving up: on a busy machine it sometimes loses all events of one."""


@dataclass
class Turns:
    """Turns of several processes at one device, so that none disturbs the times of another.

    Attributes:
        path: The file that the process whose turn it is has locked; None for a process that has the device to itself.
        depth: How many contexts of this process need the turn now.
    """

    path: Path | None = None
    depth: int = 0

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Have the device alone meanwhile; a turn within a turn is the same one."""
        if self.path is None or self.depth:
            self.depth += 1
            try:
                yield
            finally:
                self.depth -= 1
            return
        import torch

        with self.path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.depth = 1
            try:
                yield
            finally:
                self.depth = 0
                torch.cuda.empty_cache()  # others need the memory
                fcntl.flock(file, fcntl.LOCK_UN)
        time.sleep(_TO_OTHERS_S)

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """A context in which remat measures operations only in turn; plans are made meanwhile."""
        from remat_cli.frontends.captured import profiling

        def in_turn(*args: Any, **options: Any) -> Any:
            with self.turn():
                return measure(*args, **options)

        measure = profiling.measure_operations
        profiling.measure_operations = in_turn
        try:
            yield
        finally:
            profiling.measure_operations = measure


_TO_OTHERS_S = 0.05
"""Time that others get to take their turn before this process asks again."""
TURNS = Turns()
"""The turns of this process."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes at the peak of a step, including all that existed before; ``reserved`` only on CUDA."""

    allocated: int
    reserved: int | None


class Cuda:
    """The current CUDA device."""

    name = "cuda"

    def wait(self) -> None:
        import torch

        torch.cuda.synchronize()

    def free(self) -> None:
        import torch

        gc.collect()
        torch.cuda.empty_cache()

    def memory_bytes(self) -> int:
        import torch

        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)

    def facts(self) -> dict[str, Any]:
        import torch

        found = torch.cuda.get_device_properties(torch.cuda.current_device())
        return {
            "device": found.name,
            "memory_bytes": int(found.total_memory),
            "cuda": str(torch.version.cuda),
            "cudnn": torch.backends.cudnn.version(),
            "allocator": torch.cuda.get_allocator_backend(),
        }

    @contextlib.contextmanager
    def limited(self, limit_bytes: int) -> Iterator[None]:
        """Limit the memory that PyTorch's allocator takes from the device to ``limit_bytes``."""
        import torch

        self.free()
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / self.memory_bytes()))
        try:
            yield
        finally:
            self.free()
            torch.cuda.set_per_process_memory_fraction(1.0)

    def usage(self, step: Callable[[], Any], _resident: int) -> Usage:
        import torch

        self.free()
        self.wait()
        torch.cuda.reset_peak_memory_stats()
        step()
        self.wait()
        return Usage(int(torch.cuda.max_memory_allocated()), int(torch.cuda.max_memory_reserved()))


@dataclass
class Cpu:
    """A CPU with a memory of any chosen size."""

    total_bytes: int = 1 << 30
    limits: list[int] = field(default_factory=list)
    name = "cpu"

    def wait(self) -> None:
        """Do nothing: a CPU has no queue."""

    def free(self) -> None:
        gc.collect()

    def memory_bytes(self) -> int:
        return self.total_bytes

    def facts(self) -> dict[str, Any]:
        return {"device": "a CPU with a limit that is made up", "memory_bytes": self.total_bytes}

    @contextlib.contextmanager
    def limited(self, limit_bytes: int) -> Iterator[None]:
        """Let steps that :meth:`usage` runs fail if they need more."""
        self.limits.append(limit_bytes)
        try:
            yield
        finally:
            self.limits.pop()

    def usage(self, step: Callable[[], Any], resident: int) -> Usage:
        """``resident``: bytes that were allocated before, which the profiler does not see."""
        import torch

        peak = resident + allocated_peak(step)
        if self.limits and peak > self.limits[-1]:
            raise torch.OutOfMemoryError(f"out of memory: {peak} bytes of {self.limits[-1]}")
        return Usage(peak, None)


def allocated_peak(step: Callable[[], Any], device: str = "cpu") -> int:
    """Most bytes that PyTorch's allocator handed out during a step, beside those that existed before.

    On a CPU by the events of PyTorch's profiler, on CUDA by the allocator's statistics.

    Raises:
        RuntimeError: If the profiler records nothing, however often ``step`` runs.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)
    for _ in range(_SESSIONS):
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as session:
            step()
        events = session.profiler.kineto_results.events()
        changes = sorted((e.start_ns(), k, e.nbytes()) for k, e in enumerate(events) if e.name() == "[memory]")
        if changes:
            return max(accumulate((size for _, _, size in changes), initial=0))
    raise RuntimeError("PyTorch's profiler recorded no use of memory")


def device_named(name: str) -> Any:
    """``cuda`` or ``cpu``."""
    return Cuda() if name == "cuda" else Cpu()
