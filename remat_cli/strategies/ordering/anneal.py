"""Simulated annealing on the order in which nodes run, each once: for a small peak, or for few bytes over a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from remat_cli.graph.model import Graph
from remat_cli.kernels.ordering import run
from remat_cli.mip import Bools, Ints

_HOT = 0.05
"""First temperature, as a share of the target."""
_COOLING = 0.01
"""Last temperature, as a share of the first."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A graph as flat arrays.

    Attributes:
        own: int64[n], bytes of outputs and workspace.
        kept: int64[n], bytes of the outputs that somebody reads or that stay to the end.
        size: int64[V], bytes.
        stays: bool[V], graph outputs.
        producer: int64[V].
        input_start: int64[n + 1], into ``inputs``.
        inputs: int64[E].
    """

    own: Ints
    kept: Ints
    size: Ints
    stays: Bools
    producer: Ints
    input_start: Ints
    inputs: Ints

    @classmethod
    def of(cls, graph: Graph) -> Problem:
        """The arrays of ``graph``."""
        stays = np.zeros(len(graph.size), dtype=np.bool_)
        stays[list(graph.outputs)] = True
        counts = [len(node.inputs) for node in graph.nodes]
        kept = [
            sum(graph.size[v] for v in graph.values_of(k) if graph.readers[v] or stays[v]) for k in range(len(counts))
        ]
        return cls(
            own=np.array([sum(node.outputs) + node.workspace for node in graph.nodes], dtype=np.int64),
            kept=np.array(kept, dtype=np.int64),
            size=np.array(graph.size, dtype=np.int64),
            stays=stays,
            producer=np.array(graph.producer, dtype=np.int64),
            input_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            inputs=np.array([v for node in graph.nodes for v in node.inputs], dtype=np.int64),
        )


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
        floor: Where the target is met, lower it and go on until it is this; None to end there.
        hot: First temperature, as a share of the target.

    Returns:
        The best order, and its bytes over the last target.
    """
    p = problem
    arrays = (p.own, p.kept, p.size, p.stays, p.producer, p.input_start, p.inputs)
    least = target if floor is None else floor
    best, excess = run(
        arrays, np.array(order, dtype=np.int64), target, least, floor is not None, moves, hot, _COOLING * hot, seed
    )
    return tuple(int(k) for k in best), int(excess)
