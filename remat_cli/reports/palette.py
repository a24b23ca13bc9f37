"""Colours of charts and figures, fit for the colour-blind: of strategies, of kinds of values, and of costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from remat_cli.plan.occupancy import Kind

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C564B")
"""Okabe and Ito's palette, and a brown."""

KINDS = {
    Kind.FIXED: "#999999",
    Kind.FORWARD: "#0072B2",
    Kind.PLAIN: "#0072B2",
    Kind.LOSS: "#CC79A7",
    Kind.BACKWARD: "#56B4E9",
    Kind.UPDATE: "#009E73",
    Kind.RECOMPUTED: "#E69F00",
    Kind.FETCHED: "#009E73",
    Kind.WORKSPACE: "#F0E442",
}
BUDGET = "#D55E00"
PATTERNS = {Kind.RECOMPUTED: "/", Kind.FETCHED: "x", Kind.WORKSPACE: ".", Kind.BACKWARD: "\\"}
"""Hatching, for print without colour."""


_DECADES = 6
"""Costs below the largest by more powers of ten have the same shade."""
_LOWEST, _HIGHEST = 0.45, 0.95
"""Heights of boxes, in rows."""
_TICKS = 3
LIGHT = 0.45
"""On colours above this share of the scale, black text has more contrast than white."""


@dataclass(frozen=True, slots=True)
class Shades:
    """A scale of powers of ten, from ``low`` to ``high``."""

    low: int
    high: int

    @classmethod
    def of(cls, costs: Sequence[float]) -> Shades:
        """The scale for ``costs``; those of zero count as the cheapest."""
        top = max(costs, default=0.0)
        if top <= 0:
            return cls(0, 1)
        least = max(min(cost for cost in costs if cost > 0), top * 10.0**-_DECADES)
        low = math.floor(math.log10(least))
        return cls(low, max(math.ceil(math.log10(top)), low + 1))

    def share(self, cost: float) -> float:
        """The place of ``cost`` on the scale, 0 to 1."""
        power = math.log10(cost) if cost > 0 else self.low
        return min(1.0, max(0.0, (power - self.low) / (self.high - self.low)))

    def ticks(self) -> list[int]:
        """A few powers of ten of the scale, its ends among them."""
        return sorted({round(self.low + k * (self.high - self.low) / (_TICKS - 1)) for k in range(_TICKS)})


def box_height(made: int, most: int) -> float:
    """The height of a box that makes ``made`` bytes, in rows; ``most`` bytes have the largest."""
    return round(_LOWEST + (_HIGHEST - _LOWEST) * math.sqrt(made / most), 3) if most else _LOWEST
