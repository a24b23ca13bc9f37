"""The graph of some nodes of a graph, with sources for what they read of others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from remat_cli.graph.model import Graph, Node


def induced(graph: Graph, nodes: Iterable[int]) -> tuple[Graph, tuple[int, ...]]:
    """The graph of ``nodes``, and the numbers in ``graph`` of its values.

    Every value that they read of another node comes from a source, which costs its share of that node.

    Whatever fits a budget in ``graph`` fits it here, and recomputes for no more: of a schedule, keep the computations
    of ``nodes``, put each source right before its first reader, and keep the later computations of its node as those of
    the source. What is in memory was there in ``graph`` too. First computations stay in document order, because each
    source stands before its first reader. So what no schedule of this graph reaches, none of ``graph`` does.

    Args:
        graph: The graph; without fixed memory here.
        nodes: Some of its nodes.
    """
    place: dict[int, int] = {}
    made: list[Node] = []
    own: set[int] = set()
    for i in sorted(nodes):
        node = graph.nodes[i]
        for v in node.inputs:
            if v not in place:
                place[v] = len(place)
                source = graph.nodes[graph.producer[v]]
                cost = source.cost / len(source.outputs)
                name = f"{graph.value_name(v)} of another"
                made.append(Node(name, cost, (), (graph.size[v],), recompute=source.recompute))
        made.append(replace(node, inputs=tuple(place[v] for v in node.inputs)))
        for v in graph.values_of(i):
            place[v] = len(place)
            own.add(v)
    return Graph(graph.name, tuple(made), tuple(sorted(place[v] for v in graph.outputs if v in own))), tuple(place)
