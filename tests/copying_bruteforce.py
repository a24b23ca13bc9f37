"""The least time of any plan with copies, by searching all lists of statements. Shares no code with any strategy.

A state is what is done, on the device, on the host and in flight, with all clocks relative to the compute queue. Every
plan in document order with any copies is a path: compute a node, free a value, copy it out, fetch it, release it.
"""

import heapq
import itertools
import math
import random
from dataclasses import replace

from families import varied_graph

from remat_cli.graph.model import Graph, Node
from remat_cli.plan.host import Host


class TooMany(Exception):
    """A graph with too many states for the search."""


def least_time(  # noqa: C901
    graph: Graph, budget: int, host: Host, *, recompute: bool = True, most: int = 400_000
) -> float | None:
    """Least time of a plan within ``budget`` bytes, or None if there is none.

    Args:
        graph: At most about five nodes; costs are seconds.
        budget: Fixed memory included.
        host: Bandwidths, latency and memory.
        recompute: Whether nodes may be computed again.
        most: Most states before the search gives up.

    Raises:
        TooMany: If it gives up.
    """
    n, room = len(graph.nodes), budget - graph.fixed_memory
    size = graph.size
    out = [host.latency_s + s / host.out_bytes_per_s for s in size]
    back = [host.latency_s + s / host.in_bytes_per_s for s in size]
    outputs = frozenset(graph.outputs)
    host_room = math.inf if host.memory_bytes is None else host.memory_bytes
    costs = [sum(node.cost for node in graph.nodes[k:]) for k in range(n + 1)]
    order = itertools.count()
    # State: (first computations done, device, slots, out, in); device: (value, ready, busy), slots: (value, ready,
    # busy), all relative to the clock of the compute queue and at least 0.
    start = (0, (), (), 0.0, 0.0)
    queue = [(graph.total_cost, next(order), 0.0, start)]
    best: dict = {}

    def push(clock: float, frontier: int, device: dict, slots: dict, o: float, i: float) -> None:
        def rel(x: float) -> float:
            return round(x - clock, 9) if x > clock else 0.0

        state = (
            frontier,
            tuple(sorted([(v, rel(a), rel(b)) for v, (a, b) in device.items()])),
            tuple(sorted([(v, rel(a), rel(b)) for v, (a, b) in slots.items()])),
            rel(o),
            rel(i),
        )
        if best.get(state, math.inf) > clock + 1e-12:
            heapq.heappush(queue, (max(clock + costs[frontier], o, i), next(order), clock, state))

    while queue:
        time, _, clock, state = heapq.heappop(queue)
        if best.get(state, math.inf) <= clock + 1e-12:
            continue
        best[state] = clock
        if len(best) > most:
            raise TooMany
        frontier, dev, slo, o, i = state
        device = {v: (clock + a, clock + b) for v, a, b in dev}
        slots = {v: (clock + a, clock + b) for v, a, b in slo}
        o, i = clock + o, clock + i
        if frontier == n and outputs <= device.keys():
            return time
        used = sum(size[v] for v in device)
        for v, (ready, busy) in device.items():  # free
            rest = {u: t for u, t in device.items() if u != v}
            push(max(clock, ready, busy), frontier, rest, slots, o, i)
            if v not in slots and graph.may_offload(v) and sum(size[u] for u in slots) + size[v] <= host_room:
                end = max(clock, o, ready) + out[v]
                push(clock, frontier, {**device, v: (ready, end)}, {**slots, v: (end, 0.0)}, end, i)
        for v, (ready, busy) in slots.items():
            if v not in device and used + size[v] <= room:
                end = max(clock, i, ready) + back[v]
                push(clock, frontier, {**device, v: (end, 0.0)}, {**slots, v: (ready, end)}, o, end)
            if host.memory_bytes is not None:  # else releasing gains nothing
                rest = {u: t for u, t in slots.items() if u != v}
                push(clock, frontier, device, rest, max(o, busy), i)
        for k in range(min(frontier + 1, n)):
            node, made, new = graph.nodes[k], graph.values_of(k), k == frontier
            if not new and not (node.recompute and recompute):
                continue
            if any(v in device for v in made) or any(v not in device for v in node.inputs):
                continue
            if used + sum(node.outputs) + node.workspace > room:
                continue
            now = max([clock, *(device[v][0] for v in node.inputs)]) + node.cost
            push(now, frontier + new, {**device, **dict.fromkeys(made, (0.0, 0.0))}, slots, o, i)
    return None


def tiny(seed: int) -> Graph:
    """A graph of seconds, small enough for :func:`least_time`: a short training step, or any graph."""
    rng = random.Random(seed)
    if seed % 3 == 0:
        return replace(varied_graph(seed, 4, 5, most_outputs=(1, 1, 2)), cost_unit="s")
    depth = rng.randint(2, 3)
    nodes = [
        Node(
            f"f{k}", float(rng.randint(1, 4)), (k - 1,) if k else (), (rng.randint(1, 4),), recompute=rng.random() < 0.8
        )
        for k in range(depth)
    ]
    for k in range(depth - 1, -1, -1):
        reads = {k, depth + (depth - 1 - k) - 1} if k < depth - 1 else {k}
        if k and rng.random() < 0.3:
            reads.add(k - 1)
        nodes.append(Node(f"b{k}", float(rng.randint(1, 4)), tuple(sorted(reads)), (rng.randint(1, 3),)))
    return Graph("tiny", tuple(nodes), (2 * depth - 1,), cost_unit="s")
