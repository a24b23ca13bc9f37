"""From a schedule with much recomputation to one with only what a budget needs.

Where the given schedule frees a value and recomputes it later, the value here becomes *evictable*: it stays until
memory runs out, and then evictable values are freed in the order of cost per byte. A recomputation of a resident value
is left out. So free memory replaces recomputation, as in the public implementation of Kumar et al.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from remat_cli.graph.model import Graph
from remat_cli.plan.derive import prune
from remat_cli.plan.liveness import reads_at_end, walk_back

_ROUNDS = 6


def in_document_order(graph: Graph, computes: Sequence[int]) -> tuple[int, ...]:
    """``computes`` with first computations in document order: missing earlier nodes are inserted before a node.

    Nodes that may run only once do.
    """
    ordered: list[int] = []
    first = 0
    for node in computes:
        if node >= first:
            ordered.extend(range(first, node + 1))
            first = node + 1
        elif graph.nodes[node].recompute:
            ordered.append(node)
    return (*ordered, *range(first, len(graph.nodes)))


def fitted(graph: Graph, computes: Sequence[int], budget_bytes: int | None) -> list[tuple[int, ...]]:
    """Schedules, one per round, that free what ``computes`` frees, but only when memory runs out.

    Args:
        graph: The graph.
        computes: A schedule in document order.
        budget_bytes: Fixed memory included; None for no limit. Exceeded where no value is evictable.
    """
    rounds = [prune(graph, computes)]
    for _ in range(_ROUNDS):
        walked = prune(graph, _walk(graph, rounds[-1], budget_bytes))
        if walked == rounds[-1]:
            break
        rounds.append(walked)
    return rounds


def _endings(graph: Graph, computes: Sequence[int]) -> list[list[tuple[int, bool]]]:
    """For every position the values whose instances end there, and whether a later instance is needed."""
    ending: list[list[tuple[int, bool]]] = [[] for _ in computes]
    needed = set(graph.outputs)
    for position, _, dying in walk_back(graph, computes, reads_at_end(graph, computes)):
        ending[position] = [(v, v in needed) for v in dying]
        needed.update(graph.nodes[computes[position]].inputs)
    return ending


def _walk(graph: Graph, computes: Sequence[int], budget_bytes: int | None) -> list[int]:
    """One round."""
    room = None if budget_bytes is None else budget_bytes - graph.fixed_memory
    walked: list[int] = []
    first = 0
    there: set[int] = set()
    may_go: dict[int, float] = {}  # evictable values, with their cost per byte
    heap: list[tuple[float, int]] = []  # the same; may hold values that are no longer evictable
    used = 0
    for i, ending in zip(computes, _endings(graph, computes), strict=True):
        values = graph.values_of(i)
        unread = {v for v, _ in ending}
        for v in values:
            may_go.pop(v, None)
        if i == first or any(v not in there and v not in unread for v in values):
            used += sum(graph.size[v] for v in values if v not in there)
            there.update(values)
            while room is not None and used + graph.nodes[i].workspace > room and may_go:
                rate, victim = heappop(heap)
                if may_go.get(victim) != rate:  # it was needed since
                    continue
                del may_go[victim]
                there.remove(victim)
                used -= graph.size[victim]
            walked.append(i)
            first += i == first
        for v, again in ending:
            maker = graph.nodes[graph.producer[v]]
            if v not in there:
                continue
            if not again:
                there.remove(v)
                used -= graph.size[v]
            elif maker.recompute and graph.size[v]:
                may_go[v] = maker.cost / graph.size[v]
                heappush(heap, (may_go[v], v))
    return walked
