"""The links between the ranks of a training, and how long collectives take on them.

A collective of ``n`` ranks takes the time of a ring, in which every rank sends to the next one::

    time = launch + share * bytes / bandwidth

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
direction: half of what a data sheet states for both. Latency of the steps of a ring is left out, so that collectives of
a few kilobytes between many ranks take longer than this says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from remat_cli.errors import UsageError
from remat_cli.units import parse_bandwidth

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
_FORM = "write 400GB/s, or one for each dimension of the mesh: fsdp=50GB/s,tp=400GB/s"


@dataclass(frozen=True, slots=True)
class Interconnect:
    """Bandwidths between ranks.

    Attributes:
        bytes_per_s: What a rank sends in one direction, by the dimension of the mesh; under ``""`` for all.
    """

    bytes_per_s: Mapping[str, float]

    @classmethod
    def of(cls, text: str) -> Interconnect:
        """``400GB/s`` for all, or ``fsdp=50GB/s,tp=400GB/s`` by the names of the dimensions of a mesh.

        Raises:
            UsageError: If it is neither, or a bandwidth is not finite.
        """
        found: dict[str, float] = {}
        parts = text.split(",")
        for part in parts:
            name, sign, rate = part.rpartition("=")
            name = name.strip()
            if bool(sign) != bool(name) or (not sign and len(parts) > 1) or name in found:
                raise UsageError(f'"{text}" is not an interconnect', hint=_FORM)
            found[name] = parse_bandwidth(rate)
            if math.isinf(found[name]):
                raise UsageError("an interconnect has a bandwidth, and inf is none", hint=_FORM)
        return cls(found)

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

    def us(self, kind: str, size: int, ranks: int, dimension: str) -> float:
        """Microseconds of a collective, without its launch.

        Args:
            kind: A key of :data:`SHARES`.
            size: Its bytes, as the table above counts them.
            ranks: How many ranks take part.
            dimension: The dimension of the mesh that these are; empty if it is not known.

        Raises:
            UsageError: If there is no bandwidth for that dimension.
        """
        rate = self.bytes_per_s.get(dimension, self.bytes_per_s.get(""))
        if rate is None:
            where = f'the dimension "{dimension}"' if dimension else f"a group of {ranks} ranks that is no dimension"
            raise UsageError(
                f"the step communicates over {where} of the mesh, and no bandwidth is given for it", hint=_FORM
            )
        return 1e6 * SHARES[kind](ranks) * size / rate

    def document(self) -> dict[str, object]:
        """What the metadata of a graph says of it."""
        return {"algorithm": "ring", "bytes_per_s": {name or "all": rate for name, rate in self.bytes_per_s.items()}}
