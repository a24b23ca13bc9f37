"""Host memory: how fast values get there and back, and how much of it there is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from remat_cli.errors import UsageError, Worded
from remat_cli.units import TIME_UNITS, as_size, format_bandwidth, format_bytes, format_cost, parse_bandwidths


@dataclass(frozen=True, slots=True)
class Host:
    """Host memory and the two copy engines between it and the device, which work during computations.

    Attributes:
        out_bytes_per_s: Bandwidth from the device to the host; infinite for no limit.
        in_bytes_per_s: Bandwidth from the host to the device; infinite for no limit.
        latency_s: Seconds that every copy takes in addition to those for its bytes.
        memory_bytes: Host memory for values; None for no limit.
    """

    out_bytes_per_s: float
    in_bytes_per_s: float
    latency_s: float = 0.0
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that no machine has.

        Raises:
            UsageError: If a bandwidth is not positive, or the latency or the memory is negative.
        """
        for name, rate in (("out", self.out_bytes_per_s), ("in", self.in_bytes_per_s)):
            if not rate > 0:
                raise UsageError(f"the bandwidth {name} is {rate:g} bytes/s, not above 0", hint="write it like 25GB/s")
        if not 0 <= self.latency_s < math.inf:
            raise UsageError(f"a latency of {self.latency_s:g} s is not 0 or more", hint="write it like 0.01ms")
        if self.memory_bytes is not None and self.memory_bytes < 0:
            raise UsageError("the host memory is negative", hint="write it like 64GiB, or leave it out for no limit")

    @classmethod
    def of(cls, bandwidth: str, memory: str | None = None, latency_s: float = 0.0) -> Host:
        """The host that texts describe: ``25GB/s`` or ``25GB/s:20GB/s``, and ``64GiB``.

        Raises:
            UsageError: If a text is not a bandwidth or a size.
        """
        out, back = parse_bandwidths(bandwidth)
        return cls(out, back, latency_s, None if memory is None else as_size(memory, "memory"))

    def times(self, sizes: tuple[int, ...], cost_unit: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """How long a copy of each size takes, to the host and back, in the unit of costs.

        Raises:
            UsageError: If costs are not times.
        """
        second = seconds_in(cost_unit)
        return (
            tuple((self.latency_s + size / self.out_bytes_per_s) * second for size in sizes),
            tuple((self.latency_s + size / self.in_bytes_per_s) * second for size in sizes),
        )

    @property
    def words(self) -> str:
        """``25 GB/s out, 20 GB/s in, 64 GB``."""
        parts = [f"{format_bandwidth(self.out_bytes_per_s)} out", f"{format_bandwidth(self.in_bytes_per_s)} in"]
        if self.latency_s:
            parts.append(f"{format_cost(self.latency_s, 's')} latency")
        parts.append("memory without limit" if self.memory_bytes is None else format_bytes(self.memory_bytes))
        return ", ".join(parts)


def seconds_in(cost_unit: str) -> int:
    """How much of ``cost_unit`` a second is.

    Raises:
        UsageError: If the unit is not a time.
    """
    if cost_unit not in TIME_UNITS:
        raise UsageError(
            f"costs are {cost_unit}, and copies take time: with a host, costs have to be times",
            hint=Worded(
                'give cost_unit s, ms, us or ns; profile measures them, cost="roofline:a100" estimates them',
                "give cost_unit s, ms, us or ns; remat profile measures them, remat export --cost roofline:a100 "
                "estimates them",
            ),
        )
    return round(1.0 / TIME_UNITS[cost_unit])
