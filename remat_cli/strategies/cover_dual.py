"""The cover bound of large graphs without a solver: its dual, climbed step by step, which is a bound wherever it stops.

Of the rows of :mod:`remat_cli.milp.cover_running`, one for each stage t over the budget,

    sum over the nodes i of a[t,i] x[i] >= need[t],    x[i] = 1 if node i is computed more than once,

where a[t,i] are the bytes that i has waiting through t, any weights y >= 0 give a bound on sum c[i] x[i]:

    L(y) = sum over t of y[t] need[t] + sum over i of min(0, c[i] - sum over t of y[t] a[t,i]).

Since a value waits through all stages between two, but for those that read it, L(y) and a direction in which it rises
(a subgradient) take one pass over the reads. Steps are as long as Polyak's rule says for a bound a little higher than
the best so far, and become shorter where they do not help. The start is the best weight of the one stage that needs
most. After a few hundred steps, a fraction of a second at n = 20,000, it is within a hundredth of the linear
relaxation, which a solver takes seconds to build and as long to solve, and then says nothing until it is done.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from remat_cli.control import Control
from remat_cli.graph.analysis import last_readers
from remat_cli.graph.closing import closed
from remat_cli.graph.model import Graph
from remat_cli.milp.cover_running import Stage, stages_of
from remat_cli.mip import Floats, Ints

_MOST_STEPS = 2_000
_AHEAD, _LEAST_AHEAD = 0.05, 1e-6
"""How far above the best bound steps aim: a share of it, and a share of C0."""
_INERTIA = 0.7
_IDLE, _SHORTER, _SHORTEST = 15, 0.6, 1e-4
"""After so many steps in a row without a higher bound they become so much shorter, down to that."""
_EPSILON = sys.float_info.epsilon


@dataclass(frozen=True, slots=True, eq=False)
class Cover:
    """The rows as arrays; costs in units of C0, bytes in units of the room.

    Attributes:
        need: float64[stages], bytes to give up; 0 where there are none.
        cost: float64[nodes], of those that may give something up.
        node: int64[values], the node, as an index into ``cost``, that makes each value that may be given up.
        size: float64[values].
        begin: int64[values], the first stage that it waits through.
        end: int64[values], the first stage that it does not wait through any more.
        reader: int64[reads], stages in between that read a value, and where it does not wait therefore ...
        read: int64[reads], ... and which value that is.
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
        """The rows of ``graph``, which is closed."""
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
        """L at ``weights``, float64[stages], made safe against rounding, and the direction in which it rises."""
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
        """Weights with which L is highest where only stage ``t`` has one: what the last byte to give up there costs."""
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


def dual_bound(graph: Graph, budget_bytes: int, control: Control) -> float:
    """A share of C0 by which every schedule in document order within the budget costs more than C0.

    Args:
        graph: The graph.
        budget_bytes: Fixed memory included.
        control: Ends it early; what was found by then counts.

    Returns:
        0 or more; infinity if giving up all that may be computed again does not make enough room at some stage.
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
    """The highest L that came up."""
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
