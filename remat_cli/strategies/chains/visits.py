"""The bound of visits on the recomputation of every schedule of a training step, and schedules of chains that meet it.

The nodes of a training step fall into a forward part and the rest. In the forward part let z_1, ..., z_N be the
nodes through which every path from a node without inputs to the last of them goes (dominators; on a chain these are
all its nodes; see :func:`dominators` for masks). The *level* of a forward node is the number of the last z that it is
or that dominates it, 0 for none. The values that count at level j are those that lead from z_j to z_(j+1) (of z_N: all
that are read); level j is *present* while one of them is live. Every node v of the rest that reads a value that counts
*visits* the lowest level i(v) among those it reads: at the first computation of v that level is present. Take visits
whose levels never rise (in a training step these are nearly all). The cost u_j of level j is that of z_j and, its
*tail*, of the nodes between it and z_(j+1) that lead to that; P are the prefix sums of u.

**Lower bound.** Let V(l, r, m), for a visited level r, be a number that no schedule undercuts in what it spends on
the levels l+1 .. r (without the tail of r) when it starts with none of them present and serves the visits to them,
if during every one of these visits m bytes of values of lower levels are there besides. Then

    V(l, r, m) >= min over k in l+1 .. r of  P_k - P_l - [k = r] tail_r + V(l, k-1, m) + V(k, r, m + s(l, k)),

where V(l, k-1, m) stands for the highest visited level up to k-1 and is 0 if there is none above l, the last term is
missing for k = r, s(l, k) is the smallest value that counts in the levels l+1 .. k, and k is admitted only if m
bytes fit beside the working sets of the visits to k.

The proof is in ``docs/mathematics.md``, "Visits".

So a schedule costs at least V(0, R, 0) for the highest visited level R, and every node that this leaves out once.
On a chain of thousands of levels this takes too long; where its levels are alike, a closed form bounds V from below
(:meth:`Levels.binomial`), and the binomial schedule of Griewank and Walther meets it if all are equal.
Nothing is assumed about keeping a checkpoint until it is used; for equal sizes the recursion is that of Griewank and
Walther (Evaluating Derivatives, 2nd ed., chapter 12, where it rests on a lemma on the persistence of checkpoints).
The order of visits is that of the document, so the bound holds for document order; where every node reads the one
before, there is no other order, and it holds for all.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import TypeVar

import numpy as np

from remat_cli.graph.analysis import no_remat_profile, working_set
from remat_cli.graph.model import Graph, Phase
from remat_cli.plan.derive import peak
from remat_cli.plan.liveness import cost_of
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Bound, Schedule
from remat_cli.strategies.chains.binomial import MOST_RUNS, Splits, advances, binomial
from remat_cli.strategies.chains.segments import (
    LONGEST_S,
    MOST_LEVELS,
    Segments,
    Units,
    filled,
    highest_visited,
    prefix_sums,
)
from remat_cli.strategies.engine import Once
from remat_cli.tolerances import CHAIN_ROUNDING

_EXACT = 2.0**50
_NO_LIMIT = 2**62
_CHOICES = 24
"""Most costs, and most numbers of bytes to spare, to try for levels that are alike. Untuned."""
_FEWER = 3
"""Numbers of kept values to try, from the most on: what is in memory besides may leave room for fewer. Untuned."""
_Number = TypeVar("_Number", int, float)


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
        """The levels of the first ``split`` nodes; None if they are fewer than two, or never visited."""
        if split < 2:
            return None
        spine, level = dominators(graph, split)
        if len(spine) < 2:
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
        spare = self.spare(room)
        if min(spare) < 0:
            return math.inf
        more = self.binomial(spare)
        if len(self.costs) <= MOST_LEVELS:
            more = max(more, self._by_programme(spare, seconds))
        bound = self.base + more
        return bound if self.whole else max(self.base, bound * (1 - CHAIN_ROUNDING))

    def spare(self, room: int) -> list[int]:
        """The bytes that may be reserved during the visits to each level, from 1; ``_NO_LIMIT`` where there is none."""
        spare = [_NO_LIMIT] * (len(self.costs) + 1)
        for i, own in self.visits:
            spare[i] = min(spare[i], room - own)
        return spare

    def binomial(self, spare: Sequence[int]) -> float:
        """A lower bound on the cost of recomputation, in closed form.

        Let n visited levels have at most x bytes to spare and cost at least u each, their tails not counted, and let s
        be the smallest value of any level. They cost no less than n levels of cost u with c = floor(x / s) values kept
        besides, which recompute u * (t(n + 1, c + 1) - n) at least, see ``binomial.advances``. The best choice of u and
        x counts.

        Args:
            spare: See :meth:`spare`.
        """
        visited = [i for i in range(1, len(spare)) if spare[i] != _NO_LIMIT]
        smallest = min(self.smallest[: visited[-1]])
        if not smallest:
            return 0.0
        best = 0.0
        for most in _some(sorted({spare[i] for i in visited})):
            costs = sorted((self.costs[i - 1] - self.tails[i - 1] for i in visited if spare[i] <= most), reverse=True)
            for least in _some(sorted({*costs})):
                alike = bisect.bisect_right(costs, -least, key=lambda cost: -cost)
                best = max(best, least * (advances(alike + 1, most // smallest + 1) - alike))
        return best

    def _by_programme(self, spare: list[int], seconds: float) -> float:
        """The same by the recursion."""
        visited = [i for i in range(1, len(spare)) if spare[i] != _NO_LIMIT]
        coarse = Units.of(self.smallest, max(spare[i] for i in visited), len(self.costs), seconds=seconds)
        segments, table = filled(lambda units: self._segments(spare, visited, units), coarse, seconds)
        highest = visited[-1]
        least = float(table.look(np.array([0]), np.array([highest]), np.array([0]))[0])
        return least - (float(segments.prefix[highest]) - self.tails[highest - 1])

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


def _some(items: Sequence[_Number]) -> list[_Number]:
    """At most ``_CHOICES`` of sorted items, evenly spread, the first and the last among them."""
    if len(items) <= _CHOICES:
        return list(items)
    return [items[round(k * (len(items) - 1) / (_CHOICES - 1))] for k in range(_CHOICES)]


def dominators(graph: Graph, split: int) -> tuple[list[int], list[int]]:
    """z_1 .. z_N, the dominators of node ``split - 1`` and itself, and the level of every forward node.

    Nodes without inputs, such as a mask, are ignored where their reader reads other nodes too.
    """
    parent = [-1] * split
    depth = [1] * split
    for i in range(split):
        makers = {graph.producer[v] for v in graph.nodes[i].inputs}
        common = None
        for maker in {maker for maker in makers if graph.nodes[maker].inputs} or makers:
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


def leading(graph: Graph, level: Sequence[int], j: int, end: int | None) -> tuple[set[int], set[int]]:
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


def sweeps(graph: Graph, split: int, room: int, *, seconds: float = LONGEST_S) -> tuple[int, ...] | None:
    """The cheapest schedule by sweeps within ``room`` bytes beside the fixed memory.

    A sweep runs forward to a level, keeps it, serves the levels above, visits it, and restarts below. On a chain (each
    forward node reads the one before and nothing else) the recursion of the bound, with the real size of each kept
    value instead of the smallest, gives the cheapest schedule of this kind. All live bytes are counted: gradients,
    values kept for another visit, workspace. If all sizes are equal both recursions agree, and the schedule is optimal
    among all (tests compare them at every budget).

    Args:
        graph: The graph.
        split: Number of nodes in the forward part; the others run once each, in order.
        room: Bytes.
        seconds: Approximate time limit; with less time bytes are counted in larger units.

    Returns:
        Nodes by index; None if the forward part is no chain that is visited from the end to the start, or nothing fits.
    """
    levels = _visited_levels(graph, split)
    if levels is None or not _is_chain(graph, split):
        return None
    need = _Need.of(graph, split, levels)
    if split > MOST_LEVELS:
        candidates = (_by(order, graph, split, levels) for order in need.binomial(room))
        return next((computes for computes in candidates if peak(graph, computes) <= room + graph.fixed_memory), None)
    order = need.order(room, seconds)
    return None if order is None else _by(order, graph, split, levels)


def _by(order: Splits, graph: Graph, split: int, levels: Sequence[int]) -> tuple[int, ...]:
    """The schedule by splits, see ``Segments.order``."""
    computes: list[int] = []
    following = split
    for low, k, r in order:
        while following < len(graph.nodes) and levels[following - split] > r:
            computes.append(following)
            following += 1
        computes.extend(range(low, k))
    return (*computes, *range(following, len(graph.nodes)))


def _is_chain(graph: Graph, split: int) -> bool:
    """Whether each forward node reads only the one before, may be recomputed, and makes no graph output."""
    if split < 2 or any(graph.producer[v] < split for v in graph.outputs):
        return False
    return all(
        node.recompute and {graph.producer[v] for v in node.inputs} == ({i - 1} if i else set())
        for i, node in enumerate(graph.nodes[:split])
    )


def _visited_levels(graph: Graph, split: int) -> list[int] | None:
    """For each node of the rest the level (from 1) that it visits, or that of the visit before; None if levels rise.

    The first node must visit the last level, so that the whole forward part runs before it.
    """
    levels: list[int] = []
    for node in graph.nodes[split:]:
        read = [graph.producer[v] + 1 for v in node.inputs if graph.producer[v] < split]
        current = levels[-1] if levels else split
        if read and min(read) > current:
            return None
        levels.append(min(read) if read else current)
    return levels if levels and levels[0] == split else None


@dataclass(frozen=True, slots=True)
class _Need:
    """Bytes that the steps of a schedule by sweeps need, per level 1 .. N (index 0 unused).

    Attributes:
        costs: Cost of computing each level.
        kept: Bytes of its values that other nodes read.
        running: Bytes of outputs and workspace while it is computed.
        visit: Peak of the visits to it, without the kept values of lower levels; None if there is no visit.
        pending: Bytes resident while lower levels are computed on the way to its first visit.
    """

    costs: tuple[float, ...]
    kept: tuple[int, ...]
    running: tuple[int, ...]
    visit: tuple[int | None, ...]
    pending: tuple[int, ...]

    @classmethod
    def of(cls, graph: Graph, split: int, levels: list[int]) -> _Need:
        """Count the live bytes around every node of the rest."""
        visit: list[int | None] = [None] * (split + 1)
        pending = [0] * (split + 1)
        last = {v: readers[-1] for v, readers in enumerate(graph.readers) if readers and readers[-1] >= split}
        last.update(dict.fromkeys(graph.outputs, len(graph.nodes)))
        above: dict[int, int] = {}  # values of levels above the current one that are still to be read
        below = deque(sorted((v for v in last if graph.producer[v] < split), reverse=True))
        made: dict[int, int] = {}
        for v, level in enumerate(levels, start=split):
            above = {value: size for value, size in above.items() if last[value] >= v}
            made = {value: size for value, size in made.items() if last[value] >= v}
            while below and graph.producer[below[0]] + 1 > level:
                value = below.popleft()
                if last[value] >= v:
                    above[value] = graph.size[value]
            live = sum(above.values()) + sum(made.values())
            if visit[level] is None:
                pending[level] = live
            own = takewhile(partial(_is_of, graph, level), below)
            here = sum(graph.size[w] for w in own if last[w] >= v)
            need = live + here + sum(graph.nodes[v].outputs) + graph.nodes[v].workspace
            visit[level] = max(need, visit[level] or 0)
            made.update({w: graph.size[w] for w in graph.values_of(v) if w in last})
        forward = graph.nodes[:split]
        return cls(
            tuple(node.cost for node in forward),
            (0, *(sum(graph.size[v] for v in graph.values_of(i) if graph.readers[v]) for i in range(split))),
            (0, *(sum(node.outputs) + node.workspace for node in forward)),
            tuple(visit),
            tuple(pending),
        )

    def order(self, room: int, seconds: float) -> list[tuple[int, int, int]] | None:
        """The best splits for a budget, see ``Segments.order``; None if nothing fits."""
        visited = [k for k, need in enumerate(self.visit) if need is not None]
        spare = [room - (need or 0) for need in self.visit]
        if min(spare) < 0:
            return None
        others = (*self.running, *(need or 0 for need in self.visit), *self.pending)
        coarse = Units.of(self.kept, max(spare[k] for k in visited), len(self.costs), others, seconds=seconds)
        segments, table = filled(lambda units: self._segments(room, spare, visited, units), coarse, seconds)
        return segments.order(table)

    def binomial(self, room: int) -> Iterator[Splits]:
        """The binomial schedules that may fit, with the most kept values first: for levels that are alike.

        The last level is mostly visited when no gradient is there yet, and then needs no value less to be kept.
        """
        spare, n = room - max(need or 0 for need in self.visit), len(self.costs)
        most = spare // max(1, *self.kept) + 1
        for slots in range(most, max(0, most - _FEWER), -1):
            if advances(n + 1, slots) <= MOST_RUNS:
                yield _with_last(binomial(n, slots), n)
                yield binomial(n + 1, slots)

    def _segments(self, room: int, spare: list[int], visited: list[int], units: Units) -> Segments:
        """The programme in given units, if ``spare`` bytes are free beside the visits to each level."""
        n = len(self.costs)
        size = [math.ceil(kept / units.bytes) for kept in self.kept]
        hold = np.tile(np.array(size, dtype=np.int64), (n + 1, 1))
        sweep = np.zeros((n + 1, n + 1), dtype=np.int64)
        for low in range(n):
            highest = 0
            for k in range(low + 1, n + 1):
                highest = max(highest, self.running[k] + (self.kept[k - 1] if k - 1 > low else 0))
                sweep[low, k] = (room - highest) // units.bytes
        return Segments(
            prefix=prefix_sums(self.costs),
            tail=np.zeros(n + 1),
            top=highest_visited(visited, n),
            hold=hold,
            sweep=sweep,
            pending=np.array([math.ceil(need / units.bytes) for need in self.pending], dtype=np.int64),
            visit=np.array([s // units.bytes for s in spare], dtype=np.int64),
            width=units.count + 1,
        )


def _is_of(graph: Graph, level: int, value: int) -> bool:
    return graph.producer[value] + 1 == level


def _with_last(splits: Splits, last: int) -> Splits:
    """Splits of the levels below ``last``, with that visited beside the one before it."""
    for low, k, r in splits:
        if r < last - 1:
            yield low, k, r
            continue
        yield low, k, last
        if k == r:
            yield k, last, last


_FEW_LEVELS, _FEW_NODES = 60, 500
"""Levels and nodes up to which the programme takes milliseconds; it takes 0.75 s for Inception v3 (31 levels, 627
nodes)."""
_SHARE = 0.5
"""Share of the stage's time for each of the two programmes."""


def chain_answer(
    graph: Graph, budget_bytes: int, *, seconds: float = LONGEST_S
) -> tuple[Schedule | None, tuple[Bound, ...]] | None:
    """A schedule and a lower bound from the structure of a chain, within seconds.

    Args:
        graph: Any graph.
        budget_bytes: Fixed memory included.
        seconds: Approximate time for each of the two programmes; with less time bytes are counted in larger units,
            which weakens the schedule and the bound.

    Returns:
        A schedule within the budget, or None, and bounds (an infinite one says that no schedule of its scope fits);
        None if the graph has no structure of a chain. On chains with equal sizes the cost meets the bound.
    """
    split = forward_end(graph)
    levels = Levels.of(graph, split)
    if levels is None:
        return None
    room = budget_bytes - graph.fixed_memory
    bound = Bound(levels.bound(room, seconds=seconds), _scope(graph))
    computes = None if math.isinf(bound.cost) else sweeps(graph, split, room, seconds=seconds)
    if computes is None or peak(graph, computes) > budget_bytes:
        return None, (bound,)
    return Schedule(computes), (bound,)


class ChainStructure(Once):
    """Offers the schedule and the bound of a chain."""

    def attempt(self) -> None:
        """Offer the result of :func:`chain_answer`."""
        incumbent = self.incumbent
        answer = chain_answer(incumbent.graph, incumbent.budget_bytes, seconds=incumbent.seconds(LONGEST_S, _SHARE))
        if answer is not None:
            schedule, bounds = answer
            for bound in bounds:
                incumbent.raise_bound(bound)
            if schedule is not None:
                incumbent.offer(schedule.computes)


def chain_first(graph: Graph) -> bool:
    """Whether to solve the chain before everything else.

    So if sizes are equal, because the result is then optimal, and if it takes milliseconds; not if bytes must be
    counted in coarse units, which needs a compiled loop.
    """
    levels = Levels.of(graph, forward_end(graph))
    if levels is None:
        return False
    quick = len(levels.costs) <= _FEW_LEVELS and len(graph.nodes) <= _FEW_NODES
    return quick or len({*levels.smallest}) == 1


def forward_end(graph: Graph) -> int:
    """Number of nodes in the forward part: those before the first of another phase, or before the no-remat peak."""
    if all(node.phase is not None for node in graph.nodes):
        return next((i for i, node in enumerate(graph.nodes) if node.phase is not Phase.FORWARD), len(graph.nodes))
    profile = no_remat_profile(graph)
    return profile.index(max(profile))


def _scope(graph: Graph) -> Scope:
    """Any order if there is only one; else document order."""
    path = all(any(graph.producer[v] == i - 1 for v in node.inputs) for i, node in enumerate(graph.nodes[1:], start=1))
    return Scope.ANY_ORDER if path else Scope.DOCUMENT_ORDER
