"""The least time of any plan with collectives, by searching all lists of statements. Shares no code with any strategy.

A state is what is done, what is in memory and what is in flight, with all clocks relative to the compute queue. Every
plan is a path: issue a node, or free a value. First computations are in document order, but for collectives that read
nothing and make one value that something reads.
"""

import heapq
import itertools
import random
from dataclasses import replace

from remat_cli.graph.model import Graph, Node, NodeQueue

LINK = NodeQueue.COMMUNICATION


class TooMany(Exception):
    """A graph with too many states for the search."""


def least_time(graph: Graph, budget: int, *, most: int = 400_000) -> float | None:  # noqa: C901
    """Least time of a plan within ``budget`` bytes, fixed memory included, or None if there is none.

    Raises:
        TooMany: If there are more than ``most`` states.
    """
    n, room, size = len(graph.nodes), budget - graph.fixed_memory, graph.size
    readers = [any(v in node.inputs for node in graph.nodes) for v in range(len(size))]
    free = [
        node.queue is LINK and not node.inputs and len(node.outputs) == 1 and readers[graph.values_of(k)[0]]
        for k, node in enumerate(graph.nodes)
    ]
    order = itertools.count()
    queue = [(0.0, next(order), 0.0, (frozenset[int](), (), 0.0))]
    best: dict = {}

    def push(clock: float, done: frozenset[int], device: dict[int, tuple[float, float]], link: float) -> None:
        def rel(x: float) -> float:
            return round(x - clock, 9) if x > clock else 0.0

        there = tuple(sorted([(v, rel(ready), rel(busy)) for v, (ready, busy) in device.items()]))
        state = (done, there, rel(link))
        if best.get(state, float("inf")) > clock + 1e-12:
            todo = sum(node.cost for k, node in enumerate(graph.nodes) if k not in done and node.queue is not LINK)
            heapq.heappush(queue, (max(clock + todo, link), next(order), clock, state))

    while queue:
        time, _, clock, state = heapq.heappop(queue)
        if best.get(state, float("inf")) <= clock + 1e-12:
            continue
        best[state] = clock
        if len(best) > most:
            raise TooMany
        done, there, ahead = state
        device, link = {v: (clock + a, clock + b) for v, a, b in there}, clock + ahead
        if len(done) == n and device.keys() >= set(graph.outputs):
            return time
        used = sum(size[v] for v in device)
        for v, (ready, busy) in device.items():
            push(max(clock, ready, busy), done, {u: t for u, t in device.items() if u != v}, link)
        for k, node in enumerate(graph.nodes):
            if k in done and not node.recompute:
                continue
            if k not in done and not free[k] and any(j not in done for j in range(k) if not free[j]):
                continue
            if k not in done and not free[k] and any(j in done for j in range(k + 1, n) if not free[j]):
                continue
            made = graph.values_of(k)
            if any(v in device for v in made) or any(v not in device for v in node.inputs):
                continue
            if used + sum(node.outputs) + node.workspace > room:
                continue
            ready = max([clock, *(device[v][0] for v in node.inputs)])
            after = dict(device)
            if node.queue is LINK:
                end = max(ready, link) + node.cost
                after |= {v: (device[v][0], max(device[v][1], end)) for v in node.inputs}
                push(clock, done | {k}, after | dict.fromkeys(made, (end, end)), end)
            else:
                push(ready + node.cost, done | {k}, after | dict.fromkeys(made, (0.0, 0.0)), link)
    return None


def tiny_sharded(seed: int) -> Graph:
    """A sharded training step of two or three blocks in seconds, small enough for :func:`least_time`."""
    rng = random.Random(seed)

    def some(most: int) -> int:
        return rng.randint(1, most)

    depth = 2 if rng.random() < 0.8 else 3
    nodes: list[Node] = []
    made: dict[str, int] = {}

    def add(name: str, reads: list[str], outputs: int = 1, queue: NodeQueue = NodeQueue.COMPUTE) -> None:
        made[name] = sum(len(node.outputs) for node in nodes)
        sizes = tuple(some(4) for _ in range(outputs))
        again = rng.random() < 0.9
        work = some(2) if rng.random() < 0.1 else 0
        inputs = tuple(sorted(made[read] for read in reads))
        nodes.append(Node(name, float(some(5)), inputs, sizes, workspace=work, recompute=again, queue=queue))

    early = rng.random() < 0.4  # all gathers stand first in the document
    for k in range(depth) if early else ():
        add(f"g{k}", [], queue=LINK)
    for k in range(depth):
        if not early:
            add(f"g{k}", [], queue=LINK)
        add(f"f{k}", [f"g{k}", *([f"f{k - 1}"] if k else [])])
    for k in range(depth - 1, -1, -1):
        reads = [f"g{k}", f"b{k + 1}" if k < depth - 1 else f"f{k}", *([f"f{k - 1}"] if k else [])]
        add(f"b{k}", reads)
        if rng.random() < 0.6:
            add(f"r{k}", [f"b{k}"], queue=LINK)
    outputs = sorted({made[name] for name in made if name[0] == "r"} | {len(made) - 1})
    return Graph("tiny", tuple(nodes), tuple(outputs), cost_unit="s")


def any_tiny(seed: int) -> Graph:
    """The same, or a random graph with random collectives."""
    if seed % 3:
        return tiny_sharded(seed)
    from families import varied_graph

    rng = random.Random(seed)
    graph = varied_graph(seed, 4, 6, most_outputs=(1, 1, 2))
    nodes = [replace(node, queue=LINK) if rng.random() < 0.5 else node for node in graph.nodes]
    nodes[-1] = replace(nodes[-1], queue=LINK)
    return replace(graph, nodes=tuple(nodes), cost_unit="s")
