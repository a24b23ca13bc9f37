"""The truth about tiny graphs, by searching all schedules. Shares no code with any strategy or formulation.

A state is (nodes computed for the first time so far, values resident, place within the stage). Dijkstra over it
gives the least cost under a budget; with ``minimize_peak`` a bottleneck search gives the least peak.
"""

import heapq
import itertools

from remat_cli.graph.model import Graph

State = tuple[int, frozenset[int], int, int, tuple[int, ...]]


def cheapest(graph: Graph, budget: int, *, passes: int | None = None, times: int | None = None) -> float | None:
    """Least cost of a schedule within ``budget`` bytes, or None if there is none.

    Args:
        graph: At most about six nodes.
        budget: Fixed memory included.
        passes: None for all schedules with first computations in document order. With a number, only those
            frontier-advancing ones that go through the nodes of a stage at most that many times, in order.
        times: Compute every node at most that often; None for as often as it takes.
    """
    for cost, _ in _search(graph, budget, passes, times):
        return cost
    return None


def least_peak(graph: Graph, *, passes: int | None = None) -> int:
    """The smallest budget within which there is a schedule."""
    total = graph.fixed_memory + sum(graph.size) + max((n.workspace for n in graph.nodes), default=0)
    low, high = graph.fixed_memory, total
    while low < high:
        middle = (low + high) // 2
        if cheapest(graph, middle, passes=passes) is None:
            low = middle + 1
        else:
            high = middle
    return low


def _search(graph: Graph, budget: int, passes: int | None, times: int | None):
    n = len(graph.nodes)
    room = budget - graph.fixed_memory
    outputs = frozenset(graph.outputs)
    order = itertools.count()
    # (cost, tie, first computations done, resident values, next node allowed in this pass, passes left, how often each
    # node was computed)
    left = passes if passes is not None else 0
    counts = (0,) * n if times is not None else ()
    queue: list[tuple[float, int, int, frozenset[int], int, int, tuple[int, ...]]] = [
        (0.0, next(order), 0, frozenset(), 0, left, counts)
    ]
    done: set[State] = set()
    while queue:
        cost, _, frontier, resident, place, left, counts = heapq.heappop(queue)
        if (frontier, resident, place, left, counts) in done:
            continue
        done.add((frontier, resident, place, left, counts))
        if frontier == n and outputs <= resident:
            yield cost, resident
            return
        for value in resident:  # drop one value at a time
            heapq.heappush(queue, (cost, next(order), frontier, resident - {value}, place, left, counts))
        if passes is not None and left > 1 and place > 0:  # start another pass through the nodes of this stage
            heapq.heappush(queue, (cost, next(order), frontier, resident, 0, left - 1, counts))
        for i in range(min(frontier + 1, n)):
            node = graph.nodes[i]
            made = frozenset(graph.values_of(i))
            new = i == frontier
            if (not new and not node.recompute) or made & resident or not resident.issuperset(node.inputs):
                continue
            if times is not None and counts[i] == times:
                continue
            if passes is not None and i < place and not new:
                continue
            if sum(graph.size[v] for v in resident | made) + node.workspace > room:
                continue
            after = (*counts[:i], counts[i] + 1, *counts[i + 1 :]) if times is not None else ()
            following = (0, passes) if new and passes is not None else (i + 1 if passes is not None else 0, left)
            heapq.heappush(queue, (cost + node.cost, next(order), frontier + new, resident | made, *following, after))
