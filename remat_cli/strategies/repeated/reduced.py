"""A training step without the values that pass by its blocks, so that blocks meet only in what one hands to the next.

Language models make a few values once and read them in every block: a causal mask, the cosines and sines of positions.
Such a value passes by every cut between blocks, so that the forward part would be one block. If these values are small
they stay in memory, and the chain is cut as if nobody read them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from remat_cli.graph.model import Graph, Phase
from remat_cli.strategies.chains.opener import forward_end

_SHARE = 0.05
"""Most bytes of values that stay, as a share of the room. Untuned."""
_FEWEST_BLOCKS = 4
"""Spans down to that of a forward part of so many blocks are tried, then half as long ones, and so on. Untuned."""
_HALVINGS = 8


@dataclass(frozen=True, slots=True)
class Reduced:
    """A graph whose nodes have the numbers of the original.

    Attributes:
        graph: The graph without reads of the values that stay; every node has a phase.
        staying: The values that stay.
        staying_bytes: Their bytes.
    """

    graph: Graph
    staying: frozenset[int]
    staying_bytes: int


def reduced(graph: Graph, room_bytes: int) -> Reduced:
    """``graph`` with the set of staying values for which its largest block is smallest.

    Args:
        graph: The graph; without phases, the stages up to the no-remat peak count as the forward part.
        room_bytes: The budget without fixed memory.
    """
    end = forward_end(graph)
    reach = [max((j for j in of if j < end), default=i) for i, of in zip(graph.producer, graph.readers, strict=True)]
    forward = range(graph.first_value[end])
    best: tuple[int, frozenset[int]] = (_largest(graph, end, reach, frozenset()), frozenset())
    for halving in range(_HALVINGS):
        span = end / _FEWEST_BLOCKS / 2**halving
        staying = frozenset(v for v in forward if reach[v] - graph.producer[v] > span)
        if sum(graph.size[v] for v in staying) > _SHARE * room_bytes:
            break
        if staying != best[1]:
            best = min(best, (_largest(graph, end, reach, staying), staying), key=lambda found: found[0])
    staying = best[1]
    nodes = [
        replace(
            node,
            inputs=tuple(v for v in node.inputs if v not in staying),
            phase=node.phase or (Phase.FORWARD if i < end else Phase.BACKWARD),
        )
        for i, node in enumerate(graph.nodes)
    ]
    lasting = tuple(v for v in graph.outputs if v not in staying)
    return Reduced(replace(graph, nodes=tuple(nodes), outputs=lasting), staying, sum(graph.size[v] for v in staying))


def _largest(graph: Graph, end: int, reach: list[int], staying: frozenset[int]) -> int:
    """Number of nodes of the largest block between forward nodes that no other forward value passes by."""
    largest = begin = furthest = 0
    for i in range(end):
        if furthest <= i:
            largest, begin = max(largest, i + 1 - begin), i + 1
        furthest = max(furthest, *(reach[v] for v in graph.values_of(i) if v not in staying), 0)
    return max(largest, end - begin)
