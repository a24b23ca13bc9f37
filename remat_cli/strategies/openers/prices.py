"""Cheap first schedules from memory prices, in time linear in the edges of the graph.

Every stage has a price per byte that waits through it. Given the prices, one pass through the stages decides for each
value that a node reads whether it was kept or is recomputed with the inputs that it needs. Prices then rise at stages
over the budget and fall at the others, and the next pass decides anew. This follows Lagrangian relaxation (Fisher,
"The Lagrangian Relaxation Method for Solving Integer Programming Problems", Management Science 27, 1981) and its
subgradient method (Held, Wolfe, Crowder, "Validation of subgradient optimization", Mathematical Programming 6, 1974),
with two differences. The subproblem is solved greedily, so its value is no bound. The steps multiply prices, because
costs per byte differ by orders of magnitude within a graph.
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

# Halving and doubling all constants of this folder both make the gap larger (benchmark ``ablation``).
_LARGE = 3_000
"""On graphs of at least this many nodes the first run without a schedule is the last: it takes seconds."""
_CREDITS = (1.0, 0.9, 0.5)
"""One run each: the ``credit`` of ``kernels.pricing.run``; with less, fewer values are recomputed."""
_ROUNDS = 150
"""Passes in a run, for the default steps."""
_LONGEST = 6
"""A pass ends if its schedule has more than this multiple of n computes."""
_STEP, _LAST_STEP = 0.7, 0.01
"""Step of the first and the last pass of a run; it falls geometrically between, as subgradient steps must."""
_SLOW = 0.1
"""How fast prices fall where there is room, relative to how fast they rise: the incumbent should fit."""
_QUANTILE = 0.02
"""First prices come from this quantile of the costs per byte: nearly all values start out as kept."""
_PRICING_S, _PRICING_SHARE = 20.0, 0.3
"""Most seconds, and the largest share of the time left, for one run."""


@dataclass(slots=True)
class Pricing:
    """Prices for one graph and budget, and the schedule of the last pass.

    Attributes:
        arrays: The graph.
        room_bytes: The budget without fixed memory; at least 1.
        prices: float64[n + 1], price of a byte that waits through a stage, in units of C0.
        least: Price of a stage when it first exceeds the budget.
        plan: Decisions of the last pass.
        length: Number of computes in it; 0 if the pass gave up.
    """

    arrays: Arrays
    room_bytes: int
    prices: Floats
    least: float
    plan: Plan
    length: int = 0

    @classmethod
    def of(cls, graph: Graph, budget_bytes: int) -> Pricing:
        """Nothing decided yet; the stages over the budget without recomputation have the first price."""
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
        """Run one pass at the current prices, then adjust them.

        Returns:
            Bytes by which the schedule exceeds the budget; None if it got too long.
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
    """A price at which keeping is cheaper than recomputing for almost every value.

    A tenth of a low quantile of cost / (bytes * stages over the budget that the value waits through).

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
    """Runs the price method once for each credit and offers every schedule that fits.

    Deterministic but for the clock, which ends it early.

    Attributes:
        cheapest: The cheapest schedule within the budget that prices led to, whatever the incumbent; None if none did.
        cost: What it costs, in units of C0.
    """

    cheapest: tuple[int, ...] | None = None
    cost: float = math.inf

    def work(self) -> bool:
        """One run for each credit; on large graphs the first run without a schedule is the last."""
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
        """Run once and offer every schedule that fits; whether one did."""
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
