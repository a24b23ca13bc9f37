"""Cheaper schedules by reordering all computations of a schedule, recomputations included.

Every computation of a schedule becomes a node of its own, which reads from the computations that served it. In that
graph every topological order is a schedule of the same cost. So a recomputation is removed, which lowers the cost and
lets a value wait longer; then an order is searched in which the schedule still fits.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from remat_cli.control import Control
from remat_cli.graph.model import Graph, Node
from remat_cli.plan.derive import peak, prune
from remat_cli.strategies.ordering.anneal import Problem, anneal

_MOVES = 10_000_000
"""Moves of one run of annealing times computations: a fraction of a second. Untuned."""
_FEWEST, _MOST = 2_000, 60_000
"""Fewest and most moves of one run. Untuned."""
_HOT = 0.01
"""First temperature, as a share of the budget: low, because the start is nearly feasible. Untuned."""


def shake(
    graph: Graph,
    computes: Sequence[int],
    budget_bytes: int,
    control: Control,
    rng: random.Random,
    found: Callable[[tuple[int, ...]], None],
) -> tuple[int, ...]:
    """Remove recomputations from a schedule, the most expensive first, as long as some order of the rest fits.

    Args:
        graph: The graph.
        computes: A schedule within the budget, in any order.
        budget_bytes: Fixed memory included.
        control: If it stops early, the best schedule so far is the answer.
        rng: Source of seeds.
        found: Gets every cheaper schedule.

    Returns:
        A schedule within the budget that costs no more; its first computations may be in another order.
    """
    best = prune(graph, computes)
    failed: set[tuple[int, int]] = set()
    while not control.stopping():
        choice = _dearest(graph, best, failed)
        if choice is None:
            break
        at, key = choice
        shorter = prune(graph, best[:at] + best[at + 1 :])
        settled = settle(graph, shorter, budget_bytes, rng)
        if settled is None:
            failed.add(key)
        else:
            best = settled
            found(best)
    return best


def settle(graph: Graph, computes: Sequence[int], budget_bytes: int, rng: random.Random) -> tuple[int, ...] | None:
    """The computations of a schedule in an order in which they fit the budget; None if none was found."""
    if peak(graph, computes) <= budget_bytes:
        return tuple(computes)
    unrolled = unroll(graph, computes)
    moves = max(_FEWEST, min(_MOST, _MOVES // len(computes)))
    order, _ = anneal(
        Problem.of(unrolled),
        range(len(computes)),
        budget_bytes - graph.fixed_memory,
        moves,
        rng.getrandbits(31),
        hot=_HOT,
    )
    settled = prune(graph, [computes[x] for x in order])
    return settled if peak(graph, settled) <= budget_bytes else None


def unroll(graph: Graph, computes: Sequence[int]) -> Graph:
    """The graph of the computations of a schedule: node x is the x-th, and reads from those that served it.

    Its peak in any order is an upper bound on that of the schedule, where a value never has two instances at a time.
    """
    serving: dict[int, int] = {}
    nodes = []
    made = 0
    for x, k in enumerate(computes):
        node = graph.nodes[k]
        inputs = tuple(serving[v] for v in node.inputs)
        nodes.append(Node(str(x), node.cost, inputs, node.outputs, node.workspace))
        for v in graph.values_of(k):
            serving[v] = made
            made += 1
    outputs = tuple(sorted(serving[v] for v in graph.outputs))
    return Graph(graph.name, tuple(nodes), outputs, graph.cost_unit, graph.fixed_memory)


def _dearest(graph: Graph, computes: Sequence[int], failed: set[tuple[int, int]]) -> tuple[int, tuple[int, int]] | None:
    """The position of the most expensive recomputation that has not failed yet, and its (node, instance)."""
    count: dict[int, int] = {}
    choice, dearest = None, -math.inf
    for at, k in enumerate(computes):
        count[k] = count.get(k, 0) + 1
        if count[k] > 1 and (k, count[k]) not in failed and graph.nodes[k].cost > dearest:
            choice, dearest = (at, (k, count[k])), graph.nodes[k].cost
    return choice
