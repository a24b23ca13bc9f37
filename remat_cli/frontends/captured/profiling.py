"""What measuring operations takes in every framework: samples of their time, and what is said of the machine."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from remat_cli.errors import UsageError

_SHORTEST_SAMPLE_S = 200e-6
"""Least seconds of a sample: shorter operations are repeated, or the overhead of the clock would count. Untuned."""
_MOST_CALLS = 100
"""Most repeats in a sample. Untuned."""
LEAST_US = 1e-3
"""Least cost of an operation. Costs are rounded to multiples of this, and none may be 0."""


class Timed(NamedTuple):
    """How long a call takes.

    Attributes:
        median_us: Its median time, in microseconds.
        spread: Distance of the quartiles, as a share of the median.
    """

    median_us: float
    spread: float


def require_counts(repeats: int, warmup: int) -> None:
    """Refuse numbers of samples that make no sense.

    Raises:
        UsageError: If there are no samples, or less than no calls before them.
    """
    if repeats < 1 or warmup < 0:
        raise UsageError("profiling needs at least one repeat, and no negative warm-up")


def timed(call: Callable[[], object], wait: Callable[[], object], repeats: int, warmup: int) -> Timed:
    """How long ``call`` takes.

    Args:
        call: Called once more than ``warmup`` says, and then for each sample at least once.
        wait: Returns when the device has finished.
        repeats: Number of samples.
        warmup: Calls before them.
    """
    for _ in range(warmup):
        call()
    samples = _samples(call, wait, repeats)
    middle = statistics.median(samples)
    quartiles = statistics.quantiles(samples, n=4) if len(samples) > 1 else [middle, middle, middle]
    spread = (quartiles[2] - quartiles[0]) / middle if middle > 0 else 0.0
    return Timed(max(round(middle, 3), LEAST_US), spread)


def _samples(call: Callable[[], object], wait: Callable[[], object], repeats: int) -> list[float]:
    """Microseconds per call in each of several samples; each waits until the device has finished."""
    wait()
    started = time.perf_counter()
    call()
    wait()
    once = max(time.perf_counter() - started, 1e-9)
    calls = min(_MOST_CALLS, max(1, round(_SHORTEST_SAMPLE_S / once)))
    samples = []
    for _ in range(repeats):
        wait()
        started = time.perf_counter()
        for _ in range(calls):
            call()
        wait()
        samples.append((time.perf_counter() - started) / calls * 1e6)
    return samples


def groups(kinds: Iterable[tuple[Any, int]]) -> list[list[int]]:
    """Numbers of nodes, those of one kind together, in the order of the first of each."""
    found: dict[Any, list[int]] = {}
    for kind, index in kinds:
        found.setdefault(kind, []).append(index)
    return list(found.values())


def told(groups: Sequence[list[int]], progress: Callable[[int, int], None] | None) -> Iterable[list[int]]:
    """The groups, one by one; ``progress`` is told before each how many are done, and of how many."""
    for done, members in enumerate(groups):
        if progress is not None:
            progress(done, len(groups))
        yield members


def facts(device: str, framework: str, version: str, repeats: int, warmup: int, kinds: int) -> dict[str, Any]:
    """The settings of a measurement."""
    return {"device": device, framework: version, "repeats": repeats, "warmup": warmup, "kinds": kinds}


def host(threads: int | None) -> dict[str, Any]:
    """The machine of a measurement on a CPU."""
    return {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "threads": threads}
