"""From a sequence of computes to statements: allocations and frees.

The sequence determines them (docs/mathematics.md, "The memory model"): the latest earlier instance of a value serves a
read; an instance dies right after the last read that it serves, or at once if it serves none; the last instance of a
graph output stays. So strategies return sequences and need not decide about frees.
"""

from __future__ import annotations

from collections.abc import Sequence

from remat_cli.graph.model import Graph
from remat_cli.plan.model import Allocate, Compute, Deallocate, Statement

_TO_THE_END = -1


def derive(graph: Graph, computes: Sequence[int], held: frozenset[int] = frozenset()) -> tuple[Statement, ...]:
    """Statements of the schedule ``computes``, in time linear in its reads.

    Args:
        graph: The graph.
        computes: Nodes by index, in the order in which they run.
        held: Values whose last instance is freed only after the last compute.

    Returns:
        Allocations right before each compute, frees right after it.

    Raises:
        ValueError: If a node is computed before one of its inputs was computed for the first time.
    """
    dying, leftover = _lifetimes(graph, computes, held)
    statements: list[Statement] = []
    register: dict[int, str] = {}
    made = 0
    for position, node in enumerate(computes):
        names = []
        for value in graph.values_of(node):
            register[value] = name = f"%{made}"
            made += 1
            names.append(name)
            statements.append(Allocate(name, value))
        statements.append(Compute(node, tuple(names)))
        statements.extend(Deallocate(register[value]) for value in dying[position])
    statements.extend(Deallocate(register[value]) for value in leftover)
    return tuple(statements)


def peak(graph: Graph, computes: Sequence[int]) -> int:
    """Peak bytes of the schedule ``computes``, fixed memory included; fast, because it makes no statements."""
    dying, _ = _lifetimes(graph, computes, frozenset())
    live = highest = graph.fixed_memory
    for position, index in enumerate(computes):
        node = graph.nodes[index]
        live += sum(node.outputs)
        # Inputs die only after the node has run, so they, the outputs and the workspace are in memory together.
        highest = max(highest, live + node.workspace)
        live -= sum(graph.size[value] for value in dying[position])
    return highest


def prune(graph: Graph, computes: Sequence[int]) -> tuple[int, ...]:
    """``computes`` without the recomputations that serve no read and leave no graph output.

    Removing one never raises the peak: its outputs vanish, and its inputs die no later.
    """
    seen: set[int] = set()
    first = []
    for node in computes:
        first.append(node not in seen)
        seen.add(node)
    # Backwards, so that a removed recomputation also releases the recomputations that only it read.
    needed = set(graph.outputs)
    kept = []
    for position in range(len(computes) - 1, -1, -1):
        node = computes[position]
        values = graph.values_of(node)
        if first[position] or any(v in needed for v in values):
            kept.append(node)
            needed.difference_update(values)
            needed.update(graph.nodes[node].inputs)
    return tuple(reversed(kept))


def _lifetimes(graph: Graph, computes: Sequence[int], held: frozenset[int]) -> tuple[list[list[int]], list[int]]:
    """For every position the values that die right after it, and the held values to free at the very end."""
    # One entry per live instance: the position of the last read it has served so far.
    last_use: dict[int, int] = {}
    dying: list[list[int]] = [[] for _ in computes]
    for position, node in enumerate(computes):
        for value in graph.nodes[node].inputs:
            if value not in last_use:
                raise ValueError(f"{graph.nodes[node].id} is computed before its input {graph.value_name(value)}")
            last_use[value] = position
        for value in graph.values_of(node):
            if value in last_use:  # a new instance replaces the old one, which died after its last read
                dying[last_use[value]].append(value)
            last_use[value] = position
    kept = set(graph.outputs)
    leftover = []
    for value, position in last_use.items():
        if value in kept:
            continue
        if value in held:
            leftover.append(value)
        else:
            dying[position].append(value)
    for values in dying:  # in a fixed order, so that the same sequence gives the same bytes
        values.sort()
    return dying, sorted(leftover)
