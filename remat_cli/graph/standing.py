"""Coarse graphs, in which some values stand for others, and some are always there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from remat_cli.graph.analysis import working_set
from remat_cli.graph.model import Graph

NEGLIGIBLE_COST = 3e-3
"""Share of C0 that a node costs at most whose value another one stands for. Untuned."""


def derived(graph: Graph, free: Sequence[bool]) -> list[int | None]:
    """For every value the one that stands for it: itself, the one that it is made of, or None if it is ``free``.

    A value is made of another one if its node reads nothing else, makes nothing else, costs next to nothing, and the
    other value is no larger.
    """
    found: list[int | None] = []
    for v, i in enumerate(graph.producer):
        node, by = graph.nodes[i], None if free[v] else v
        cheap = node.recompute and node.cost <= NEGLIGIBLE_COST * graph.total_cost
        if by is not None and cheap and len(node.inputs) == len(node.outputs) == 1:
            root = found[node.inputs[0]]
            by = v if root is None or graph.size[root] > graph.size[v] else root
        found.append(by)
    return found


def coarse(graph: Graph, by: Sequence[int | None]) -> tuple[Graph, list[int]]:
    """The graph in which ``by[v]`` stands for value v, and the number there of each value, -1 if it is always there.

    Nodes keep their numbers and their working sets. Whatever fits a budget in ``graph`` fits it here: of a schedule,
    leave out the recomputations of nodes that make nothing here. Where v is in memory, the value that stands for it was
    read when v was made and can stay instead, as it is no larger.
    """
    kept = [v for v, other in enumerate(by) if other == v]
    place = {v: number for number, v in enumerate(kept)}
    image = [-1 if other is None else place[other] for other in by]
    sizes = [graph.size[v] for v in kept]
    nodes = []
    for i, node in enumerate(graph.nodes):
        inputs = tuple(sorted({image[v] for v in node.inputs} - {-1}))
        outputs = [place[v] for v in graph.values_of(i) if v in place]
        own = sum(sizes[u] for u in {*inputs, *outputs})
        workspace = working_set(graph, i) - own
        nodes.append(replace(node, inputs=inputs, outputs=tuple(sizes[u] for u in outputs), workspace=workspace))
    return Graph(graph.name, tuple(nodes), tuple(sorted({image[v] for v in graph.outputs} - {-1}))), image
