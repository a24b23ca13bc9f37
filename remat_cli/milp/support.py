"""Chooses the support of the retention MILP: for every node the stages in which it may be recomputed.

Small supports find schedules. The full one proves bounds on every schedule in document order.
"""

import math
from collections.abc import Iterable, Sequence

from remat_cli.graph.model import Graph

Support = tuple[tuple[int, ...], ...]
"""For every node the stages, ascending, in which it may be recomputed."""

_CHEAP_SHARE = 0.05
"""A node that costs less than this share of the mean cost counts as nearly free. Untuned."""
_CHEAP_LENGTH = 0.25
"""Length of a nearly free node in a chain of recomputation; that of others is 1. Untuned."""


def support_within(graph: Graph, depth: float) -> Support:
    """The stages near the uses of each node: optimal schedules recompute almost only there.

    Node i may be recomputed in the stage of each of its readers, and in every stage in which a reader may itself be
    recomputed, if the readers in between have a total length of at most ``depth``. A reader has length 1, or a quarter
    if it costs less than a twentieth of the mean, so that chains of nearly free nodes may be long.

    The graph has its closing node. ``depth`` is 0 for the stages of the readers alone, infinity for every stage that
    could be useful.
    """
    mean = graph.total_cost / max(1, len(graph.nodes))
    length = [1.0 if node.cost >= _CHEAP_SHARE * mean else _CHEAP_LENGTH for node in graph.nodes]
    reach: list[dict[int, float]] = [{} for _ in graph.nodes]
    for i in range(len(graph.nodes) - 1, -1, -1):
        near = reach[i]
        for v in graph.values_of(i):
            for j in graph.readers[v]:
                near[j] = 0.0
                if not graph.nodes[j].recompute:
                    continue
                for t, distance in reach[j].items():
                    longer = distance + length[j]
                    if longer <= depth and longer < near.get(t, math.inf):
                        near[t] = longer
    return tuple(tuple(sorted(near)) if graph.nodes[i].recompute else () for i, near in enumerate(reach))


def full_support(graph: Graph) -> Support:
    """Every stage after a node's own, for every recomputable node."""
    n = len(graph.nodes)
    return tuple(tuple(range(i + 1, n)) if node.recompute else () for i, node in enumerate(graph.nodes))


def widened(graph: Graph, support: Support, steps: Iterable[tuple[int, int]]) -> Support:
    """``support`` with the (stage, node) of ``steps`` added, so that it holds a schedule with these recomputations."""
    stages = [set(of_node) for of_node in support]
    for t, i in steps:
        if i < t < len(graph.nodes) and graph.nodes[i].recompute:
            stages[i].add(t)
    return tuple(tuple(sorted(of_node)) for of_node in stages)


def affordable(prices: Sequence[float], most: float, graph: Graph) -> Support:
    """The full support without the nodes of which one recomputation costs more than ``most``.

    Args:
        prices: Lower bound on the cost of recomputing each node, such as its cost; not negative.
        most: Solutions with more expensive recomputation need not be in the support.
        graph: The graph with its closing node.
    """
    return tuple(stages if prices[i] <= most else () for i, stages in enumerate(full_support(graph)))


def common(one: Support, other: Support) -> Support:
    """Stages that are in both supports."""
    return tuple(tuple(sorted({*a} & {*b})) for a, b in zip(one, other, strict=True))
