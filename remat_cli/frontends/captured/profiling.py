"""Measures the operations of a captured step one by one, with whatever bench a framework brings for them."""

import os
import platform
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from remat_cli.errors import UsageError
from remat_cli.graph.model import Graph, Node

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


def time_call(call: Callable[[], object], wait: Callable[[], object], repeats: int, warmup: int) -> Timed:
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


@dataclass(frozen=True, slots=True)
class MeasuredOperation:
    """One operation on a device.

    Attributes:
        timed: How long a call takes.
        workspace_bytes: Most bytes allocated during the call, without what it returns; None if nothing counts them.
        returned_bytes: Bytes of the memory behind each returned tensor, by its position (None for a single one), where
            the framework's kernels may return another size than the graph says; otherwise empty.
    """

    timed: Timed
    workspace_bytes: int | None
    returned_bytes: Mapping[int | None, int] = field(default_factory=dict)


class OperationBench(ABC):
    """Runs single operations of a step on a device, with random inputs.

    Attributes:
        graph: The graph of the step.
        device: The device.
    """

    graph: Graph
    device: str

    def measured_nodes(self) -> Sequence[int]:
        """The nodes that run; all, unless a framework has nodes that stand for something else."""
        return range(len(self.graph.nodes))

    @abstractmethod
    def kind(self, index: int) -> Hashable:
        """Equal for nodes with the same operation on tensors of the same form, of which one is measured."""

    def measure(self, indices: Sequence[int], repeats: int, warmup: int) -> Iterator[MeasuredOperation]:
        """Measure nodes one after another, as the iterator is asked for them.

        Raises:
            OutOfMemory, ExecutionFailed: See :meth:`measure_one`.
        """
        return (self.measure_one(index, repeats, warmup) for index in indices)

    @abstractmethod
    def measure_one(self, index: int, repeats: int, warmup: int) -> MeasuredOperation:
        """Measure a node; its inputs are freed afterwards.

        Raises:
            OutOfMemory: If the device's memory is too small for an operation and its inputs.
            ExecutionFailed: If an operation fails, with the node.
        """

    def node(self, index: int, measured: MeasuredOperation | None, cheapest_us: float) -> Node:
        """A node with its measurements; with the cost ``cheapest_us`` if it was not measured."""
        assert measured is not None  # unless a framework leaves nodes out of :meth:`measured_nodes`
        return replace(self.graph.nodes[index], cost=measured.timed.median_us, workspace=measured.workspace_bytes or 0)

    @abstractmethod
    def machine(self) -> dict[str, Any]:
        """The machine and the settings of the framework, for the metadata of the graph."""

    def finished(self, graph: Graph) -> Graph:
        """The measured graph with what else the framework has to say in it."""
        return graph


def measure_operations(
    bench: OperationBench, repeats: int, warmup: int, progress: Callable[[int, int], None] | None = None
) -> Graph:
    """The graph of ``bench`` with measured costs (microseconds), sizes and workspaces. Each kind is measured once.

    Args:
        bench: What runs the operations.
        repeats: Samples per kind of operation; their median is the cost.
        warmup: Calls before the samples.
        progress: Called with the number of kinds that are done, and of all kinds.

    Raises:
        OutOfMemory, ExecutionFailed: From :meth:`OperationBench.measure`.
    """
    kinds = groups((bench.kind(index), index) for index in bench.measured_nodes())
    measurements = bench.measure([members[0] for members in kinds], repeats, warmup)
    measured: dict[int, MeasuredOperation] = {}
    for done, members in enumerate(kinds):
        if progress is not None:
            progress(done, len(kinds))
        measured |= dict.fromkeys(members, next(measurements))
    cheapest_us = min((one.timed.median_us for one in measured.values()), default=LEAST_US)
    graph = bench.graph
    facts = {"device": bench.device, "repeats": repeats, "warmup": warmup, "kinds": len(kinds)}
    spread = {graph.nodes[i].id: round(one.timed.spread, 4) for i, one in sorted(measured.items())}
    return bench.finished(
        replace(
            graph,
            nodes=tuple(bench.node(i, measured.get(i), cheapest_us) for i in range(len(graph.nodes))),
            cost_unit="us",
            metadata=graph.metadata
            | {"costs": {"model": "measured"}, "profile": facts | bench.machine() | {"spread": spread}},
        )
    )


def groups(kinds: Iterable[tuple[Hashable, int]]) -> list[list[int]]:
    """Numbers of nodes, those of one kind together, in the order of the first of each."""
    members: dict[Hashable, list[int]] = {}
    for kind, index in kinds:
        members.setdefault(kind, []).append(index)
    return list(members.values())


def host_facts(threads: int | None) -> dict[str, Any]:
    """The machine of a measurement on a CPU."""
    return {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "threads": threads}
