"""When a node can run in a frontier-advancing schedule, and in how many stages that can serve anything."""

from __future__ import annotations

from remat_cli.graph.model import Graph


def event(node: int, stage: int) -> int:
    """Time at which ``node`` runs in ``stage``; ``node <= stage``, and no two pairs share one."""
    return stage * (stage + 1) // 2 + node


def last_stages(graph: Graph) -> list[int]:
    """Last stage in which computing each node may serve anything: int[n].

    That is n, the closing stage, for all that a graph output may be made from again. A node that nobody needs any more
    by then only has to be there for the last stage of its readers.
    """
    n = len(graph.nodes)
    last = list(range(n))
    for v in graph.outputs:
        last[graph.producer[v]] = n
    for j in range(n - 1, -1, -1):
        # A reader that may be computed only once reads at its own stage and never again.
        latest = last[j] if graph.nodes[j].recompute else j
        for v in graph.nodes[j].inputs:
            last[graph.producer[v]] = max(last[graph.producer[v]], latest)
    return last


def instance_counts(graph: Graph, most: int) -> list[int]:
    """Instances that each node gets: ``most``, or as many as there are stages in which one could serve; int[n]."""
    return [
        min(most, 1 + last - o) if node.recompute else 1
        for o, (node, last) in enumerate(zip(graph.nodes, last_stages(graph), strict=True))
    ]
