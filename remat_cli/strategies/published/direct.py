"""Direct rounding of Checkmate's relaxation: every entry of R and S by itself, which rarely leaves a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from remat_cli.graph.model import Graph
from remat_cli.mip import Bools, Floats, Ints

if TYPE_CHECKING:
    from remat_cli.milp.checkmate import CheckmateModel

_NEVER, _ALWAYS = -1, -2


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Where R and S stand in a solution of the frontier-advancing form.

    Attributes:
        graph: The graph, with its closing node if it needs one.
        computed: int64[n, n], the column of R[t, k]; -1 for a constant 0, -2 for a constant 1.
        kept: int64[n, values], the same of S[t, v].
    """

    graph: Graph
    computed: Ints
    kept: Ints

    @classmethod
    def of(cls, stated: CheckmateModel) -> Entries:
        """The entries of a model."""
        graph = stated.graph
        n = len(graph.nodes)
        computed = np.full((n, n), _NEVER, dtype=np.int64)
        kept = np.full((n, len(graph.size)), _NEVER, dtype=np.int64)
        for matrix, columns in ((computed, stated.R), (kept, stated.S)):
            for place, column in columns.items():
                matrix[place] = column
        for place in stated.always:
            computed[place] = _ALWAYS
        return cls(graph, computed, kept)

    def levels(self, values: Floats) -> tuple[Floats, Floats]:
        """R* and S* of a solution: float64[n, n] and float64[n, values]."""
        padded = np.append(values, [1.0, 0.0])  # columns -2 and -1
        return padded[self.computed], padded[self.kept]

    def broken(self, computed: Bools, kept: Bools) -> Ints:
        """How many of the rows (1b) and (1c) each rounding violates.

        Args:
            computed: bool[samples, n, n], R rounded.
            kept: bool[samples, n, values], S rounded.

        Returns:
            int64[samples].
        """
        graph = self.graph
        maker = np.array(graph.producer, dtype=np.int64)
        reads = [(v, k) for v, readers in enumerate(graph.readers) for k in readers]
        values, readers = np.array(reads, dtype=np.int64).reshape(-1, 2).T
        there = computed[:, :, maker] | kept
        unread = computed[:, :, readers] & ~there[:, :, values]
        unkept = kept[:, 1:] & ~there[:, :-1]
        counts: Ints = unread.sum(axis=(1, 2)) + unkept.sum(axis=(1, 2))
        return counts

    def computes(self, computed: Bools, nodes: int) -> tuple[int, ...]:
        """The schedule of one rounding of R, row by row, without the closing node."""
        return tuple(int(k) for _, k in np.argwhere(computed) if k < nodes)
