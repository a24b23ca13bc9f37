"""How nodes of the zoo's graphs are costed: FLOPs, or whatever a cost model makes of FLOPs and bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Work:
    """What a node does.

    Attributes:
        op: Kind of operation.
        flops: FLOPs; two for every multiply-accumulate.
        moved_bytes: Bytes that it reads and writes: its inputs, outputs, weights and gradients of weights.
        product: Whether it multiplies matrices or convolves: then FLOPs count, else nearly all of its time is moving.
        dtype_bytes: Bytes of one number.
    """

    op: str
    flops: int
    moved_bytes: int
    product: bool
    dtype_bytes: int


@dataclass(frozen=True, slots=True)
class CostModel:
    """A unit and a cost for every node.

    Attributes:
        unit: Unit of the costs.
        cost: The cost of a node's work.
        description: Entry ``costs`` of the graph's metadata; none for FLOPs, which need no words.
    """

    unit: str
    cost: Callable[[Work], float]
    description: Mapping[str, Any] = field(default_factory=dict)


FLOPS = CostModel("flops", lambda work: float(work.flops))
"""The costs that graphs have unless others are asked for."""
