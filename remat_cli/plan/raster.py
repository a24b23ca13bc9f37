"""The matrices R and S of a plan as images of bounded size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from remat_cli.plan.matrices import matrices_of
from remat_cli.plan.model import Compute, Plan

if TYPE_CHECKING:
    from numpy import uint8
    from numpy.typing import NDArray

FIRST, AGAIN = 1, 2
"""Values of a cell of R: only first computations, or at least one recomputation."""


@dataclass(frozen=True, slots=True)
class Raster:
    """R and S with a cell for each ``each`` x ``each`` stages and nodes.

    Attributes:
        each: 1 unless the graph has more nodes than the requested number of cells.
        computed: uint8[stages, nodes]; ``AGAIN`` if anything in the cell is a recomputation, else ``FIRST``, else 0.
        kept: uint8[stages, nodes]; 1 if a value of these nodes is kept into one of these stages.
    """

    each: int
    computed: NDArray[uint8]
    kept: NDArray[uint8]


def raster(plan: Plan, at_most: int = 400) -> Raster | None:
    """R and S of ``plan``, in at most ``at_most`` + 1 rows; None for a plan that has no stages.

    Stages end with the first computations in document order (Checkmate 4.6); a plan with another order, or one that
    reads a value that was never computed, has none. The last row is for computations after the last first computation.
    """
    import numpy as np

    graph = plan.graph
    try:
        matrices = matrices_of(graph, [s.node for s in plan.statements if isinstance(s, Compute)])
    except (ValueError, KeyError):  # KeyError: an output of the graph was never computed
        return None
    n = len(graph.nodes)
    each = max(1, -(-n // at_most))
    shape = n // each + 1, max(1, -(-n // each))
    computed, kept = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
    for stage, node in matrices.computed:
        cell = stage // each, node // each
        computed[cell] = max(computed[cell], FIRST if stage == node else AGAIN)
    for value, intervals in enumerate(matrices.kept):
        column = graph.producer[value] // each
        for first, last in intervals:
            kept[(first + 1) // each : last // each + 1, column] = 1
    return Raster(each, computed, kept)
