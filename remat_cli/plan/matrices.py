"""Sequences of computes to Checkmate's matrices R and S and back, and to images. Only this module knows R and S.

Stage t ends with the first computation of node t. R[t, i] says that node i is computed in stage t, S[t, v] that value
v is kept from stage t-1 into stage t.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remat_cli.graph.model import Graph
from remat_cli.plan.model import Compute, Plan

FIRST, AGAIN = 1, 2
"""Values of a cell of R: only first computations, or at least one recomputation."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """R and S as sets of index pairs.

    Attributes:
        computed: (t, i) with R[t, i] = 1; computations after the last first computation are in stage n.
        kept: For every value the half-open stage intervals (s, e]: kept into the stages s+1 .. e.
    """

    computed: frozenset[tuple[int, int]]
    kept: tuple[tuple[tuple[int, int], ...], ...]


def matrices_of(graph: Graph, computes: Sequence[int]) -> Matrices:
    """R and S of a sequence of computes.

    Raises:
        ValueError: If first computations are not in document order, or a node is read before it was computed.
    """
    stage = 0
    computed: set[tuple[int, int]] = set()
    made: dict[int, int] = {}  # value -> stage of its latest instance
    needed: dict[int, int] = {}  # value -> last stage that reads this instance
    kept: list[list[tuple[int, int]]] = [[] for _ in graph.size]
    for node in computes:
        if node > stage:
            raise ValueError(f"{graph.nodes[node].id} is computed before {graph.nodes[stage].id}")
        computed.add((stage, node))
        for value in graph.nodes[node].inputs:
            if value not in made:
                raise ValueError(f"{graph.nodes[node].id} is computed before its input {graph.value_name(value)}")
            needed[value] = stage
        for value in graph.values_of(node):
            if needed.get(value, -1) > made.get(value, stage):
                kept[value].append((made[value], needed[value]))
            made[value] = needed[value] = stage
        stage += node == stage
    for value in graph.outputs:
        needed[value] = len(graph.nodes)
    for value, last in needed.items():
        if last > made[value]:
            kept[value].append((made[value], last))
    return Matrices(frozenset(computed), tuple(tuple(intervals) for intervals in kept))


def is_frontier_advancing(graph: Graph, computes: Sequence[int]) -> bool:
    """Whether every stage runs its nodes in document order and each at most once (Checkmate 4.6)."""
    stage, last = 0, -1
    for node in computes:
        if node <= last or node > stage:
            return False
        stage, last = (stage + 1, -1) if node == stage else (stage, node)
    return stage == len(graph.nodes)


def straightened(graph: Graph, computes: Sequence[int]) -> tuple[int, ...]:
    """The frontier-advancing schedule that keeps what ``computes`` keeps from stage to stage.

    Returns:
        A sequence that runs in every stage only the necessary recomputations, in document order. It costs no more; its
        peak may be higher.
    """
    return least_recomputation_between(graph, matrices_of(graph, computes).kept)


def least_recomputation_between(graph: Graph, kept: Sequence[Sequence[tuple[int, int]]]) -> tuple[int, ...]:
    """The sequence with the fewest computes for a given S (Checkmate, Algorithm 2, phase two).

    It takes time in proportion to the number of intervals.

    Args:
        graph: The graph, with its closing node if one is needed.
        kept: S as the half-open stage intervals (s, e] of every value: kept into the stages s+1 .. e. The value is
            computed in stage s, or can be. Intervals of one value may touch, but not overlap.

    Returns:
        A sequence with, in every stage t and in document order, the computations without which node t could not run or
        a value kept into the next stage would be missing.
    """
    n = len(graph.nodes)
    entering: list[list[int]] = [[] for _ in range(n + 2)]
    leaving: list[list[int]] = [[] for _ in range(n + 2)]
    for value, intervals in enumerate(kept):
        for first, last in intervals:
            entering[first + 1].append(value)
            leaving[last + 1].append(value)
    computes: list[int] = []
    here: set[int] = set()
    for t in range(n):
        computes.extend(_stage(graph, t, here, [v for v in entering[t + 1] if v not in here]))
        here.difference_update(leaving[t + 1])
        here.update(entering[t + 1])
    return tuple(computes)


def _stage(graph: Graph, t: int, here: AbstractSet[int], gained: Iterable[int]) -> list[int]:
    """The nodes of stage t in order: node t, the makers of the ``gained`` values, and their missing inputs."""
    todo = [t, *{graph.producer[v] for v in gained}]
    chosen: set[int] = set()
    while todo:
        node = todo.pop()
        if node not in chosen:
            chosen.add(node)
            todo.extend(graph.producer[v] for v in graph.nodes[node].inputs if v not in here)
    return sorted(chosen)


if TYPE_CHECKING:
    from numpy import uint8
    from numpy.typing import NDArray


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
