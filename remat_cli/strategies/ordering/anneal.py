"""Simulated annealing of the order of nodes without recomputation, for a small peak or excess over a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from remat_cli.graph.arrays import Arrays, arrays_of
from remat_cli.graph.model import Graph
from remat_cli.kernels.ordering import State, run
from remat_cli.mip import Ints

_HOT = 0.05
"""First temperature, as a share of the target. Untuned."""
_COOLING = 0.01
"""Last temperature, as a share of the first. Untuned."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A graph as flat arrays.

    Attributes:
        arrays: The graph.
        kept: int64[n], bytes of the outputs that a node reads or that stay to the end.
    """

    arrays: Arrays
    kept: Ints

    @classmethod
    def of(cls, graph: Graph) -> Problem:
        """The arrays of ``graph``."""
        arrays = arrays_of(graph)
        read = np.where(np.diff(arrays.reader_start) > 0, arrays.size, 0)
        sums = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(read)])
        return cls(arrays, np.diff(sums[arrays.first_value]))


def anneal(
    problem: Problem,
    order: Sequence[int],
    target: int,
    moves: int,
    seed: int,
    *,
    floor: int | None = None,
    hot: float = _HOT,
) -> tuple[tuple[int, ...], int]:
    """Anneal from ``order`` to one with few bytes over ``target``, summed over its steps.

    Deterministic for a seed. Releases the interpreter lock while it runs.

    Args:
        problem: The graph.
        order: A topological order.
        target: Bytes without fixed memory.
        moves: Moves to try.
        seed: Random seed.
        floor: If the target is met, it is lowered, down to this; None to end at the target.
        hot: First temperature, as a share of the target.

    Returns:
        The best order, and its bytes over the last target.
    """
    n, values = len(order), len(problem.arrays.size)

    def zeros(count: int) -> Ints:
        return np.zeros(count, dtype=np.int64)

    state = State(
        seq=np.array(order, dtype=np.int64),
        pos=zeros(n),
        before=zeros(n + 1),
        last=zeros(values),
        new=zeros(n),
        level=zeros(n + 1),
        stamp=zeros(max(n, values)),
        mark=zeros(1),
        best=zeros(n),
    )
    least = target if floor is None else floor
    excess = run(
        *(problem.arrays, problem.kept, state, target, least, floor is not None, moves, hot, _COOLING * hot, seed)
    )
    return tuple(state.best.tolist()), excess
