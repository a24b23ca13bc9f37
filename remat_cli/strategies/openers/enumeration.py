"""The cheapest schedule of a graph of a few nodes, by Dijkstra's algorithm over all states of memory.

A state says how many nodes were computed for the first time, and which values are in memory. Edges free a value, or
compute a node whose inputs are there; recomputation alone costs something here, because all first computations are part
of every schedule. Bytes are whole numbers, so sizes may be as uneven as they like, and a "no" needs no solver's word.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from itertools import count

from remat_cli.graph.model import Graph
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Bound
from remat_cli.strategies.bounds import whole
from remat_cli.strategies.engine import Once
from remat_cli.tolerances import ROUNDING

_MOST_STATES = 20_000
"""States to look at before the search is left to others: about half a second."""
_LOOK_AT_CLOCK = 256

_Step = tuple[int, "_Step | None"]
"""A computed node, and the steps before it."""


class Enumeration(Once):
    """Looks at all states."""

    def attempt(self) -> None:
        """Offer the cheapest schedule in document order, and raise the bound to its cost, or as far as was looked."""
        incumbent = self.incumbent
        incumbent.report("enumerating")
        graph, extra = incumbent.graph, math.inf
        for number, (least, last) in enumerate(_states(graph, incumbent.budget_bytes - graph.fixed_memory)):
            if last is not None:
                incumbent.offer(_sequence(last))
            early = number % _LOOK_AT_CLOCK == 0 and incumbent.context.control.stopping()
            if last is not None or number == _MOST_STATES or early:
                extra = least
                break
        cost = (graph.total_cost + extra) * (1 - ROUNDING)
        incumbent.raise_bound(Bound(whole(graph, cost), Scope.DOCUMENT_ORDER))


def _states(graph: Graph, room: int) -> Iterator[tuple[float, _Step | None]]:
    """The cost of recomputation of each state, ascending; with the first final state, the steps to it."""
    nodes, n = graph.nodes, len(graph.nodes)
    reads = [_bits(node.inputs) for node in nodes]
    makes = [_bits(graph.values_of(i)) for i in range(n)]
    made_bytes = [sum(node.outputs) for node in nodes]
    outputs, tie = _bits(graph.outputs), count()
    # (cost of recomputation, tie, nodes computed for the first time, values in memory, their bytes, steps)
    queue: list[tuple[float, int, int, int, int, _Step | None]] = [(0.0, next(tie), 0, 0, 0, None)]
    seen: set[tuple[int, int]] = set()
    while queue:
        cost, _, done, resident, held, steps = heapq.heappop(queue)
        if (done, resident) in seen:
            continue
        seen.add((done, resident))
        if done == n and outputs & ~resident == 0:
            yield cost, steps
            return
        yield cost, None
        for value, size in enumerate(graph.size):
            if resident >> value & 1:
                heapq.heappush(queue, (cost, next(tie), done, resident & ~(1 << value), held - size, steps))
        for i in range(min(done + 1, n)):
            if (i < done and not nodes[i].recompute) or reads[i] & ~resident or makes[i] & resident:
                continue
            after = held + made_bytes[i]
            if after + nodes[i].workspace <= room:
                added = nodes[i].cost if i < done else 0.0
                state = (max(done, i + 1), resident | makes[i], after)
                heapq.heappush(queue, (cost + added, next(tie), *state, (i, steps)))


def _bits(numbers: Iterable[int]) -> int:
    return sum(1 << number for number in numbers)


def _sequence(last: _Step) -> list[int]:
    """The computed nodes in order."""
    computes: list[int] = []
    step: _Step | None = last
    while step is not None:
        node, step = step
        computes.append(node)
    return computes[::-1]
