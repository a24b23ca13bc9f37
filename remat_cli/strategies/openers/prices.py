"""Cheap schedules to start from, in time that grows with the edges of the graph and not with its square.

Every stage has a price per byte that waits through it. Given prices, one pass through the stages decides for each
value that a node reads whether to have kept it or to compute it again, with whatever that needs. Where memory turns
out to be over the budget prices rise, elsewhere they fall, and the next pass decides anew: a subgradient method in the
manner of Lagrangian relaxation with a greedy answer to each set of prices, multiplicative so that costs may differ by
orders of magnitude.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from remat_cli.graph.analysis import last_readers, no_remat_profile
from remat_cli.graph.arrays import Arrays
from remat_cli.graph.model import Graph
from remat_cli.kernels.compiling import wait
from remat_cli.mip import Bools, Floats, Ints
from remat_cli.plan.matrices import straightened
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.openers.clearing import WAYS, offer_span_bound, offer_spans
from remat_cli.strategies.openers.closure import Network
from remat_cli.strategies.openers.crowded import Cutting, offer_cuts

if TYPE_CHECKING:
    from remat_cli.kernels.pricing import Plan

_SMALLEST = 300
"""Graphs with fewer nodes have no need of this: a solver is done with them before it would be compiled."""
_LARGE = 3_000
"""From so many nodes on values are dropped before anything else is tried."""
_CREDITS = (1.0, 0.9, 0.5)
_ROUNDS = 150
_LONGEST = 6
"""A schedule with more than so many times n computes is given up."""
_STEP, _LAST_STEP = 0.7, 0.01
_SLOW = 0.1
_QUANTILE = 0.02
_POLISH_MOVES = 10
_POLISH_WORK = 60_000_000
"""Moves of the last polish, times its steps: a few seconds at most."""
_COLD = 1e-6
_PRICE = 3.0
_FIRST_CUTS_S = 2.0
"""Cuts have a schedule by then, or prices are sooner with one."""
_PRICING_S, _DROPPING_S = 20.0, 20.0
"""Most seconds for one run through the prices, and for dropping."""
_FIRST_WAYS = 2


@dataclass(slots=True)
class Pricing:
    """Prices of one graph and budget, on their way to a schedule that fits.

    Attributes:
        arrays: The graph.
        room_bytes: The budget without fixed memory; at least 1.
        prices: float64[n + 1], cost of a byte that waits through a stage, in units of C0.
        least: Price of a stage that is over the budget for the first time.
        plan: What the last pass decided.
        length: How many nodes run in it.
    """

    arrays: Arrays
    room_bytes: int
    prices: Floats
    least: float
    plan: Plan
    length: int = 0

    @classmethod
    def of(cls, graph: Graph, budget_bytes: int) -> Pricing:
        """Nothing decided yet; the stages that are over the budget without recomputation have the first price."""
        from remat_cli.kernels.pricing import FRAMES, Plan  # numba takes 0.3 s to import

        arrays = graph.arrays
        n, values, room = len(graph.nodes), len(graph.size), max(1, budget_bytes - graph.fixed_memory)
        over = np.array([*(height > budget_bytes for height in no_remat_profile(graph)), False])
        least = _first_price(arrays, np.array(last_readers(graph), dtype=np.int64), over)

        def zeros(count: int) -> Ints:
            return np.zeros(count, dtype=np.int64)

        plan = Plan(
            last=zeros(values),
            memo=np.zeros(values),
            memo_stage=zeros(values),
            chosen=zeros(n + 1),
            stack=zeros(len(arrays.inputs) + 1),
            ahead=zeros(values),
            values=zeros(FRAMES),
            edges=zeros(FRAMES),
            totals=np.zeros(FRAMES),
            prefix=np.zeros(n + 2),
            live=np.zeros(values, dtype=np.bool_),
            seq=zeros(_LONGEST * n + 64),
            stage=zeros(_LONGEST * n + 64),
            highest=zeros(n + 1),
        )
        return cls(arrays, room, np.where(over, least, 0.0), least, plan)

    def round(self, credit: float, step: float, slow: float) -> int | None:
        """Decide at the prices as they are, then adjust them.

        Returns:
            Bytes by which the schedule is over the budget; None if it got out of hand.
        """
        from remat_cli.kernels.pricing import run  # numba takes 0.3 s to import

        self.length, over = run(self.arrays, self.plan, self.prices, self.room_bytes, self.least, credit, step, slow)
        return over if self.length else None

    @property
    def cost(self) -> float:
        """Cost of the schedule, in units of C0."""
        return float(self.arrays.cost[self.plan.seq[: self.length]].sum())

    @property
    def computes(self) -> tuple[int, ...]:
        """The schedule."""
        return tuple(self.plan.seq[: self.length].tolist())


def _first_price(arrays: Arrays, last: Ints, over: Bools) -> float:
    """A price at which hardly anything is worth computing again: cost over bytes times stages over the budget.

    Args:
        arrays: The graph.
        last: int64[V], the last stage that reads each value.
        over: bool[n + 1], stages over the budget without recomputation.
    """
    through = np.concatenate([[0], np.cumsum(over)])
    spans = np.maximum(0, through[last] - through[arrays.producer + 1]) * arrays.size
    rates = arrays.cost[arrays.producer[spans > 0]] / spans[spans > 0]
    rates = rates[rates > 0]
    return float(np.quantile(rates, _QUANTILE)) / 10 if len(rates) else 1e-12


def offer_starts(best: Incumbent) -> None:
    """Offer schedules found by cuts, and by prices if the graph is large enough for that to be worth the while.

    Deterministic but for the clock, which ends it early.
    """
    if best.computes is not None:
        return
    if len(best.graph.nodes) < _SMALLEST:
        offer_cuts(best)
        return
    cutting = Cutting.of(best)
    large = len(best.graph.nodes) >= _LARGE
    if not large:
        offer_cuts(best, cutting, most_s=_FIRST_CUTS_S)
    if wait("pricing", best.context.control) and not best.over():
        _drop_and_price(best, large=large)
    if best.cost < math.inf and not best.over():
        _polish(best)
    offer_cuts(best, cutting)


def _drop_and_price(best: Incumbent, *, large: bool) -> None:
    """Offer what comes of dropping values through stretches of the schedule, and what comes of prices.

    Two ways of the former are first on large graphs, which may have a plan that way while prices are still being found;
    all that is left of them is tried only where prices do not lead to any.
    """
    network = Network.of(best.graph, best.budget_bytes - best.graph.fixed_memory)
    offer_span_bound(best, network)
    first = _FIRST_WAYS if large else 0
    offer_spans(best, network, best.step(_DROPPING_S, 0.2), WAYS[:first])
    for credit in _CREDITS:
        if best.over():
            return
        best.report("pricing")
        priced = _price(best, credit)
        if best.computes is None:
            offer_spans(best, network, best.step(_DROPPING_S, 0.15), WAYS[first:])
            first = len(WAYS)
        if not priced and large:
            return


def _price(best: Incumbent, credit: float) -> bool:
    """Run through the prices once and offer what fits on the way; whether anything did."""
    pricing = Pricing.of(best.graph, best.budget_bytes)
    control = best.step(_PRICING_S, 0.1)
    cheapest = math.inf
    for k in range(_ROUNDS):
        if control.stopping():
            break
        excess = pricing.round(credit, _STEP * (_LAST_STEP / _STEP) ** (k / _ROUNDS), _SLOW)
        if excess is None:
            break
        if excess <= 0 and pricing.cost < cheapest:
            cheapest = pricing.cost
            best.offer(pricing.computes)
            if best.over():
                break
    return cheapest < math.inf


def _polish(best: Incumbent) -> None:
    """Take back what need not be computed again, and what else makes the best schedule cheaper at once."""
    from remat_cli.strategies.annealing.walk import Problem, Walk

    assert best.computes is not None
    overhead = max(best.cost / (best.graph.total_cost or 1.0) - 1, 1e-6)
    length = len(best.computes)
    moves = min(_POLISH_MOVES * length, _POLISH_WORK // length)
    problem = Problem.of(best.graph, best.budget_bytes - best.graph.fixed_memory)
    walk = Walk.of(problem, best.computes, best.context.seed, _PRICE * overhead)
    walk.advance(moves, _COLD * overhead, _COLD * overhead)
    if walk.best is not None:
        best.offer(walk.best)
        best.offer(straightened(best.graph, walk.best))
