"""A training step as eager autograd holds its memory.

Autograd runs the gradient of a forward operation as one node: the values that it saved for that node are let go when
the whole node is done. A graph has several operations for such a node (the gradient of a product is two), and a plan
may free a value between them.
"""

from __future__ import annotations

from dataclasses import replace

from remat_cli.graph.model import Graph
from remat_cli.graph.modules import module_of
from remat_cli.graph.phases import Training


def as_autograd_holds(graph: Graph) -> Graph:
    """``graph`` whose backward operations hold what their autograd node saved until its last operation.

    Operations of one module that read the same gradient count as one node. That may join too many, and then the
    peak is overestimated.

    Raises:
        StrategyMismatch: If a node has no phase.
    """
    sweep = Training.of(graph, "eager autograd").sweep
    last: dict[tuple[str, int], int] = {}
    held: dict[int, set[int]] = {}

    def gradients(k: int) -> list[tuple[str, int]]:
        node = graph.nodes[k]
        return [(module_of(node.id), value) for value in node.inputs if graph.producer[value] >= sweep]

    for k in range(sweep, len(graph.nodes)):
        for key in gradients(k):
            last[key] = k
    for k in range(sweep, len(graph.nodes)):
        end = max((last[key] for key in gradients(k)), default=k)
        held.setdefault(end, set()).update(v for v in graph.nodes[k].inputs if graph.producer[v] < sweep)
    nodes = tuple(
        replace(node, inputs=tuple(sorted({*node.inputs, *held.get(k, ())}))) for k, node in enumerate(graph.nodes)
    )
    return replace(graph, nodes=nodes)
