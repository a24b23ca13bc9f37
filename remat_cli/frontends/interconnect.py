"""The links between the ranks of a training, and how long collectives take on them.

A collective of ``n`` ranks takes the time of a ring, in which every rank sends to the next one::

    time = latency + share * bytes / bandwidth

=======================  ======================  ============================
collective               bytes                   share that each rank sends
=======================  ======================  ============================
all-gather               of the whole result     (n - 1) / n
reduce-scatter           of the whole input      (n - 1) / n
all-to-all               of a rank's tensor      (n - 1) / n
all-reduce               of a rank's tensor      2 (n - 1) / n
broadcast                of the tensor           1
=======================  ======================  ============================

Thakur, Rabenseifner and Gropp (Optimization of collective communication operations in MPICH, IJHPCA 2005) derive the
shares, which are those of the *bus bandwidth* that NCCL's tests report. ``bandwidth`` is what one rank sends in one
direction: half of what a data sheet states for both. ``latency`` is the time of a collective of no bytes in a group of
this size: what a launch takes, if nothing is known of it, so that collectives of a few kilobytes between many ranks
take longer than this says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from remat_cli.errors import UsageError
from remat_cli.units import parse_bandwidth, parse_duration

SHARES: Mapping[str, Callable[[int], float]] = MappingProxyType(
    {
        "all-gather": lambda n: (n - 1) / n,
        "reduce-scatter": lambda n: (n - 1) / n,
        "all-to-all": lambda n: (n - 1) / n,
        "all-reduce": lambda n: 2 * (n - 1) / n,
        "broadcast": lambda n: float(n > 1),
    }
)
"""For each kind of collective the part of its bytes that a rank sends, by the number of ranks."""
ONE_QUEUE = "the collectives of all groups of ranks run one after another; PyTorch has a stream for each group"
"""What is assumed of a step that communicates over several dimensions of a mesh."""
MOST_RANKS = 1 << 20
"""Most ranks of a training that are accepted. Untuned: more than any training has."""
_FORM = "write 400GB/s, with a latency 400GB/s+20us, or one for each dimension of the mesh: fsdp=50GB/s,tp=400GB/s"


@dataclass(frozen=True, slots=True)
class Interconnect:
    """Bandwidths between ranks, and latencies.

    Attributes:
        bytes_per_s: What a rank sends in one direction, by the dimension of the mesh; under ``""`` for all.
        latency_us: Microseconds of a collective of no bytes, its launch included, under the same names; those that are
            missing take as long as a launch.
    """

    bytes_per_s: Mapping[str, float]
    latency_us: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> Interconnect:
        """``400GB/s`` for all, or ``fsdp=50GB/s,tp=400GB/s`` by the names of the dimensions of a mesh.

        A latency may follow each: ``400GB/s+20us``.

        Raises:
            UsageError: If it is neither, or a bandwidth is not finite.
        """
        rates: dict[str, float] = {}
        latencies: dict[str, float] = {}
        parts = text.split(",")
        for part in parts:
            name, sign, link = part.rpartition("=")
            name = name.strip()
            if bool(sign) != bool(name) or (not sign and len(parts) > 1) or name in rates:
                raise UsageError(f'"{text}" is not an interconnect', hint=_FORM)
            rate, plus, latency = link.partition("/s+")
            rates[name] = parse_bandwidth(f"{rate}/s" if plus else rate)
            if math.isinf(rates[name]):
                raise UsageError("an interconnect has a bandwidth, and inf is none", hint=_FORM)
            if plus:
                if not latency.strip()[-1:].isalpha():
                    raise UsageError(f'the latency "{latency}" has no unit', hint=_FORM)
                latencies[name] = 1e6 * parse_duration(latency)
        return cls(rates, latencies)

    def text(self) -> str:
        """What :meth:`of` reads, rounded to four digits."""
        return ",".join(
            (f"{name}=" if name else "")
            + f"{rate / 1e9:.4g}GB/s"
            + (f"+{self.latency_us[name]:.4g}us" if name in self.latency_us else "")
            for name, rate in self.bytes_per_s.items()
        )

    def require_dimensions(self, known: Iterable[str]) -> None:
        """Refuse names of dimensions that no mesh has.

        Raises:
            UsageError: If there is one.
        """
        names = sorted(set(known))
        for name in self.bytes_per_s:
            if name and name not in names:
                has = f"its dimensions are {', '.join(names)}" if names else "the dimensions of its mesh have no names"
                raise UsageError(f'the mesh of the step has no dimension "{name}": {has}', hint=_FORM)

    def us(self, kind: str, size: int, ranks: int, dimension: str, launch_us: float = 0.0) -> float:
        """Microseconds of a collective.

        Args:
            kind: A key of :data:`SHARES`.
            size: Its bytes, as the table above counts them.
            ranks: How many ranks take part.
            dimension: The dimension of the mesh that these are; empty if it is not known.
            launch_us: Microseconds of a launch, for links whose latency is not known.

        Raises:
            UsageError: If there is no bandwidth for that dimension.
        """
        if ranks == 1:
            return launch_us
        name = dimension if dimension in self.bytes_per_s else ""
        if name not in self.bytes_per_s:
            where = f'the dimension "{dimension}"' if dimension else f"a group of {ranks} ranks that is no dimension"
            raise UsageError(
                f"the step communicates over {where} of the mesh, and no bandwidth is given for it", hint=_FORM
            )
        return self.latency_us.get(name, launch_us) + 1e6 * SHARES[kind](ranks) * size / self.bytes_per_s[name]

    def document(self) -> dict[str, object]:
        """What the metadata of a graph says of it."""
        document: dict[str, object] = {"algorithm": "ring", "bytes_per_s": _named(self.bytes_per_s)}
        return document | ({"latency_us": _named(self.latency_us)} if self.latency_us else {})


def _named(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name or "all": number for name, number in numbers.items()}
