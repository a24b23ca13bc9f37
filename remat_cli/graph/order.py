"""Topological orders of a graph: precedence in all of them, and the graph in another order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from remat_cli.graph.model import Graph


@dataclass(frozen=True, slots=True)
class Reordered:
    """A graph with its nodes in another order.

    Attributes:
        graph: The graph in that order, with new numbers for nodes and values.
        nodes: int[n], the original index of each of its nodes.
        values: int[V], the original index of each of its values.
    """

    graph: Graph
    nodes: tuple[int, ...]
    values: tuple[int, ...]


def reordered(graph: Graph, order: Sequence[int]) -> Reordered:
    """``graph`` as if its document listed the nodes in ``order``.

    Raises:
        ValueError: If ``order`` is not a topological order of all nodes.
    """
    if sorted(order) != list(range(len(graph.nodes))):
        raise ValueError("the order does not name every node once")
    values = tuple(v for k in order for v in graph.values_of(k))
    renumbered = {v: at for at, v in enumerate(values)}
    nodes = tuple(replace(graph.nodes[k], inputs=tuple(renumbered[v] for v in graph.nodes[k].inputs)) for k in order)
    outputs = tuple(sorted(renumbered[v] for v in graph.outputs))
    return Reordered(replace(graph, nodes=nodes, outputs=outputs), tuple(order), values)


def has_one_order(graph: Graph) -> bool:
    """Whether the order of the document is the only topological one: each node reads a value of the one before."""
    return all(any(graph.producer[v] == i for v in node.inputs) for i, node in enumerate(graph.nodes[1:]))


def ancestors(graph: Graph) -> list[int]:
    """For every node the nodes that precede it in every order, without itself: int[n], bit sets."""
    before: list[int] = []
    for node in graph.nodes:
        above = 0
        for v in node.inputs:
            maker = graph.producer[v]
            above |= before[maker] | 1 << maker
        before.append(above)
    return before


def descendants(graph: Graph) -> list[int]:
    """For every node the nodes that follow it in every order, without itself: int[n], bit sets."""
    after = [0] * len(graph.nodes)
    for i in range(len(graph.nodes) - 1, -1, -1):
        for v in graph.nodes[i].inputs:
            after[graph.producer[v]] |= after[i] | 1 << i
    return after


def always_waiting(graph: Graph) -> list[list[int]]:
    """For every node the values that are made before it and needed after it in every order: int[n][...].

    A value is needed after it if a later node reads it, or if it is a graph output. Inputs of the node are left out.
    """
    before, after = ancestors(graph), descendants(graph)
    waiting: list[list[int]] = [[] for _ in graph.nodes]
    kept = set(graph.outputs)
    for v, readers in enumerate(graph.readers):
        stages = after[graph.producer[v]]
        if v not in kept:
            upstream = 0
            for j in readers:
                upstream |= before[j]
            stages &= upstream
        for j in readers:
            stages &= ~(1 << j)
        while stages:
            lowest = stages & -stages
            waiting[lowest.bit_length() - 1].append(v)
            stages ^= lowest
    return waiting
