"""The closing node: a last stage that reads the graph outputs."""

from __future__ import annotations

from remat_cli.graph.model import Graph, Node

CLOSING_ID = "(end)"


def closed(graph: Graph) -> Graph:
    """``graph`` with a closing node that reads the graph outputs, costs nothing and makes nothing.

    Without that last stage, an output could not be recomputed after the last node. If the last node makes all outputs,
    they are in memory at the end anyway, and the graph is returned unchanged.
    """
    last = len(graph.nodes) - 1
    if all(graph.producer[v] == last for v in graph.outputs):
        return graph
    end = Node(id=CLOSING_ID, cost=0.0, inputs=graph.outputs, outputs=())
    return Graph(graph.name, (*graph.nodes, end), graph.outputs, graph.cost_unit, graph.fixed_memory)
