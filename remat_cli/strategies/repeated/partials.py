"""Values of a block that make its output cheap to compute again, and take few bytes beside it.

A bottleneck block of a residual network sums its input and what three convolutions make of it. The result of the second
convolution takes a quarter of the bytes of the block's output. From it and the block's input the output comes at a
quarter of the block's cost. A *partial checkpoint* of a block is a set of nodes whose values stay for that. It does not
replace the input, but every later run of the block is cheaper.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, replace

from remat_cli.control import Control
from remat_cli.graph.model import Graph
from remat_cli.plan.liveness import cost_of, heights
from remat_cli.strategies.repeated.parts import Part

_MOST_NODES = 600
"""Of larger stages none is looked for, as that takes seconds."""
_RUNS = 2
"""Runs of a block for its output, supposed for each run of its rest. Untuned."""
_BETTER = 1.5
"""A partial checkpoint saves at least so many times the cost per byte of an ordinary one. Untuned."""
_NEXT = 0.5
"""A further node is taken if it saves at least this share per byte of what the first one saves. Untuned."""


@dataclass(frozen=True, slots=True)
class Partial:
    """A partial checkpoint of a kind of stage; nodes have their numbers in the small graph.

    Attributes:
        nodes: The nodes whose values stay.
        kept: Their bytes.
        block: The nodes that make the block's output from its input and these values, in order.
        cost: Their cost.
        plain_peak: Peak in bytes while they run, besides the input and the bytes kept.
        part: The stage with ``nodes`` for nothing.
    """

    nodes: frozenset[int]
    kept: int
    block: tuple[int, ...]
    cost: float
    plain_peak: int
    part: Part


def partial_of(part: Part, control: Control) -> Partial | None:
    """The partial checkpoint of a stage that saves most per byte; None if an ordinary checkpoint is nearly as good.

    Args:
        part: The stage.
        control: Ends the search; then there is none.
    """
    graph, turn = part.graph, part.turn
    block = range(1, turn)
    if len(graph.nodes) > _MOST_NODES or not all(graph.nodes[i].recompute for i in block):
        return None
    output = [v for v in graph.nodes[turn].inputs if graph.producer[v] in block]
    read = [v for i in range(turn + 1, len(graph.nodes)) for v in graph.nodes[i].inputs if graph.producer[v] in block]
    room = sum(graph.size[v] for v in output)
    handed = {graph.producer[v] for v in output}

    def spent(nodes: Set[int]) -> float:
        return _RUNS * cost_of(graph, _makers(graph, output, nodes)) + cost_of(graph, _makers(graph, read, nodes))

    whole = cost_of(graph, _makers(graph, output, frozenset()))
    if not room or not read or not whole:
        return None
    least = _BETTER * _RUNS * whole / room
    chosen: frozenset[int] = frozenset()
    kept, before = 0, spent(chosen)
    while not control.stopping():
        found: tuple[float, int] | None = None
        for i in block:
            size = sum(graph.nodes[i].outputs)
            if i not in chosen and i not in handed and 0 < size < room - kept:
                saved = (before - spent(chosen | {i})) / size
                found = max(found or (0.0, -1), (saved, i))
        if found is None or found[0] < least:
            break
        least = max(least, _NEXT * found[0])
        chosen |= {found[1]}
        kept, before = kept + sum(graph.nodes[found[1]].outputs), spent(chosen)
    return _partial(part, chosen, output) if chosen else None


def _makers(graph: Graph, values: Iterable[int], given: Set[int]) -> list[int]:
    """The nodes that make ``values``, without the source and those ``given``; ascending."""
    found: set[int] = set()
    todo = [graph.producer[v] for v in values]
    while todo:
        i = todo.pop()
        if i and i not in given and i not in found:
            found.add(i)
            todo.extend(graph.producer[v] for v in graph.nodes[i].inputs)
    return sorted(found)


def _partial(part: Part, nodes: frozenset[int], output: Iterable[int]) -> Partial:
    graph, turn = part.graph, part.turn
    kept = sum(sum(graph.nodes[i].outputs) for i in nodes)
    block = tuple(_makers(graph, output, nodes))
    free = replace(
        graph,
        nodes=tuple(
            replace(node, cost=0.0, inputs=(), workspace=0, recompute=False) if i in nodes else node
            for i, node in enumerate(graph.nodes)
        ),
    )
    needed = {graph.producer[v] for i in (*block, turn) for v in graph.nodes[i].inputs}
    before = sorted(nodes & needed)
    staying = tuple(v for i in before for v in graph.values_of(i))
    in_use = heights(replace(free, outputs=staying), (0, *before, *block, turn))[: 1 + len(before) + len(block)]
    peak = max(0, max(in_use) - part.input_bytes - sum(graph.size[v] for v in staying))
    return Partial(nodes, kept, block, cost_of(graph, block), peak, replace(part, graph=free))
