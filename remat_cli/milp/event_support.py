"""The stages in which a node must be allowed to recompute for a bound on every schedule in document order.

The retention model without in-stage rows is a relaxation of all schedules in document order, with any order and number
of computes inside a stage: while node t runs for the first time, its inputs and outputs and the values kept into stage
t+1 are resident in all of them. Over the full support (every stage, every node) its optimum is therefore a bound for
document order. It stays one over the far smaller *event support* below.

Call recomputations in one stage *adjacent* if one reads the other or both read one value, and a connected set of them
a group. Stage t is an *event* of node k if node t reads k or an input u of k, if t-1 makes or reads u, or if t-1 is k.
Take a cheapest solution with S no larger than needed, and a group K in stage t of which no node has an event there.
Nothing else in stage t reads a value that K reads or writes. Let O be the values that K writes and stage t+1 receives,
and D the values that K reads and stage t+1 does not receive. Moving K to stage t+1 adds D to the values kept into stage
t+1 and removes O. Moving K to stage t-1 adds O to the values kept into stage t and removes D. Neither node t nor node
t-1 reads or writes any of D. One of the two moves needs no more memory. D and O stay the same while K moves on in that
direction, until a node of K has an event, K meets an adjacent group, or a recomputation meets another one of the same
node and is saved. Each case lowers the number of recomputations or of groups without an event. So some cheapest
solution has no such group: every recomputation is linked to one with an event in that stage, through recomputations of
the same stage, all of which are paid for. In-stage rows are not invariant under these moves: with them the support must
be the full one.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from remat_cli.graph.model import Graph
from remat_cli.milp.retention import Support, full_support


def affordable(prices: Sequence[float], most: float, graph: Graph) -> Support:
    """The full support without the nodes of which one recomputation costs more than ``most``.

    Args:
        prices: Lower bound on the cost of recomputing each node, such as its cost; not negative.
        most: Solutions with more expensive recomputation need not be in the support.
        graph: The graph with its closing node.
    """
    return tuple(stages if prices[i] <= most else () for i, stages in enumerate(full_support(graph)))


def common(one: Support, other: Support) -> Support:
    """Stages that are in both supports."""
    return tuple(tuple(sorted({*a} & {*b})) for a, b in zip(one, other, strict=True))


def event_support(graph: Graph, prices: Sequence[float], most: float) -> Support:
    """A support that holds some optimum of the model without in-stage rows.

    Args:
        graph: The graph with its closing node.
        prices: Lower bound on the cost of recomputing each node; not negative.
        most: Most cost of all recomputations of one stage; solutions with more need not be in the support.

    Returns:
        For every node the stages with an event of a node that is linked to it by nodes of total price ``most`` at most.
    """
    allowed = [node.recompute and prices[i] <= most for i, node in enumerate(graph.nodes)]
    events = [_events(graph, i) if allowed[i] else frozenset() for i in range(len(graph.nodes))]
    links = [_adjacent(graph, i, allowed) if allowed[i] else frozenset() for i in range(len(graph.nodes))]
    return tuple(
        tuple(sorted(t for t in _reached(i, links, prices, most, events) if i < t < len(graph.nodes)))
        if allowed[i]
        else ()
        for i in range(len(graph.nodes))
    )


def _events(graph: Graph, i: int) -> frozenset[int]:
    """Stages that are events of node i."""
    stages = {i + 1, *(j for v in graph.values_of(i) for j in graph.readers[v])}
    for u in graph.nodes[i].inputs:
        stages.add(graph.producer[u] + 1)
        for j in graph.readers[u]:
            stages.update((j, j + 1))
    return frozenset(stages)


def _adjacent(graph: Graph, i: int, allowed: Sequence[bool]) -> frozenset[int]:
    """Nodes whose recomputation in one stage with that of node i makes a group."""
    near = {j for v in graph.values_of(i) for j in graph.readers[v]}
    for u in graph.nodes[i].inputs:
        near.add(graph.producer[u])
        near.update(graph.readers[u])
    return frozenset(j for j in near if j != i and allowed[j])


def _reached(
    start: int, links: Sequence[frozenset[int]], prices: Sequence[float], most: float, events: Sequence[frozenset[int]]
) -> set[int]:
    """Events of all nodes on paths from ``start`` with a total price, both ends included, of at most ``most``.

    Dijkstra's algorithm: a group that links two nodes contains a path between them and pays for all nodes of it.
    """
    distance = {start: prices[start]}
    queue = [(prices[start], start)]
    found: set[int] = set()
    while queue:
        far, k = heapq.heappop(queue)
        if far > distance[k]:
            continue
        found |= events[k]
        for j in links[k]:
            further = far + prices[j]
            if further <= most and further < distance.get(j, float("inf")):
                distance[j] = further
                heapq.heappush(queue, (further, j))
    return found
