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

from remat_cli.control import Control
from remat_cli.graph.analysis import last_readers, no_remat_profile
from remat_cli.graph.arrays import Arrays, arrays_of
from remat_cli.graph.model import Graph
from remat_cli.mip import Bools, Floats, Ints
from remat_cli.strategies.engine import Engine

if TYPE_CHECKING:
    from remat_cli.kernels.pricing import Plan

_LARGE = 3_000
"""From so many nodes on a run through the prices without a schedule is the last: it takes seconds. Untuned."""
_CREDITS = (1.0, 0.9, 0.5)
_ROUNDS = 150
_LONGEST = 6
"""A schedule with more than so many times n computes is given up."""
_STEP, _LAST_STEP = 0.7, 0.01
_SLOW = 0.1
_QUANTILE = 0.02
_PRICING_S, _PRICING_SHARE = 20.0, 0.3
"""Most seconds, and most of the time left, for one run through the prices. Untuned."""


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

        arrays = arrays_of(graph)
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


@dataclass(slots=True)
class Prices(Engine):
    """Runs through the prices with growing caution and offers every schedule that fits on the way.

    Deterministic but for the clock, which ends it early.

    Attributes:
        cheapest: The cheapest schedule within the budget that prices led to, whatever the incumbent; None if none did.
        cost: What it costs, in units of C0.
    """

    cheapest: tuple[int, ...] | None = None
    cost: float = math.inf

    def work(self) -> bool:
        """One run for each credit; on large graphs a run without any schedule is the last."""
        incumbent = self.incumbent
        for credit in _CREDITS:
            if incumbent.over():
                break
            incumbent.report("pricing")
            priced = self._run(credit, incumbent.step(_PRICING_S, _PRICING_SHARE))
            if not priced and len(incumbent.graph.nodes) >= _LARGE:
                break
        return False

    def _run(self, credit: float, control: Control) -> bool:
        """Run through the prices once and offer what fits on the way; whether anything did."""
        incumbent = self.incumbent
        pricing = Pricing.of(incumbent.graph, incumbent.budget_bytes)
        fitted = False
        for k in range(_ROUNDS):
            if control.stopping():
                break
            excess = pricing.round(credit, _STEP * (_LAST_STEP / _STEP) ** (k / _ROUNDS), _SLOW)
            if excess is None:
                break
            fitted = fitted or excess <= 0
            if excess <= 0 and pricing.cost < self.cost:
                self.cheapest, self.cost = pricing.computes, pricing.cost
                incumbent.offer(self.cheapest)
                if incumbent.over():
                    break
        return fitted
