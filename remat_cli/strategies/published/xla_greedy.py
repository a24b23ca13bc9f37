"""XLA's rematerialisation pass: walk the schedule; where memory runs out, drop large values and recompute them later.

Source: openxla/xla, ``HloRematerialization``. One pass with a count of live memory. Where an instruction does not fit,
a run of earlier instructions is cloned to right before the next use of its values, so that they can be freed now.
Runs of one instruction are tried first; if none helps, longer ones, up to twice as long each time.

Differences: no compression and no offload to the host; first computations stay where they are, so XLA's free moves of
an instruction are recomputations here; runs are runs of the document, not of clones; and once no run helps at one
point, long runs are no longer tried, in place of XLA's limit on effort.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import ClassVar

from remat_cli.control import Control
from remat_cli.errors import UsageError
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.strategies.base import Context, Found, NotFound, Strategy, Task
from remat_cli.strategies.incumbent import Incumbent

_BLOCKS = (1, 4, 16)
_LONGEST = 5
"""Longest schedule, as a multiple of the number of nodes. Untuned."""


@dataclass(frozen=True, slots=True)
class XlaGreedy(Strategy):
    """Frees the most memory at every point where it runs out, at any cost.

    Attributes:
        block: Longest run of instructions to recompute together; None tries several and takes the cheapest plan within
            the budget. XLA's own default is 1.
        cost_aware: Take the run with the least cost per byte instead of the one with the most bytes.
    """

    block: int | None = field(
        default=None, metadata={"help": "longest run to recompute together; none: what fits the budget best"}
    )
    cost_aware: bool = field(default=False, metadata={"help": "least cost per byte instead of most bytes"})

    name: ClassVar[str] = "xla-greedy"
    summary: ClassVar[str] = "in one pass, recompute later what frees most memory where it runs out, as XLA does"
    reference: ClassVar[str] = "openxla/xla, HloRematerialization"
    ignores: ClassVar[frozenset[str]] = frozenset({"costs"})

    def __post_init__(self) -> None:
        """Refuse a length below 1."""
        if self.block is not None and self.block < 1:
            raise UsageError(f"xla-greedy{{block={self.block}}}: a run has at least one instruction")

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Walk the schedule for every length of runs."""
        incumbent = Incumbent.empty(task, context)
        budget = no_remat_peak(task.graph) if task.budget_bytes is None else task.budget_bytes
        aware = ",cost_aware=true" if self.cost_aware else ""
        for block in (self.block,) if self.block is not None else _BLOCKS:
            walk = _Walk(task.graph, budget, block, self.cost_aware)
            walk.run(context.control)
            incumbent.offer(walk.items, "" if self.block is not None else f"{self.name}{{block={block}{aware}}}")
            if incumbent.over() or not walk.stuck:  # longer runs would not have been tried
                break
        return incumbent.answer(self.name)


@dataclass(slots=True, eq=False)
class _Clone:
    """A recomputation that is still to run.

    Attributes:
        node: The node.
        anchor: The first computation before which it runs.
        rank: Its position among the recomputations before the same one.
    """

    node: int
    anchor: int
    rank: int


_Place = tuple[int, float]
"""Where something runs: the first computation there or next, and the rank of a recomputation before it."""
_Key = tuple[float, int, int]
"""How good a run is (least is best), its first node and its last."""
_GONE, _KEPT, _STAYS = 0, 1, 2
"""The future of a value: not read before it is recomputed; read; or kept to the end as an output."""


@dataclass(slots=True)
class _Lengths:
    """Runs within a range of lengths: for every node the best that ends with it, and the best of all.

    A run whose last node has no value to be read is no better than the run without that node, so it is left out.

    Attributes:
        shortest: Least number of nodes.
        longest: Largest number of nodes.
        best: The best run that ends with a node, if one frees memory.
        heap: The same, the best first; may hold outdated entries.
        changed: Nodes whose runs may have changed since the last update.
    """

    shortest: int
    longest: int
    best: dict[int, _Key]
    heap: list[_Key]
    changed: set[int]


@dataclass(slots=True)
class _Walk:
    """The schedule during the pass: the items that ran, the one that runs now, and those to come.

    Attributes:
        graph: The graph.
        budget: Bytes, fixed memory included.
        block: Longest run.
        cost_aware: Whether runs are chosen by cost per byte.
        items: Nodes by index that have run or run now; in the end the whole schedule.
        stage: Number of first computations that are done.
        passed: The same with the one in progress.
        length: Total number of items.
        stuck: Whether memory ran out at a point where no run helped.
        clones: Recomputations to come, by the first computation before which they run.
        events: For every value the recomputations to come that read or make it.
        state: The future of every value after the item in progress.
        kept_bytes: Bytes of the values that are read later.
        lengths: The runs of each range of lengths tried so far.
    """

    graph: Graph
    budget: int
    block: int
    cost_aware: bool
    items: list[int] = field(default_factory=list)
    stage: int = 0
    passed: int = 0
    length: int = 0
    stuck: bool = False
    clones: list[list[_Clone]] = field(default_factory=list)
    events: list[list[_Clone]] = field(default_factory=list)
    state: list[int] = field(default_factory=list)
    kept_bytes: int = 0
    lengths: dict[int, _Lengths] = field(default_factory=dict)
    outputs: frozenset[int] = frozenset()

    def run(self, control: Control) -> None:
        """Walk once through the schedule; an item that cannot be made to fit exceeds the budget."""
        graph = self.graph
        n, count = len(graph.nodes), len(graph.size)
        self.length, self.outputs = n, frozenset(graph.outputs)
        self.clones, self.events, self.state = [[] for _ in range(n)], [[] for _ in range(count)], [_GONE] * count
        for self.stage in range(n):
            self.passed = self.stage
            for clone in self.clones[self.stage]:  # more may be put behind it meanwhile
                for v in (*graph.nodes[clone.node].inputs, *graph.values_of(clone.node)):
                    self.events[v].remove(clone)
                self._proceed(clone.node, control)
            self.passed += 1
            self._proceed(self.stage, control)
            for lengths in self.lengths.values():
                lengths.changed.add(self.stage)

    def _proceed(self, node: int, control: Control) -> None:
        """Run ``node``, after making room for it as far as that is possible."""
        graph = self.graph
        self.items.append(node)
        pinned = frozenset((*graph.nodes[node].inputs, *graph.values_of(node)))
        self._look(pinned)
        while not control.stopping() and self._used(node, pinned) > self.budget:
            run = self._best_run(pinned)
            if run is None or self.length > _LONGEST * len(graph.nodes):
                self.stuck = True
                break
            self._insert(range(run[1], run[2] + 1))

    def _next_read(self, v: int) -> _Place | None:
        """Where a value is read next; None if it is recomputed before that or not read at all."""
        readers = self.graph.readers[v]
        k = bisect_left(readers, self.passed)
        end = len(self.graph.nodes) if v in self.outputs else None
        following = readers[k] if k < len(readers) else end
        place = None if following is None else (following, math.inf)
        if self.events[v]:
            clone = min(self.events[v], key=lambda c: (c.anchor, c.rank))
            if place is None or (clone.anchor, clone.rank) < place:
                return None if clone.node == self.graph.producer[v] else (clone.anchor, clone.rank)
        return place

    def _look(self, values: Iterable[int]) -> None:
        """Update the future of values, and mark the runs that this may change."""
        graph = self.graph
        for v in values:
            place = self._next_read(v)
            state = _GONE if place is None else _STAYS if place[0] == len(graph.nodes) else _KEPT
            if state != self.state[v]:
                self.kept_bytes += graph.size[v] * ((state != _GONE) - (self.state[v] != _GONE))
                self.state[v] = state
                for lengths in self.lengths.values():
                    lengths.changed.add(graph.producer[v])
                    lengths.changed.update(graph.readers[v])

    def _used(self, node: int, pinned: frozenset[int]) -> int:
        """Bytes in use while the item in progress runs."""
        graph = self.graph
        own = sum(graph.size[v] for v in pinned if self.state[v] == _GONE)
        return graph.fixed_memory + graph.nodes[node].workspace + self.kept_bytes + own

    def _best_run(self, pinned: frozenset[int]) -> _Key | None:
        """The best run to recompute, of the shortest range of lengths that has one; the first on a tie."""
        shortest = longest = 1
        while True:
            if shortest not in self.lengths:
                self.lengths[shortest] = _Lengths(shortest, longest, {}, [], set(range(self.stage)))
            best = self._best_of(self.lengths[shortest], pinned)
            if best is not None or longest >= (1 if self.stuck else self.block):
                return best
            shortest, longest = longest + 1, min(2 * longest, self.block)

    def _best_of(self, lengths: _Lengths, pinned: frozenset[int]) -> _Key | None:
        """The best run within a range of lengths.

        The values that the item in progress reads and makes are resident at no charge and cannot be freed. So runs with
        a node that makes or reads them are evaluated anew; of the others the best is known.
        """
        graph, heap = self.graph, lengths.heap
        for end in self._ends(lengths.changed, lengths.longest):
            known = self._ending(end, lengths, frozenset())
            if known is None:
                lengths.best.pop(end, None)
            elif known != lengths.best.get(end):
                lengths.best[end] = known
                heappush(heap, known)
        lengths.changed.clear()
        touched = {graph.producer[v] for v in pinned}
        touched.update(j for v in pinned if self.state[v] == _GONE for j in graph.readers[v])
        special = self._ends(touched, lengths.longest)
        best = min((run for end in special if (run := self._ending(end, lengths, pinned))), default=None)
        aside: list[_Key] = []
        while heap and (best is None or heap[0] < best):
            if lengths.best.get(heap[0][2]) != heap[0] or (aside and aside[-1] == heap[0]):
                heappop(heap)  # outdated, or a duplicate
            elif heap[0][2] in special:
                aside.append(heappop(heap))
            else:
                best = heap[0]
        for run in aside:
            heappush(heap, run)
        return best

    def _ends(self, nodes: Iterable[int], longest: int) -> set[int]:
        """The last nodes of all runs, up to a length, in which one of ``nodes`` is."""
        return {end for node in nodes for end in range(node, min(node + longest, self.stage))}

    def _ending(self, end: int, lengths: _Lengths, pinned: frozenset[int]) -> _Key | None:
        """The best run that ends with a node and frees memory now, if ``pinned`` are resident at no charge."""
        graph, state = self.graph, self.state
        if not any(state[v] for v in graph.values_of(end)):
            return None
        best: _Key | None = None
        operands: set[int] = set()
        gain, cost = 0, 0.0
        for start in range(end, max(-1, end - lengths.longest), -1):
            node, values = graph.nodes[start], graph.values_of(start)
            if not node.recompute or any(state[v] == _STAYS or v in pinned for v in values):
                break
            for v in values:
                if state[v] or v in operands:  # it may go; or it is made here and need not be kept for the run
                    gain += graph.size[v]
            for v in node.inputs:
                if v not in operands:
                    operands.add(v)
                    gain -= 0 if state[v] or v in pinned else graph.size[v]
            cost += node.cost
            if gain > 0 and end - start + 1 >= lengths.shortest:
                run = (cost / gain if self.cost_aware else -gain, start, end)
                best = run if best is None else min(best, run)
        return best

    def _insert(self, nodes: range) -> None:
        """Recompute ``nodes`` right before the first of their values is read next."""
        graph = self.graph
        values = dict.fromkeys(v for i in nodes for v in (*graph.nodes[i].inputs, *graph.values_of(i)))
        anchor, rank = min(place for v in values if (place := self._next_read(v)))
        there = self.clones[anchor]
        index = len(there) if rank == math.inf else int(rank)
        there[index:index] = [_Clone(i, anchor, 0) for i in nodes]
        for k in range(index, len(there)):
            there[k].rank = k
        for clone in there[index : index + len(nodes)]:
            for v in (*graph.nodes[clone.node].inputs, *graph.values_of(clone.node)):
                self.events[v].append(clone)
        self.length += len(nodes)
        self._look(values)
