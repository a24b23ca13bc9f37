"""Coarse graphs, in which some values stand for others, and some are always there."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from remat_cli.graph.analysis import working_set
from remat_cli.graph.model import Graph


def standing(graph: Graph, free: Sequence[bool], derived: AbstractSet[int]) -> list[int | None]:
    """For every value the one that stands for it: itself, the one that it is ``derived`` from, or None if ``free``.

    A derived value is made of a single one, which is no larger (see ``milp/stage_cuts``).
    """
    found: list[int | None] = []
    for v, i in enumerate(graph.producer):
        root = found[graph.nodes[i].inputs[0]] if v in derived else None
        found.append(None if free[v] else v if root is None else root)
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
