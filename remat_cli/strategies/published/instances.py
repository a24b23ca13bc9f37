"""When a node can run in a frontier-advancing schedule, and the last stage in which it can have a use."""

from __future__ import annotations

from remat_cli.graph.model import Graph


def event(node: int, stage: int) -> int:
    """Time at which ``node`` runs in ``stage``; ``node <= stage``, and no two pairs share one."""
    return stage * (stage + 1) // 2 + node


def last_stages(graph: Graph) -> list[int]:
    """Last stage in which each node can have a use: int[n].

    That is n, the closing stage, for every node from which a graph output may be recomputed. For others it is the last
    stage of their readers.
    """
    n = len(graph.nodes)
    last = list(range(n))
    for v in graph.outputs:
        last[graph.producer[v]] = n
    for j in range(n - 1, -1, -1):
        # A reader that may run only once reads in its own stage alone.
        latest = last[j] if graph.nodes[j].recompute else j
        for v in graph.nodes[j].inputs:
            last[graph.producer[v]] = max(last[graph.producer[v]], latest)
    return last


def instance_counts(graph: Graph, most: int) -> list[int]:
    """Instances of each node: ``most``, or the number of stages in which it can have a use if that is less; int[n]."""
    return [
        min(most, 1 + last - o) if node.recompute else 1
        for o, (node, last) in enumerate(zip(graph.nodes, last_stages(graph), strict=True))
    ]
