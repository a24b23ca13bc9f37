"""Bytes that operations allocate while they run, beyond what they return."""

from __future__ import annotations

import contextlib
import gc
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from remat_cli.frontends.torch.measuring.one_operation import Operations
from remat_cli.frontends.torch.private import profiler_events

_MARK = "remat operation"


def workspaces(operations: Operations, indices: Sequence[int]) -> list[int]:
    """Workspace of nodes, in bytes.

    On a CPU, PyTorch's profiler reports the requests to PyTorch's allocator; memory that a library takes elsewhere is
    not seen. On CUDA, the allocator's own statistics are used.

    Args:
        operations: Operations on a device.
        indices: The nodes.

    Raises:
        ExecutionFailed: If an operation fails.
    """
    if operations.device == "cuda":
        return [_on_cuda(operations, index) for index in indices]
    return _on_cpu(operations, indices)


def _on_cuda(operations: Operations, index: int) -> int:
    import torch

    function = operations.prepared(index)
    with operations.attempt(index):
        chosen = function()  # the first call may try several algorithms, which takes extra memory
        del chosen
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = function()
        torch.cuda.synchronize()
        highest, kept = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        del result
    return max(0, int(highest - max(before, kept)))


def _on_cpu(operations: Operations, indices: Sequence[int]) -> list[int]:
    def attempted(index: int) -> Callable[[], Any]:
        function = operations.prepared(index)

        def call() -> Any:
            with operations.attempt(index):
                return function()

        return call

    return [above_end(changes) for changes in changes_of(map(attempted, indices))]


def changes_of(functions: Iterable[Callable[[], Any]]) -> list[list[int]]:
    """What each function requests from PyTorch's allocator on a CPU and gives back, in bytes and in order.

    The functions are called one after another; what one returns is freed before the next one is made. Garbage is
    collected before and after, not meanwhile: what it holds would count as given back by the function that runs.
    """
    from torch.profiler import ProfilerActivity, profile, record_function

    session = profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True)
    with _silence():
        session.start()
    try:
        with _without_collection():
            for function in functions:
                with record_function(_MARK):
                    result = function()
                del result, function
    finally:
        with _silence():
            session.stop()
    events = profiler_events(session)
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    marks = sorted((e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if e.name() == _MARK)
    times = [at for at, _ in changes]
    sizes = [size for _, size in changes]
    return [sizes[bisect_left(times, start) : bisect_right(times, end)] for start, end in marks]


def above_end(changes: Sequence[int]) -> int:
    """The maximum of a running sum from 0, minus its final value (or minus 0, if that is negative)."""
    sums = list(accumulate(changes, initial=0))
    return max(sums) - max(0, sums[-1])


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Collect garbage, then none of it until the end."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Silence standard error: no setting stops the profiler's library from announcing its start and stop there."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
