"""Simulated annealing of orders: of the nodes without recomputation, and of all computations of a schedule."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from remat_cli.control import Control
from remat_cli.graph.arrays import Arrays, arrays_of
from remat_cli.graph.model import Graph, Node
from remat_cli.kernels.ordering import State, run
from remat_cli.mip import Ints
from remat_cli.plan.derive import peak, prune

_HOT = 0.05
"""First temperature, as a share of the target. Untuned."""
_COOLING = 0.01
"""Last temperature, as a share of the first. Untuned."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A graph as flat arrays.

    Attributes:
        arrays: The graph.
        kept: int64[n], bytes of the outputs that a node reads or that stay to the end.
    """

    arrays: Arrays
    kept: Ints

    @classmethod
    def of(cls, graph: Graph) -> Problem:
        """The arrays of ``graph``."""
        arrays = arrays_of(graph)
        read = np.where(np.diff(arrays.reader_start) > 0, arrays.size, 0)
        sums = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(read)])
        return cls(arrays, np.diff(sums[arrays.first_value]))


def anneal(
    problem: Problem,
    order: Sequence[int],
    target: int,
    moves: int,
    seed: int,
    *,
    floor: int | None = None,
    hot: float = _HOT,
) -> tuple[tuple[int, ...], int]:
    """Anneal from ``order`` to one with few bytes over ``target``, summed over its steps.

    Deterministic for a seed. Releases the interpreter lock while it runs.

    Args:
        problem: The graph.
        order: A topological order.
        target: Bytes without fixed memory.
        moves: Moves to try.
        seed: Random seed.
        floor: If the target is met, it is lowered, down to this; None to end at the target.
        hot: First temperature, as a share of the target.

    Returns:
        The best order, and its bytes over the last target.
    """
    n, values = len(order), len(problem.arrays.size)

    def zeros(count: int) -> Ints:
        return np.zeros(count, dtype=np.int64)

    state = State(
        seq=np.array(order, dtype=np.int64),
        pos=zeros(n),
        before=zeros(n + 1),
        last=zeros(values),
        new=zeros(n),
        level=zeros(n + 1),
        stamp=zeros(max(n, values)),
        mark=zeros(1),
        best=zeros(n),
    )
    least = target if floor is None else floor
    excess = run(
        *(problem.arrays, problem.kept, state, target, least, floor is not None, moves, hot, _COOLING * hot, seed)
    )
    return tuple(state.best.tolist()), excess


_MOVES = 10_000_000
"""Moves of one run of annealing times computations: a fraction of a second. Untuned."""
_FEWEST, _MOST = 2_000, 60_000
"""Fewest and most moves of one run. Untuned."""
_WARM = 0.01
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

    Every computation becomes a node of its own, which reads from the computations that served it (:func:`unroll`). In
    that graph every topological order is a schedule of the same cost. A recomputation is removed, which lowers the cost
    and lets a value wait longer; then an order is searched in which the schedule still fits.

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
        choice = _most_expensive(graph, best, failed)
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
        hot=_WARM,
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


def _most_expensive(
    graph: Graph, computes: Sequence[int], failed: set[tuple[int, int]]
) -> tuple[int, tuple[int, int]] | None:
    """The position of the most expensive recomputation that has not failed yet, and its (node, instance)."""
    count: dict[int, int] = {}
    choice, highest = None, -math.inf
    for at, k in enumerate(computes):
        count[k] = count.get(k, 0) + 1
        if count[k] > 1 and (k, count[k]) not in failed and graph.nodes[k].cost > highest:
            choice, highest = (at, (k, count[k])), graph.nodes[k].cost
    return choice
