"""The truth about tiny graphs, by searching all schedules. Shares no code with any strategy or formulation.

A state is (nodes computed for the first time so far, values resident, place within the stage). Dijkstra over it
gives the least cost under a budget, and a bottleneck search the least peak.
"""

import heapq
import math

from remat_cli.graph.model import Graph

State = tuple[int, int, int, int, tuple[int, ...]]


def cheapest(graph: Graph, budget: int, *, passes: int | None = None, times: int | None = None) -> float | None:
    """Least cost of a schedule within ``budget`` bytes, or None if there is none.

    Args:
        graph: At most about six nodes.
        budget: Fixed memory included.
        passes: None for all schedules with first computations in document order. With a number, only those
            frontier-advancing ones that go through the nodes of a stage at most that many times, in order.
        times: Compute every node at most that often; None for as often as it takes.
    """
    return _least(graph, budget - graph.fixed_memory, passes, times, peak=False)


def least_peak(graph: Graph, *, passes: int | None = None) -> int:
    """The smallest budget within which there is a schedule."""
    found = _least(graph, math.inf, passes, None, peak=True)
    assert found is not None
    return graph.fixed_memory + int(found)


def _least(  # noqa: C901 - one loop over all kinds of steps, so that it can be checked by reading
    graph: Graph, room: float, passes: int | None, times: int | None, *, peak: bool
) -> float | None:
    """The least sum of costs; or, for a ``peak``, the least of the most bytes that computations take.

    Sets of values are the bits of integers. A state is how many first computations are done, the values resident, the
    next node allowed in this pass, the passes left, and how often each node was computed.
    """
    n, size = len(graph.nodes), graph.size
    made = [sum(1 << v for v in graph.values_of(i)) for i in range(n)]
    read = [sum({1 << v for v in node.inputs}) for node in graph.nodes]
    bytes_made = [sum(size[v] for v in graph.values_of(i)) for i in range(n)]
    outputs = sum({1 << v for v in graph.outputs})
    bits = [(1 << v, size[v]) for v in range(len(size))]
    queue: list[tuple[float, int, State]] = [(0.0, 0, (0, 0, 0, passes or 0, (0,) * n if times is not None else ()))]
    done: set[State] = set()

    def push(cost: float, held: int, state: State) -> None:
        if state not in done:
            heapq.heappush(queue, (cost, held, state))

    while queue:
        cost, held, state = heapq.heappop(queue)
        if state in done:
            continue
        done.add(state)
        frontier, resident, place, left, counts = state
        if frontier == n and not outputs & ~resident:
            return cost
        for bit, size_of_bit in bits:  # drop one value at a time
            if resident & bit:
                push(cost, held - size_of_bit, (frontier, resident ^ bit, place, left, counts))
        if passes is not None and left > 1 and place > 0:  # start another pass through the nodes of this stage
            push(cost, held, (frontier, resident, 0, left - 1, counts))
        for i in range(min(frontier + 1, n)):
            node, new = graph.nodes[i], i == frontier
            if (not new and not node.recompute) or made[i] & resident or read[i] & ~resident:
                continue
            if times is not None and counts[i] == times:
                continue
            if passes is not None and i < place and not new:
                continue
            taken = held + bytes_made[i] + node.workspace
            if taken > room:
                continue
            after = (*counts[:i], counts[i] + 1, *counts[i + 1 :]) if times is not None else ()
            following = (0, passes) if new and passes is not None else (i + 1 if passes is not None else 0, left)
            sum_or_most = max(cost, taken) if peak else cost + node.cost
            push(sum_or_most, held + bytes_made[i], (frontier + new, resident | made[i], *following, after))
    return None
