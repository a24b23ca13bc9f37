"""Cheaper schedules by changing the order of all that a schedule does, recomputations included.

Every computation of a schedule becomes a node of its own, which reads from the computations that served it. In that
graph any topological order is a schedule of the same cost. So: leave a recomputation out, which makes the schedule
cheaper and lets some value wait longer; then look for an order in which it fits nevertheless.
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
"""Moves of one run of annealing, times the computations: a fraction of a second."""
_FEWEST, _MOST = 2_000, 60_000
_HOT = 0.01


def shake(
    graph: Graph,
    computes: Sequence[int],
    budget_bytes: int,
    control: Control,
    rng: random.Random,
    found: Callable[[tuple[int, ...]], None],
) -> tuple[int, ...]:
    """Leave out recomputations of a schedule, the dearest first, as long as some order of the rest fits.

    Args:
        graph: The graph.
        computes: A schedule within the budget, in any order.
        budget_bytes: Fixed memory included.
        control: Where it stops early, the best schedule so far is the answer.
        rng: Source of seeds.
        found: Gets every cheaper schedule.

    Returns:
        A schedule within the budget, no dearer; its first computations may be in another order.
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
    """The graph of the computations of a schedule: node x is the x-th, and reads what served it.

    In any order its peak is no less than that of the schedule, where two instances of a value are never there at once.
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
    """Where the dearest recomputation is that was not tried in vain, and what it is called."""
    count: dict[int, int] = {}
    choice, dearest = None, -math.inf
    for at, k in enumerate(computes):
        count[k] = count.get(k, 0) + 1
        if count[k] > 1 and (k, count[k]) not in failed and graph.nodes[k].cost > dearest:
            choice, dearest = (at, (k, count[k])), graph.nodes[k].cost
    return choice
