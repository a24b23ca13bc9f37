"""Engines for the cover bound: by a solver, or by its dual.

On large graphs without a solver, by subgradient ascent on its dual: every iterate is a bound.

Of the rows of :mod:`remat_cli.milp.cover_bound`, one for each stage t over the budget,

    sum over the nodes i of a[t,i] x[i] >= need[t],    x[i] = 1 if node i is computed more than once,

where a[t,i] are the bytes of i's values that wait through t, all weights y >= 0 give a bound on sum c[i] x[i]:

    L(y) = sum over t of y[t] need[t] + sum over i of min(0, c[i] - sum over t of y[t] a[t,i]).

This is the Lagrangian dual (Fisher, Management Science 27, 1981). A value waits through all stages from its producer to
its last reader except those that read it, so L(y) and a subgradient take one pass over the reads. The step length
follows Polyak's rule (Held, Wolfe, Crowder, Mathematical Programming 6, 1974) with a target a little above the best
bound; it shrinks while steps do not help. The ascent starts at the best weight of the one stage that needs the most.
After a few hundred steps, a fraction of a second at n = 20,000, it is within 1 % of the linear relaxation. A solver
takes seconds to build that, as long to solve it, and gives no bound before the end.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from remat_cli.control import Control
from remat_cli.graph.analysis import last_readers
from remat_cli.graph.model import Graph, closed
from remat_cli.milp.cover_bound import Stage, dense_terms, stages_of
from remat_cli.mip import Floats, Ints
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Bound
from remat_cli.strategies.bounds import MOST_TERMS, cover_bound, of_share
from remat_cli.strategies.engine import Engine
from remat_cli.strategies.incumbent import Verdict


@dataclass(slots=True)
class QuickBound(Engine):
    """The dual of the cover bound, maximised without a solver; adds nothing on small graphs."""

    def work(self) -> bool:
        """Ascend until the clock stops or the steps get too short."""
        incumbent = self.incumbent
        incumbent.raise_bound(quick_bound(incumbent.graph, incumbent.budget_bytes, incumbent.context.control))
        return False


# Halving and doubling all constants of this folder both make the gap larger (benchmark ``ablation``).
_POLISH_S = 3.0
"""Most seconds if the incumbent is already within the gap."""


@dataclass(slots=True)
class CoverBound(Engine):
    """The cover bound (see ``milp/cover_bound``)."""

    uses_solver: ClassVar[bool] = True

    def work(self) -> bool:
        """Solve it once."""
        incumbent = self.incumbent
        incumbent.report("bounding")
        limit_s = incumbent.seconds(_POLISH_S if incumbent.verdict >= Verdict.GAP else math.inf, 1.0)
        incumbent.raise_bound(
            cover_bound(incumbent.graph, incumbent.budget_bytes, incumbent.context, time_limit_s=limit_s)
        )
        return False


_MOST_STEPS = 2_000
"""Steps of the ascent."""
_AHEAD, _LEAST_AHEAD = 0.05, 1e-6
"""How far the target is above the best bound: a share of the bound, and at least this share of C0."""
_INERTIA = 0.7
"""Share of the last direction in the next, against zigzag."""
_IDLE, _SHORTER, _SHORTEST = 15, 0.6, 1e-4
"""Idle steps until the step length shrinks, the factor, and the length at which the ascent ends."""
_EPSILON = sys.float_info.epsilon


@dataclass(frozen=True, slots=True, eq=False)
class Cover:
    """The rows as arrays; costs in units of C0, bytes in units of the room.

    Attributes:
        need: float64[stages], bytes to free; 0 where there are none.
        cost: float64[nodes], of the nodes whose values may be dropped.
        node: int64[values], the producer of each value that may be dropped, as an index into ``cost``.
        size: float64[values].
        begin: int64[values], the first stage that the value waits through.
        end: int64[values], the stage after the last one that it waits through.
        reader: int64[reads], stages between them that read a value, through which it does not wait, ...
        read: int64[reads], ... and the value.
    """

    need: Floats
    cost: Floats
    node: Ints
    size: Floats
    begin: Ints
    end: Ints
    reader: Ints
    read: Ints

    @classmethod
    def of(cls, graph: Graph, stages: list[Stage], room_bytes: int) -> Cover:
        """The rows of ``graph``, which must have its closing node."""
        last, unit = last_readers(graph), float(max(1, room_bytes))
        values = [
            v for v, i in enumerate(graph.producer) if graph.nodes[i].recompute and graph.size[v] and last[v] > i + 1
        ]
        reads = [(t, k) for k, v in enumerate(values) for t in graph.readers[v] if t < last[v]]
        nodes, node = np.unique(np.array([graph.producer[v] for v in values], dtype=np.int64), return_inverse=True)
        return cls(
            need=np.array([max(0, stage.need) for stage in stages], dtype=np.float64) / unit,
            cost=np.array([graph.nodes[i].cost for i in nodes.tolist()]) / (graph.total_cost or 1.0),
            node=node,
            size=np.array([graph.size[v] for v in values], dtype=np.float64) / unit,
            begin=np.array([graph.producer[v] + 1 for v in values], dtype=np.int64),
            end=np.array([last[v] for v in values], dtype=np.int64),
            reader=np.array([t for t, _ in reads], dtype=np.int64),
            read=np.array([k for _, k in reads], dtype=np.int64),
        )

    def at(self, weights: Floats) -> tuple[float, Floats]:
        """L at ``weights``, float64[stages], made safe against rounding, and a subgradient of it."""
        through = np.concatenate([[0.0], np.cumsum(weights)])
        spans = through[self.end] - through[self.begin]
        spans -= np.bincount(self.read, weights=weights[self.reader], minlength=len(self.size))
        charged = np.bincount(self.node, weights=spans * self.size, minlength=len(self.cost))
        paid, saved = float(weights @ self.need), np.minimum(0.0, self.cost - charged)
        # Sums of k terms are off by k epsilon of the sum of their magnitudes at most, here three deep.
        magnitude = paid + float(through[-1]) * 2 * float(self.size.sum()) + float(self.cost.sum())
        terms = 3 * (len(self.need) + len(self.size) + len(self.read) + len(self.cost))
        given = np.where((saved < 0.0)[self.node], self.size, 0.0)
        count = len(self.need)
        freed = np.cumsum(
            np.bincount(self.begin, weights=given, minlength=count + 1)
            - np.bincount(self.end, weights=given, minlength=count + 1)
        )[:count]
        freed -= np.bincount(self.reader, weights=given[self.read], minlength=count)
        return paid + float(saved.sum()) - terms * _EPSILON * magnitude, self.need - freed

    def of_stage(self, t: int) -> Floats:
        """The best weights that are zero except at stage ``t``: there, the cost of the last byte to free.

        A fractional knapsack: nodes give up their bytes at ``t`` in the order of cost per byte.
        """
        waiting = (self.begin <= t) & (t < self.end)
        waiting[self.read[self.reader == t]] = False
        offered = np.bincount(self.node, weights=np.where(waiting, self.size, 0.0), minlength=len(self.cost))
        offers = np.flatnonzero(offered)
        rates = self.cost[offers] / offered[offers]
        order = np.argsort(rates)
        enough = int(np.searchsorted(np.cumsum(offered[offers][order]), self.need[t]))
        weights = np.zeros(len(self.need))
        if len(offers):
            weights[t] = rates[order[min(enough, len(order) - 1)]]
        return weights


def quick_bound(graph: Graph, budget_bytes: int, control: Control) -> Bound:
    """A bound for large graphs, for which a solver may have no time: nearly as high as the cover bound, in a second.

    Args:
        graph: The graph; if it is small the result is C0.
        budget_bytes: Fixed memory included.
        control: Ends it early.

    Returns:
        A bound for document order; infinite as for :func:`cover_bound`.
    """
    base = graph.total_cost
    if dense_terms(graph) <= MOST_TERMS:
        return Bound(base, Scope.ANY_ORDER)
    bound = of_share(graph, dual_bound(graph, budget_bytes, control))
    return Bound(bound, Scope.DOCUMENT_ORDER) if bound > base else Bound(base, Scope.ANY_ORDER)


def dual_bound(graph: Graph, budget_bytes: int, control: Control) -> float:
    """A lower bound on the overhead of all schedules in document order within the budget, as a share of C0.

    Args:
        graph: The graph.
        budget_bytes: Fixed memory included.
        control: Ends it early; the bound reached by then counts.

    Returns:
        0 or more; infinity if dropping all recomputable values does not free enough at some stage.
    """
    closing = closed(graph)
    stages = list(stages_of(closing, budget_bytes))
    if any(stage.most < stage.need for stage in stages):
        return float("inf")
    if all(stage.need <= 0 for stage in stages):
        return 0.0
    cover = Cover.of(closing, stages, budget_bytes - graph.fixed_memory)
    return max(0.0, _climbed(cover, control))


def _climbed(cover: Cover, control: Control) -> float:
    """The highest L found."""
    over = cover.need > 0
    weights = top = cover.of_stage(int(cover.need.argmax()))
    level, slope = cover.at(weights)
    best, slope_at_top = level, slope
    length, idle = 1.0, 0
    direction = np.zeros(len(over))
    for _ in range(_MOST_STEPS):
        if length < _SHORTEST or control.stopping():
            break
        direction = slope + _INERTIA * direction
        direction[~over | ((weights <= 0.0) & (direction < 0.0))] = 0.0
        steepness = float(direction @ direction)
        if steepness == 0.0:
            break
        # Polyak's rule wants the optimum; a target just above the best bound takes its place and keeps steps short.
        aim = best + max(_AHEAD * best, _LEAST_AHEAD)
        weights = np.maximum(0.0, weights + length * (aim - level) / steepness * direction)
        level, slope = cover.at(weights)
        idle = 0 if level > best * (1 + 1e-6) else idle + 1
        if level > best:
            best, top, slope_at_top = level, weights, slope
        if idle >= _IDLE:
            length, idle = length * _SHORTER, 0
            weights, level, slope = top, best, slope_at_top
            direction = np.zeros(len(over))
    return best
