"""Properties of graphs on which the conditions of stages depend."""

from __future__ import annotations

from remat_cli.graph.model import Graph

_MANY_PAIRS, _DENSE = 4_000, 12
"""With more near pairs than both, in all and per node, annealing and merging find more than windows do. Untuned."""


def near_pairs(graph: Graph) -> int:
    """Pairs of a node and a reader of it, or a reader of a reader.

    An upper bound on the (stage, node) pairs of a support of depth 1, except for chains of nodes that cost almost
    nothing.
    """
    readers = [sum(len(graph.readers[v]) for v in graph.values_of(i)) for i in range(len(graph.nodes))]
    return sum(1 + readers[j] for of in graph.readers for j in of)


def is_dense(graph: Graph) -> bool:
    """Whether reading is so dense that a model over all near pairs is slow to build and windows of it find little."""
    return near_pairs(graph) > max(_MANY_PAIRS, _DENSE * len(graph.nodes))
