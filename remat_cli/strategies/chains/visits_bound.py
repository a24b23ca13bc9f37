"""The bound of visits: a lower bound on the recomputation of every schedule of a training step.

The nodes of a training step fall into a forward part and the rest. In the forward part let z_1, ..., z_N be the
nodes through which every path from a node without inputs to the last of them goes (dominators; on a chain these are
all its nodes). The *level* of a forward node is the number of the last z that it is or that dominates it, 0 for
none. The values that count at level j are those that lead from z_j to z_(j+1) (of z_N: all that are read); level j
is *present* while one of them is live. Every node v of the rest that reads a value that counts *visits* the lowest
level i(v) among those it reads: at the first computation of v that level is present. Take visits whose levels never
rise (in a training step these are nearly all). The cost u_j of level j is that of z_j and, its *tail*, of the nodes
between it and z_(j+1) that lead to that; P are the prefix sums of u.

**Lower bound.** Let V(l, r, m), for a visited level r, be a number that no schedule undercuts in what it spends on
the levels l+1 .. r (without the tail of r) when it starts with none of them present and serves the visits to them,
if during every one of these visits m bytes of values of lower levels are there besides. Then

    V(l, r, m) >= min over k in l+1 .. r of  P_k - P_l - [k = r] tail_r + V(l, k-1, m) + V(k, r, m + s(l, k)),

where V(l, k-1, m) stands for the highest visited level up to k-1 and is 0 if there is none above l, the last term is
missing for k = r, s(l, k) is the smallest value that counts in the levels l+1 .. k, and k is admitted only if m
bytes fit beside the working sets of the visits to k.

*Proof.* Let a schedule be given, and consider the first computations of the visits to l+1 .. r, which come in this
order of levels, r first. During a visit to level i let p <= i be the lowest level above l that is present; there is
one, because i is. Let k be the greatest p that occurs, and t a visit at which it does. (1) Before t the levels l+1
.. k have been computed, each at least once, as level k is present at t; with the tail of k if k < r, as r was
present at the first visit. (2) At t the levels l+1 .. k-1 are absent, and all visits to them are still to come. What
follows t is a schedule that starts with none of them and serves their visits: V(l, k-1, m). (3) At each visit to a
level in k+1 .. r some level in l+1 .. k is present by the choice of k, and a value of it takes s(l, k) bytes beside
the m reserved ones; so what is spent on the levels k+1 .. r is at least V(k, r, m + s(l, k)). At a visit to k the m
bytes are there too. The three parts speak of different computations. They use that, after level j was absent,
z_(j+1) cannot be computed before z_j and all of its tail are: follow the inputs of z_(j+1) backwards; what z_j
dominates reads only z_j and what that dominates.

So a schedule costs at least V(0, R, 0) for the highest visited level R, and every node that this leaves out once.
Nothing is assumed about keeping a checkpoint until it is used; for equal sizes the recursion is that of Griewank and
Walther (Evaluating Derivatives, 2nd ed., chapter 12, where it rests on a lemma on the persistence of checkpoints).
The order of visits is that of the document, so the bound holds for document order; where every node reads the one
before, there is no other order, and it holds for all.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass

import numpy as np

from remat_cli.graph.analysis import working_set
from remat_cli.graph.model import Graph
from remat_cli.plan.liveness import cost_of
from remat_cli.strategies.chains.segments import (
    LONGEST_S,
    MOST_LEVELS,
    Segments,
    Units,
    filled,
    highest_visited,
    prefix_sums,
)
from remat_cli.tolerances import CHAIN_ROUNDING

_EXACT = 2.0**50
_NO_LIMIT = 2**62


@dataclass(frozen=True, slots=True)
class Levels:
    """The properties of a graph on which the bound depends.

    Attributes:
        base: Cost of all nodes.
        whole: Whether all costs are integers, small enough for exact sums.
        costs: u of the levels 1 .. N.
        tails: The tails, which are parts of the costs.
        smallest: Bytes of the smallest value that counts, per level.
        visits: (level, working set in bytes) of every visit, levels not rising.
    """

    base: float
    whole: bool
    costs: tuple[float, ...]
    tails: tuple[float, ...]
    smallest: tuple[int, ...]
    visits: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, graph: Graph, split: int) -> Levels | None:
        """The levels of the first ``split`` nodes; None if they are fewer than two, too many, or never visited."""
        if split < 2:
            return None
        spine, level = dominators(graph, split)
        if not 2 <= len(spine) <= MOST_LEVELS:
            return None
        counts: dict[int, int] = {}
        costs, tails, smallest = [], [], []
        for j, z in enumerate(spine, start=1):
            between, values = leading(graph, level, j, spine[j] if j < len(spine) else None)
            if j == len(spine):
                values = {v for v in graph.values_of(z) if graph.readers[v]}
            counts.update(dict.fromkeys(values, j))
            tails.append(cost_of(graph, between - {z}))
            costs.append(graph.nodes[z].cost + tails[-1])
            smallest.append(min((graph.size[v] for v in values), default=0))
        visits = []
        for v in range(split, len(graph.nodes)):
            read = [counts[value] for value in graph.nodes[v].inputs if value in counts]
            if read:
                visits.append((min(read), working_set(graph, v)))
        if not visits:
            return None
        visits = [visits[i] for i in longest_falling([i for i, _ in visits])]
        base = graph.total_cost
        whole = base < _EXACT and all(float(node.cost).is_integer() for node in graph.nodes)
        return cls(base, whole, tuple(costs), tuple(tails), tuple(smallest), tuple(visits))

    def bound(self, room: int, *, seconds: float = LONGEST_S) -> float:
        """Lower bound on the cost of schedules within ``room`` bytes beside the fixed memory; infinite if none fits.

        Takes about ``seconds`` at most; units are chosen large enough for that.
        """
        spare = [_NO_LIMIT] * (len(self.costs) + 1)
        for i, own in self.visits:
            spare[i] = min(spare[i], room - own)
        if min(spare) < 0:
            return math.inf
        visited = [i for i in range(1, len(spare)) if spare[i] != _NO_LIMIT]
        coarse = Units.of(self.smallest, max(spare[i] for i in visited), len(self.costs), seconds=seconds)
        segments, table = filled(lambda units: self._segments(spare, visited, units), coarse, seconds)
        highest = visited[-1]
        least = float(table.look(np.array([0]), np.array([highest]), np.array([0]))[0])
        once = float(segments.prefix[highest]) - self.tails[highest - 1]
        bound = self.base + (least - once)
        return bound if self.whole else max(self.base, bound * (1 - CHAIN_ROUNDING))

    def _segments(self, spare: list[int], visited: list[int], units: Units) -> Segments:
        """The programme in given units, if ``spare`` bytes are free beside the visits to each level."""
        n = len(self.costs)
        sizes = np.array([0, *(size // units.bytes for size in self.smallest)], dtype=np.int64)
        hold = np.zeros((n + 1, n + 1), dtype=np.int64)
        for low in range(n):
            hold[low, low + 1 :] = np.minimum.accumulate(sizes[low + 1 :])
        return Segments(
            prefix=prefix_sums(self.costs),
            tail=np.array([0.0, *self.tails]),
            top=highest_visited(visited, n),
            hold=hold,
            sweep=np.full((n + 1, n + 1), _NO_LIMIT, dtype=np.int64),
            pending=np.zeros(n + 1, dtype=np.int64),
            visit=np.array([s if s == _NO_LIMIT else s // units.bytes for s in spare], dtype=np.int64),
            width=units.count + 1,
        )


def dominators(graph: Graph, split: int) -> tuple[list[int], list[int]]:
    """z_1 .. z_N, the dominators of node ``split - 1`` and itself, and the level of every forward node."""
    parent = [-1] * split
    depth = [1] * split
    for i in range(split):
        makers = {graph.producer[v] for v in graph.nodes[i].inputs}
        common = None
        for maker in makers:
            other = maker
            while common is not None and common != other:
                if common == -1 or other == -1:
                    common = other = -1
                elif depth[common] >= depth[other]:
                    common = parent[common]
                else:
                    other = parent[other]
            common = other
        parent[i] = -1 if common is None else common
        depth[i] = 1 if parent[i] == -1 else depth[parent[i]] + 1
    spine = [split - 1]
    while parent[spine[-1]] != -1:
        spine.append(parent[spine[-1]])
    spine.reverse()
    number = {z: j for j, z in enumerate(spine, start=1)}
    level = [0] * split
    for i in range(split):
        level[i] = number[i] if i in number else 0 if parent[i] == -1 else level[parent[i]]
    return spine, level


def leading(graph: Graph, level: list[int], j: int, end: int | None) -> tuple[set[int], set[int]]:
    """Nodes of level j that lead to the node ``end``, the next of the spine, and the values on the way."""
    nodes: set[int] = set()
    values: set[int] = set()
    todo = [] if end is None else [end]
    while todo:
        for v in graph.nodes[todo.pop()].inputs:
            maker = graph.producer[v]
            if level[maker] == j:
                values.add(v)
                if maker not in nodes:
                    nodes.add(maker)
                    todo.append(maker)
    return nodes, values


def longest_falling(levels: list[int]) -> list[int]:
    """Indices of a longest subsequence of ``levels`` that never rises."""
    ends: list[int] = []  # the negated last level of the best subsequence of each length
    last: list[int] = []
    before = [-1] * len(levels)
    for i, item in enumerate(levels):
        length = bisect.bisect_right(ends, -item)
        if length == len(ends):
            ends.append(-item)
            last.append(i)
        else:
            ends[length], last[length] = -item, i
        before[i] = last[length - 1] if length else -1
    chosen = [last[-1]]
    while before[chosen[-1]] != -1:
        chosen.append(before[chosen[-1]])
    return chosen[::-1]
