"""Schedules of small peak at any cost: annealing of the sequence towards less and less room."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from remat_cli.control import Control, Progress
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.kernels.compiling import ready, wait
from remat_cli.plan.derive import peak, prune
from remat_cli.plan.liveness import cost_of
from remat_cli.strategies.engine import Engine

if TYPE_CHECKING:  # numba takes 0.3 s to import
    from remat_cli.strategies.annealing.walk import Walk

# Doubling all constants of this folder makes the gap much larger, halving them smaller (benchmark ``ablation``).
_PATIENCE = 9
"""Runs in a row without a smaller peak after which the search ends: three for each aim."""
_SLICES = 4
"""Slices of a run, each about half a second on large graphs."""
_HEATS = (1.0, 0.3, 3.0)
"""First temperatures of consecutive runs, in mean costs of a recomputation."""
COLD = 0.04
"""The last temperature of a run, relative to the first."""
_AIMS = (0.0, 0.5, 0.9)
"""Target peaks of consecutive runs, from the floor (0) to the smallest peak so far (1)."""
_LEAST_OVERHEAD = 0.02
"""Overhead to scale prices and temperatures by while there is less; a share of C0."""
_PRICE, HIGHEST_PRICE = 3.0, 300.0
"""The first and the highest price of a room of excess during one step, relative to the overhead."""
LEAST_RECOMPUTATIONS = 20
"""Least number of recomputations to divide the overhead by."""


class Squeezing(Engine):
    """Looks for a first schedule within the budget, at any cost."""

    def work(self) -> bool:
        """Squeeze until a schedule fits; whether another turn may find one."""
        incumbent = self.incumbent
        control = incumbent.context.control
        squeeze(incumbent.graph, incumbent.budget_bytes, control, incumbent.context.seed, self._take)
        return incumbent.computes is None

    def _take(self, computes: tuple[int, ...]) -> None:
        self.incumbent.offer(computes)


def squeeze(
    graph: Graph, floor_bytes: int, control: Control, seed: int, offer: Callable[[tuple[int, ...]], object]
) -> tuple[int, ...]:
    """Look for a schedule in document order of the smallest peak.

    Args:
        graph: The graph.
        floor_bytes: Known lower bound on every peak, fixed memory included; the search ends when it is reached.
        control: Clock.
        seed: Random seed.
        offer: Gets every schedule with a smaller peak than all before.

    Returns:
        The schedule with the smallest peak found.
    """
    rng = random.Random(seed)
    state = best = tuple(range(len(graph.nodes)))
    lowest, price, idle, runs = no_remat_peak(graph), _PRICE, 0, 0
    offer(best)
    if not ready("annealing"):
        control.report(Progress("compiling, first run only"))
    while lowest > floor_bytes and idle < _PATIENCE and not control.stopping() and wait("annealing", control):
        control.report(Progress("looking for the least peak"))
        aim = floor_bytes + math.floor(_AIMS[idle % len(_AIMS)] * (lowest - floor_bytes))
        overhead = max(_overhead(graph, state), _LEAST_OVERHEAD)
        heat = _HEATS[runs % len(_HEATS)] * overhead / max(LEAST_RECOMPUTATIONS, len(state) - len(graph.nodes))
        walk = _walk(graph, aim, state, rng.getrandbits(31), price * overhead, heat, control)
        runs, idle = runs + 1, idle + 1
        for computes in (walk.last, walk.best):
            sequence = () if computes is None else prune(graph, computes)
            if sequence and (height := peak(graph, sequence)) < lowest:
                best, lowest, idle = sequence, height, 0
                offer(sequence)
        price = min(HIGHEST_PRICE, max(_PRICE, walk.price / overhead))
        # A walk that goes on from where it ended leaves the valley of the best schedule; every third run returns to it.
        state = best if runs % 3 == 0 else walk.last
    return best


def _walk(
    graph: Graph, aim_bytes: int, start: tuple[int, ...], seed: int, price: float, heat: float, control: Control
) -> Walk:
    """One run of annealing towards a peak of ``aim_bytes``; ``price`` and ``heat`` are shares of C0."""
    from remat_cli.strategies.annealing.walk import Problem, Walk, slice_moves

    walk = Walk.of(Problem.of(graph, aim_bytes - graph.fixed_memory), start, seed, price)
    for part in range(_SLICES):
        if control.stopping() or walk.best is not None:
            break
        hot, cold = heat * COLD ** (part / _SLICES), heat * COLD ** ((part + 1) / _SLICES)
        walk.advance(slice_moves(len(graph.nodes)), hot, cold)
    return walk


def _overhead(graph: Graph, computes: tuple[int, ...]) -> float:
    base = graph.total_cost or 1.0
    return cost_of(graph, computes) / base - 1
