"""The truth about all topological orders of tiny graphs. Shares no code with what searches them."""

import heapq
import itertools
from collections.abc import Iterator

from remat_cli.graph.model import Graph


def all_orders(graph: Graph) -> Iterator[tuple[int, ...]]:
    """Every topological order of a graph of at most about seven nodes."""
    n = len(graph.nodes)
    needs = [{graph.producer[v] for v in node.inputs} for node in graph.nodes]

    def extend(order: list[int]) -> Iterator[tuple[int, ...]]:
        if len(order) == n:
            yield tuple(order)
        for k in range(n):
            if k not in order and needs[k] <= set(order):
                yield from extend([*order, k])

    yield from extend([])


def peak_of(graph: Graph, order: tuple[int, ...]) -> int:
    """Peak of computing every node once in ``order``, fixed memory included, from the rules of the memory model."""
    at = {k: p for p, k in enumerate(order)}
    highest = sum(graph.size[v] for v in graph.outputs)
    for p, k in enumerate(order):
        live = graph.nodes[k].workspace
        for v, size in enumerate(graph.size):
            made = at[graph.producer[v]]
            last = len(order) if v in graph.outputs else max([made, *(at[j] for j in graph.readers[v])])
            live += size if made <= p <= last else 0
        highest = max(highest, live)
    return graph.fixed_memory + highest


def least_order_peak(graph: Graph) -> int:
    """Smallest peak, over all orders, of computing every node once: from one set of done nodes to the next."""
    n = len(graph.nodes)
    peaks: dict[frozenset[int], int] = {frozenset(): 0}
    for _ in range(n):
        following: dict[frozenset[int], int] = {}
        for done, peak in peaks.items():
            live = sum(
                size
                for v, size in enumerate(graph.size)
                if graph.producer[v] in done and (v in graph.outputs or not done.issuperset(graph.readers[v]))
            )
            for k in range(n):
                node = graph.nodes[k]
                if k in done or not done.issuperset(graph.producer[v] for v in node.inputs):
                    continue
                high = max(peak, live + sum(node.outputs) + node.workspace)
                now = done | {k}
                following[now] = min(high, following.get(now, high))
        peaks = following
    return graph.fixed_memory + min(peaks.values())


def cheapest_in_any_order(graph: Graph, budget: int) -> float | None:
    """Least cost of any schedule within ``budget`` bytes, first computations in any order; None if there is none."""
    everything = frozenset(range(len(graph.nodes)))
    room, outputs, tie = budget - graph.fixed_memory, frozenset(graph.outputs), itertools.count()
    queue: list[tuple[float, int, frozenset[int], frozenset[int]]] = [(0.0, next(tie), frozenset(), frozenset())]
    seen: set[tuple[frozenset[int], frozenset[int]]] = set()
    while queue:
        cost, _, done, resident = heapq.heappop(queue)
        if (done, resident) in seen:
            continue
        seen.add((done, resident))
        if done == everything and outputs <= resident:
            return cost
        for v in resident:
            heapq.heappush(queue, (cost, next(tie), done, resident - {v}))
        for k, node in enumerate(graph.nodes):
            made = frozenset(graph.values_of(k))
            if (k in done and not node.recompute) or made & resident or not resident.issuperset(node.inputs):
                continue
            if sum(graph.size[v] for v in resident | made) + node.workspace <= room:
                heapq.heappush(queue, (cost + node.cost, next(tie), done | {k}, resident | made))
    return None
