"""Where a node has to be allowed to be computed again for a bound to hold for every schedule in document order.

The retention model without in-stage rows is a relaxation of all schedules in document order, whatever order and
number of computes they have inside a stage: while node t runs for the first time, what it reads and writes and what is
kept into stage t+1 is resident in any of them. Over the full support (every stage, every node) its optimum is thus a
bound for document order. It stays one over the far smaller *event support* below.

Call recomputations in one stage *adjacent* if one reads the other or both read one value, and a connected set of them
a group. Stage t is an *event* of node k if node t reads k or an input u of k, if t-1 makes or reads u, or if t-1 is k.
Take a cheapest solution, S no larger than needed, and a group K of stage t of whose nodes none has an event there.
Nothing else in stage t reads what K reads or writes. Let O be what K writes and hands to stage t+1, and D what K reads
and stage t+1 does not get. Moving K to stage t+1 adds D to what is kept into stage t+1 and takes O away; moving it to
stage t-1 adds O to what is kept into stage t and takes D away, and neither node t nor node t-1 holds any of D by
itself. One of the two does not need more memory. D and O stay the same while K moves on in that direction, until a
node of K has an event, K meets an adjacent group, or a recomputation falls on another one and is saved. Each lowers
the number of recomputations or of groups without an event. So some cheapest solution has none of those: every
recomputation is linked to one that has an event in that stage, through recomputations of that same stage, all of
which are paid for. In-stage rows do not survive such moves: with them the support has to be the full one.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from remat_cli.graph.model import Graph
from remat_cli.milp.retention import Support, full_support


def affordable(prices: Sequence[float], most: float, graph: Graph) -> Support:
    """The full support without the nodes of which one recomputation costs more than ``most``.

    Args:
        prices: What recomputing each node adds to the cost at least, such as its cost; not negative.
        most: Solutions in which recomputation costs more do not matter.
        graph: With its closing node.
    """
    return tuple(stages if prices[i] <= most else () for i, stages in enumerate(full_support(graph)))


def common(one: Support, other: Support) -> Support:
    """Stages that are in both supports."""
    return tuple(tuple(sorted({*a} & {*b})) for a, b in zip(one, other, strict=True))


def event_support(graph: Graph, prices: Sequence[float], most: float) -> Support:
    """Stages in which some optimum of the model without in-stage rows computes each node again, and no others.

    Args:
        graph: With its closing node.
        prices: What recomputing each node adds to the cost at least; not negative.
        most: What all recomputations of one stage may add together: solutions in which they add more do not matter.

    Returns:
        For every node the stages with an event of a node that is linked to it by nodes which add ``most`` at most.
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
    """Events of all nodes on paths from ``start`` whose prices, both ends included, are ``most`` at most together."""
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
