"""Schedules of small peak, whatever they cost: annealing of the sequence towards less and less room."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from remat_cli.control import Control, Progress
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.plan.derive import peak, prune

_PATIENCE = 9
"""Runs in a row without a smaller peak after which it ends."""
_MOVES = 40_000_000
_MOVES_PER_STEP = 5_000
_HEATS = (0.1, 0.02, 0.3)
_COLD = 0.02
_AIMS = (0.0, 0.5, 0.9)
"""Where to aim between the floor and the smallest peak so far, in turn."""
_LEAST_OVERHEAD = 0.02
_PRICE = 3.0
_DEARER, _CHEAPER, _DEAREST = 1.5, 0.85, 1e6


def squeeze(
    graph: Graph, floor_bytes: int, control: Control, seed: int, offer: Callable[[tuple[int, ...]], None]
) -> tuple[int, ...]:
    """Look for a schedule in document order of the smallest peak.

    Args:
        graph: The graph.
        floor_bytes: Known lower bound on every peak, fixed memory included: where the search ends.
        control: Clock.
        seed: Random seed.
        offer: Gets every schedule with a smaller peak than those before.

    Returns:
        The schedule with the smallest peak that came up.
    """
    from remat_cli.strategies._sequence import Cooling, Problem, anneal  # numba takes 0.3 s to import

    rng = random.Random(seed)
    state = best = tuple(range(len(graph.nodes)))
    lowest, price, idle, runs = no_remat_peak(graph), _PRICE, 0, 0
    offer(best)
    while lowest > floor_bytes and idle < _PATIENCE and not control.stopping():
        control.report(Progress("looking for the least peak"))
        aim = floor_bytes + math.floor(_AIMS[idle % len(_AIMS)] * (lowest - floor_bytes))
        overhead = max(_overhead(graph, state), _LEAST_OVERHEAD)
        heat = _HEATS[runs % len(_HEATS)] * overhead
        moves = max(20_000, min(_MOVES_PER_STEP * len(state), _MOVES // len(state)))
        cooling = Cooling(moves, heat, _COLD * heat, price * overhead)
        result = anneal(Problem.of(graph, aim - graph.fixed_memory), state, cooling, rng.getrandbits(31))
        runs, idle = runs + 1, idle + 1
        for computes in (result.last, *([result.computes] if result.computes is not None else [])):
            sequence = prune(graph, computes)
            if (height := peak(graph, sequence)) < lowest:
                best, lowest, idle = sequence, height, 0
                offer(sequence)
        price = min(_DEAREST, price * (_DEARER if result.excess > 0 else _CHEAPER))
        state = best if runs % 3 == 0 else result.last
    return best


def _overhead(graph: Graph, computes: tuple[int, ...]) -> float:
    base = graph.total_cost or 1.0
    return math.fsum(graph.nodes[k].cost for k in computes) / base - 1
