"""The links between the ranks of a running process group, measured: latency and bandwidth of each dimension of a mesh.

All-gathers, reduce-scatters and all-reduces of growing sizes run on all ranks at once, as in a step. Of each, the
shortest of a few times counts on every rank, since other programs can only make it longer, and then the longest of all
ranks. A straight line through the times over the bytes that a ring sends gives both numbers; relative errors count, so
that small tensors are as well met as large ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from remat_cli.errors import UsageError
from remat_cli.frontends.interconnect import SHARES, Interconnect
from remat_cli.frontends.torch.compat.distributed import collective, group_size, mesh_groups
from remat_cli.frontends.torch.types import Device, Module

_KINDS = ("all-gather", "reduce-scatter", "all-reduce")
_SMALLEST, _LARGEST = 1 << 12, 1 << 24
"""Bytes of the smallest and the largest tensors. Untuned."""
_GROWTH = 8
"""Factor from one size to the next. Untuned."""
_REPEATS = 5
"""Calls of each collective that are timed, after one that is not. Untuned."""
_LONG_S = 0.2
"""No larger tensors are tried once a collective takes as long. Untuned."""


@dataclass(frozen=True, slots=True)
class MeasuredLinks:
    """Links as they were measured.

    Attributes:
        interconnect: Their bandwidths and latencies.
        deviation: The largest relative deviation of a measured time from what these say.
    """

    interconnect: Interconnect
    deviation: float

    def line(self) -> str:
        """What there is to say of it."""
        return f"interconnect measured: {self.interconnect.text()}, times within {100 * self.deviation:.0f}%"


def measured_links(module: Module, device: Device, gathered: Callable[[Any], Sequence[Any]]) -> MeasuredLinks:
    """The links of the meshes of the DTensors in ``module``, by their dimensions. All ranks have to call this.

    Args:
        module: The module.
        device: Where its parameters are.
        gathered: Gives what all ranks give it.

    Raises:
        UsageError: If ``module`` has no DTensors, a mesh has several dimensions without names, or ranks have other
            meshes.
    """
    groups = mesh_groups([*module.parameters(), *module.buffers()])
    sizes = [(name, len(names), group_size(names[0])) for name, names in groups.items()]
    if any(each != sizes for each in gathered(sizes)):
        raise UsageError(
            "the meshes of the DTensors of this rank are not those of the others",
            hint="all ranks fit the same module, on meshes of the same form",
        )
    if not groups:
        raise UsageError(
            f"no parameter of this {type(module).__name__} is a DTensor, so that there is no link to measure",
            hint="leave interconnect out",
        )
    if len(groups.get("", ())) > 1:
        raise UsageError(
            "a mesh has several dimensions without names, and links are measured by dimension",
            hint='init_device_mesh(..., mesh_dim_names=("fsdp", "tp"))',
        )
    rates: dict[str, float] = {}
    latencies: dict[str, float] = {}
    worst = 0.0
    for name, count, ranks in sizes:
        if ranks == 1:  # nothing is sent
            continue
        points = [point for k in range(count) for point in _points(groups[name][k], device, gathered)]
        latency_s, rates[name] = fitted_line(points)
        latencies[name] = 1e6 * latency_s
        worst = max([worst, *(abs(latency_s + sent / rates[name] - took) / took for sent, took in points)])
    return MeasuredLinks(Interconnect(rates, latencies), worst)


def fitted_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Latency in seconds and bytes per second of the line with the least squares of relative errors.

    Args:
        points: Bytes that a rank sends, and seconds; both above 0, and of two or more different numbers of bytes.
    """
    weights = [1 / took**2 for _, took in points]
    total = sum(weights)
    mean_sent = sum(w * sent for w, (sent, _) in zip(weights, points, strict=True)) / total
    mean_took = sum(w * took for w, (_, took) in zip(weights, points, strict=True)) / total
    spread = sum(w * (sent - mean_sent) ** 2 for w, (sent, _) in zip(weights, points, strict=True))
    joint = sum(w * (sent - mean_sent) * (took - mean_took) for w, (sent, took) in zip(weights, points, strict=True))
    slope = joint / spread
    latency = mean_took - slope * mean_sent
    if slope <= 0:  # larger tensors took no longer: all that is known is that they are no slower than the largest
        sent, took = max(points)
        return 0.0, sent / took
    if latency < 0:  # the best line through no latency
        return 0.0, sum(w * s * s for w, (s, _) in zip(weights, points, strict=True)) / sum(
            w * s * t for w, (s, t) in zip(weights, points, strict=True)
        )
    return latency, 1 / slope


def _points(group: str, device: Device, gathered: Callable[[Any], Sequence[Any]]) -> list[tuple[float, float]]:
    """Bytes that a rank sends, and the seconds of the slowest rank, of collectives in a process group."""
    points, size, ranks = [], _SMALLEST, group_size(group)
    while size <= _LARGEST:
        own = [_least_s(kind, size, group, device) for kind in _KINDS]
        took = [max(times) for times in zip(*gathered(own), strict=True)]
        points += [(SHARES[kind](ranks) * size, seconds) for kind, seconds in zip(_KINDS, took, strict=True)]
        if max(took) > _LONG_S:
            break
        size *= _GROWTH
    return points


def _least_s(kind: str, size: int, group: str, device: Device) -> float:
    """The shortest time of a collective of a tensor of ``size`` bytes in all."""
    run = collective(kind, size, group, device)
    run()
    times = []
    for _ in range(_REPEATS):
        started_s = time.perf_counter()
        run()
        times.append(time.perf_counter() - started_s)
    return min(times)
