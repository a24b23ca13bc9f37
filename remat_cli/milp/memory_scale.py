"""Scales and rounds the bytes in the rows of a model, so that no schedule is lost.

Sizes of one byte beside 2^40 are ordinary (scalars beside activations). Divided by the budget they become coefficients
that a solver takes for zero, in some rows and not in others, and then it "proves" that nothing fits. So sizes are
stated as whole multiples of a step, divided by a power of two. Such numbers are exact in floats, and so are their sums.

If the greatest common divisor of all sizes is fine enough it is the step, and nothing is rounded. Otherwise sizes and
budget are rounded *down* in rows that limit memory. A schedule within the budget meets those rows: the sum of sizes
that were rounded down is at most the budget rounded down, as it is a whole number of steps. So bounds and "no" remain
true. Schedules that exceed the budget by less than what was rounded off are cut off when a solution holds one
(:meth:`remat_cli.milp.decode.Decoder.cover_cuts`). Rows that demand bytes to be freed are rounded the other way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from remat_cli.graph.model import Graph

_WHOLE_UNITS = 10_000
"""Largest room, in units of the sizes' gcd, for which rows are stated in those units: at this size a solver's tolerance
of 1e-6 stays far below one unit."""
FINEST = 2.0**-24
"""The smallest coefficient, as a share of the room: 6e-8. Smaller ones are dropped by some solvers, in some rows."""
_STEPS = round(1 / FINEST)


@dataclass(frozen=True, slots=True)
class MemoryScale:
    """The form in which a model states bytes.

    Attributes:
        step_bytes: Sizes are stated as whole multiples of this.
        steps: Steps in one unit; a power of two.
    """

    step_bytes: int
    steps: int

    @classmethod
    def of(cls, graph: Graph, room_bytes: int) -> MemoryScale:
        """The form for the sizes of ``graph`` in a room of ``room_bytes`` (the budget without fixed memory)."""
        gcd = math.gcd(*graph.size, *(node.workspace for node in graph.nodes)) or 1
        room_bytes = max(1, room_bytes)
        if room_bytes <= _WHOLE_UNITS * gcd:
            return cls(gcd, 1)
        step = gcd if room_bytes <= _STEPS * gcd else -(-room_bytes // _STEPS)
        return cls(step, 1 << (room_bytes // step).bit_length())

    @property
    def unit_bytes(self) -> int:
        """Bytes of one unit."""
        return self.step_bytes * self.steps

    def down(self, count: int) -> float:
        """``count`` bytes in units, rounded down."""
        return count // self.step_bytes / self.steps

    def up(self, count: int) -> float:
        """``count`` bytes in units, rounded up."""
        return -(-count // self.step_bytes) / self.steps
