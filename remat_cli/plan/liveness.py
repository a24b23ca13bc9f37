"""Liveness: what is in memory while a sequence of computes runs, by one walk from its end to its beginning.

The sequence says everything (DESIGN section 2): the latest earlier instance of a value serves a read, an instance dies
right after the last read that it serves, one that serves none dies at once, and the last instance of a graph output
stays. Backwards all of this is plain: a value is live from the step that reads it next down to the step that makes it.

The checker of plans, ``plan/replay.py``, shares nothing with this module.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from remat_cli.graph.model import Graph

DEAD = -1
"""The next read of a value that is not in memory."""


@dataclass(frozen=True, slots=True)
class Priced:
    """A sequence without needless recomputations, and what it takes.

    Attributes:
        computes: Nodes by index, in the order in which they run.
        cost: Their cost, in the graph's unit.
        peak_bytes: Most memory in use at a time, fixed memory included.
    """

    computes: tuple[int, ...]
    cost: float
    peak_bytes: int


def cost_of(graph: Graph, computes: Iterable[int]) -> float:
    """Cost of running ``computes``, rounded once, so that the order of the terms makes no difference."""
    nodes = graph.nodes
    return math.fsum([nodes[k].cost for k in computes])


def reads_at_end(graph: Graph, computes: Sequence[int], held: Collection[int] = ()) -> list[int]:
    """The state from which :func:`walk_back` begins: what ``computes`` leaves in memory is read after the last step.

    Args:
        graph: The graph.
        computes: Nodes by index, in the order in which they run.
        held: Values whose last instance stays to the end, in addition to the graph outputs.

    Returns:
        int[V]: the number of steps for a value that stays, :data:`DEAD` for the others.
    """
    reads, computed = [DEAD] * len(graph.size), set(computes)
    for v in (*graph.outputs, *held):
        if graph.producer[v] in computed:
            reads[v] = len(computes)
    return reads


def walk_back(
    graph: Graph, computes: Sequence[int], reads: list[int], *, pruning: bool = False
) -> Iterator[tuple[int, int, list[int]]]:
    """Every step of ``computes``, from the last to the first.

    Args:
        graph: The graph.
        computes: Nodes by index, in the order in which they run.
        reads: int[V], from :func:`reads_at_end`. Kept up to date: when a step is given it says, for the moment before
            that step, which step reads each value next.
        pruning: Whether to pass over the recomputations that serve no read and leave nothing that stays.

    Yields:
        The step, the bytes in use during it (fixed memory and workspace included), and the values that die right
        after it: those that it makes in the order of their numbers, then those that it reads.

    Raises:
        ValueError: After the first step, if a node reads what was not computed before it.
    """
    nodes, size, first_value = graph.nodes, graph.size, graph.first_value
    level = graph.fixed_memory + sum(size[v] for v, step in enumerate(reads) if step >= 0)
    last = len(computes) - 1
    first = dict(zip(reversed(computes), range(last, -1, -1), strict=True)) if pruning else {}
    for step in range(last, -1, -1):
        k = computes[step]
        node, outputs = nodes[k], range(first_value[k], first_value[k + 1])
        if pruning and first[k] != step:
            for v in outputs:
                if reads[v] >= 0:
                    break
            else:
                continue
        height = level + node.workspace
        dying = []
        for v in outputs:
            if reads[v] >= 0:
                reads[v] = DEAD
                level -= size[v]
            else:
                height += size[v]
                dying.append(v)
        for v in node.inputs:
            if reads[v] < 0:
                level += size[v]
                height += size[v]
                dying.append(v)
            reads[v] = step
        yield step, height, dying
    missing = min((step for step in reads if step >= 0), default=DEAD)
    if missing >= 0:
        reader, v = graph.nodes[computes[missing]], reads.index(missing)
        raise ValueError(f"{reader.id} is computed before its input {graph.value_name(v)}")


def heights(graph: Graph, computes: Sequence[int]) -> list[int]:
    """Bytes in use during every step, fixed memory and workspace included; int[steps].

    Raises:
        ValueError: If a node is computed before one of its inputs ever was.
    """
    return [height for _, height, _ in walk_back(graph, computes, reads_at_end(graph, computes))][::-1]


def next_reads(graph: Graph, computes: Sequence[int], at: Collection[int]) -> dict[int, list[int]]:
    """The step that reads each value next, before each of the steps ``at``.

    Steps ``at`` may include the number of steps, which stands for the end.

    Returns:
        For each of ``at`` int[V]: the step that reads the value as it is there then, the number of steps for what
        stays to the end, :data:`DEAD` for what is not there or not read again.
    """
    reads = reads_at_end(graph, computes)
    live_at = {len(computes): list(reads)} if len(computes) in at else {}
    for step, _, _ in walk_back(graph, computes, reads):
        if step in at:
            live_at[step] = list(reads)
    return live_at


def priced(graph: Graph, computes: Sequence[int]) -> Priced:
    """``computes`` without the recomputations that serve no read and leave no graph output; its cost and its peak.

    Dropping one never raises the peak: its outputs go, and its inputs die no later.

    Raises:
        ValueError: If a node is computed before one of its inputs ever was.
    """
    kept, highest = [], graph.fixed_memory
    for step, height, _ in walk_back(graph, computes, reads_at_end(graph, computes), pruning=True):
        kept.append(computes[step])
        if height > highest:  # twice as fast as max()
            highest = height
    kept.reverse()
    return Priced(tuple(kept), cost_of(graph, kept), highest)
