"""A bound on the time that ignores memory: every node once, in document order, each queue with its heads and tails.

A node has a head, before which it cannot start, and a tail, which passes after its end. Of the nodes of one queue with
a head of at least r, all run one after another after r (Carlier, "The one-machine sequencing problem", European Journal
of Operational Research 11, 1982).
"""

from __future__ import annotations

from collections.abc import Sequence

from remat_cli.graph.model import Graph, NodeQueue
from remat_cli.graph.order import ancestors, descendants
from remat_cli.tolerances import SUM_ROUNDING

_MOST_NODES = 4_000
"""Larger graphs get no such bound: the sets of ancestors would take too much memory."""


def time_once(graph: Graph) -> float:
    """No plan in document order, in which free collectives may be at any place, takes less time; 0 for none known."""
    if len(graph.nodes) > _MOST_NODES:
        return 0.0
    heads, tails = heads_and_tails(graph)
    least = 0.0
    for queue in NodeQueue:
        members = [k for k, node in enumerate(graph.nodes) if node.queue is queue]
        work, tail = 0.0, float("inf")
        for k in sorted(members, key=lambda k: -heads[k]):
            work += graph.nodes[k].cost
            tail = min(tail, tails[k])
            least = max(least, heads[k] + work + tail)
    return least * (1 - SUM_ROUNDING)


def heads_and_tails(graph: Graph) -> tuple[list[float], list[float]]:
    """How long before each node cannot start, and what passes after its end, in every plan in document order."""
    free = [graph.moves_freely(k) for k in range(len(graph.nodes))]
    return _heads(graph, free, ancestors(graph)), _tails(graph, free, descendants(graph))


def _heads(graph: Graph, free: Sequence[bool], above: Sequence[int]) -> list[float]:
    """Before which each node cannot start.

    A node waits for what it reads and for all collectives above it, which run one after another. If its place is in
    document order, it also waits for the node of its queue before it, and for all computations before it.
    """
    heads: list[float] = []
    ends: list[float] = []
    before = dict.fromkeys(NodeQueue, 0.0)
    for k, node in enumerate(graph.nodes):
        made = (ends[graph.producer[v]] for v in node.inputs)
        head = max([_collectives(graph, above[k]), *made])
        if not free[k]:
            head = max(head, before[node.queue], before[NodeQueue.COMPUTE])
            before[node.queue] = head + node.cost
        heads.append(head)
        ends.append(head + node.cost)
    return heads


def _tails(graph: Graph, free: Sequence[bool], below: Sequence[int]) -> list[float]:
    """What passes after the end of each node: the same towards the end of the plan."""
    n = len(graph.nodes)
    tails = [0.0] * n
    after = dict.fromkeys(NodeQueue, 0.0)
    for k in range(n - 1, -1, -1):
        node = graph.nodes[k]
        readers = {r for v in graph.values_of(k) for r in graph.readers[v]}
        tail = max([_collectives(graph, below[k]), *(graph.nodes[r].cost + tails[r] for r in readers)])
        if not free[k]:
            tail = max(tail, after[node.queue])
            if node.queue is NodeQueue.COMPUTE:
                tail = max(tail, after[NodeQueue.COMMUNICATION])
            after[node.queue] = node.cost + tail
        tails[k] = tail
    return tails


def _collectives(graph: Graph, chosen: int) -> float:
    """The cost of the collectives in a bit set."""
    cost = 0.0
    while chosen:
        lowest = chosen & -chosen
        node = graph.nodes[lowest.bit_length() - 1]
        cost += node.cost if node.queue is NodeQueue.COMMUNICATION else 0.0
        chosen ^= lowest
    return cost
