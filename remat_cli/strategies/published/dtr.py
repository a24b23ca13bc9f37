"""Dynamic tensor rematerialisation, replayed offline: run the graph under the budget, evict when memory runs out.

Source: Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021. While an operation does not fit, the value with
the smallest score is evicted. When an evicted value is read, it is recomputed first, recursively. A value with no
readers left in the graph is evicted at once (the paper's eager eviction). The recorded decisions are the schedule; all
reads are known in advance, so there is no bookkeeping at run time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from remat_cli.control import Control
from remat_cli.errors import UsageError
from remat_cli.graph.model import Graph
from remat_cli.mip import Floats
from remat_cli.strategies.base import Context, Found, NotFound, Strategy, Task
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.published.model_size import last_stages

_SCORES = ("eq", "full", "local", "msps", "lru", "size")


@dataclass(frozen=True, slots=True)
class Dtr(Strategy):
    """Evicts the value that is cheapest to recompute, largest, and longest unused.

    Attributes:
        h: Score of a value: cost / (size * staleness), with the cost of ``full``: the value and all evicted values
            around it that its recomputation may need; ``eq``: the same, approximated by classes that are merged and
            never split; ``local``: the value alone. Or ``msps``: cost of the value and its evicted ancestors / size;
            ``lru``: 1 / staleness; ``size``: 1 / size.
        most_cost: Evict no more when the schedule costs this multiple of C0.
    """

    h: str = field(default="eq", metadata={"choices": _SCORES, "help": f"score: {', '.join(_SCORES)}"})
    most_cost: float = field(default=10.0, metadata={"help": "give up beyond this multiple of the graph's cost"})

    name: ClassVar[str] = "dtr"
    summary: ClassVar[str] = "run the graph and evict by a score when memory runs out; an online method, offline"
    reference: ClassVar[str] = "Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021"

    def __post_init__(self) -> None:
        """Refuse a limit below 1 or an infinite one."""
        if not 1 <= self.most_cost < math.inf:
            raise UsageError(f"dtr{{most_cost={self.most_cost:g}}}: the graph itself costs 1")

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Run the graph under the budget; exceed it where nothing is left to evict."""
        incumbent = Incumbent.empty(task, context)
        room = math.inf if task.budget_bytes is None else task.budget_bytes - task.graph.fixed_memory
        machine = _Machine(task.graph, room, self.h, self.most_cost * task.graph.total_cost, context.control)
        machine.run()
        incumbent.offer(machine.computes)
        return incumbent.answer(self.name)


@dataclass(slots=True)
class _Classes:
    """Evicted values in classes of neighbours, each with its cost (the paper's union-find approximation)."""

    parent: dict[int, int] = field(default_factory=dict)
    cost: dict[int, float] = field(default_factory=dict)

    def root(self, v: int) -> int:
        """The class of the evicted value ``v``."""
        while self.parent[v] != v:
            self.parent[v] = self.parent[self.parent[v]]
            v = self.parent[v]
        return v

    def add(self, v: int, name: int, cost: float, neighbours: list[int]) -> None:
        """Put an evicted value, under a new name, into one class with its evicted neighbours."""
        self.parent[name], self.cost[name] = name, cost
        for other in neighbours:
            root = self.root(other)
            if root != name:
                self.parent[root] = name
                self.cost[name] += self.cost[root]


@dataclass(slots=True, eq=False)
class _Table:
    """Bounds on the scores of values: weight / size, for some scores also divided by the time since the last use.

    Attributes:
        known: float64[V], a lower bound on the weight of each.
        shown: float64[V], the same for values that may be evicted, infinity for the others.
        size: float64[V], the divisor of the weight.
        accessed: float64[V], the clock at the last use.
        timed: Whether staleness counts.
    """

    known: Floats
    shown: Floats
    size: Floats
    accessed: Floats
    timed: bool

    @classmethod
    def of(cls, weights: list[float], sizes: list[float], *, timed: bool) -> _Table:
        """A table in which no value may be evicted."""
        count = len(weights)
        known, size = np.array(weights, dtype=np.float64), np.array(sizes, dtype=np.float64)
        return cls(known, np.full(count, np.inf), size, np.zeros(count), timed)

    def show(self, v: int, *, free: bool) -> None:
        """Set whether a value may be evicted."""
        self.shown[v] = self.known[v] if free else np.inf

    def know(self, v: int, weight: float) -> None:
        """Set a new bound on a weight."""
        self.known[v] = weight
        if self.shown[v] != np.inf:
            self.shown[v] = weight

    def rising(self, clock: float, besides: range) -> Iterator[int]:
        """The evictable value outside ``besides`` with the least bound on its score, repeatedly.

        The caller takes the next one after it has raised the bound of the last.
        """
        over = self.size
        if self.timed:
            over = over * np.maximum(clock - self.accessed, max(1e-9 * clock, 1e-300))
        with np.errstate(divide="ignore"):  # values without a size never go
            scores = self.shown / over
        scores[besides.start : besides.stop] = np.inf
        while len(scores):
            v = int(scores.argmin())
            if scores[v] == np.inf:
                return
            yield v
            scores[v] = self.shown[v] / over[v]


@dataclass(slots=True)
class _Machine:
    """A device with little memory that runs the graph.

    The part of a score that depends on other values is recomputed only if it may have fallen, and else only for the
    next victim. Evictions enlarge classes and chains of evicted values, so an old weight is a lower bound.

    Attributes:
        graph: The graph.
        room: Bytes beside the fixed memory.
        score: Name of the score.
        most_cost: Cost at which eviction ends.
        control: Once it stops, eviction ends too.
        computes: What ran so far.
        resident: Values in memory.
        clock: Cost of all that ran.
    """

    graph: Graph
    room: float
    score: str
    most_cost: float
    control: Control
    computes: list[int] = field(default_factory=list)
    resident: set[int] = field(default_factory=set)
    clock: float = 0.0
    used: int = 0
    stage: int = 0
    locks: dict[int, int] = field(default_factory=dict)
    evicted: dict[int, int] = field(default_factory=dict)
    """Evicted values, with their names in ``classes``."""
    names: int = 0
    classes: _Classes = field(default_factory=_Classes)
    last: list[int] = field(default_factory=list)
    outputs: frozenset[int] = frozenset()
    table: _Table = field(init=False)

    def __post_init__(self) -> None:
        """Nothing is in memory yet."""
        graph = self.graph
        self.outputs = frozenset(graph.outputs)
        plain = [1.0 if self.score in {"lru", "size"} else graph.nodes[i].cost for i in graph.producer]
        sizes = [1.0 if self.score == "lru" else float(size) for size in graph.size]
        self.table = _Table.of(plain, sizes, timed=self.score not in {"size", "msps"})

    def run(self) -> None:
        """Run all nodes in document order; without a limit once the control stops or the schedule costs too much."""
        graph = self.graph
        self.last = last_stages(graph)
        dropped_after: list[list[int]] = [[] for _ in graph.nodes]
        forgotten_after: list[list[int]] = [[] for _ in range(len(graph.nodes) + 1)]
        for v, i in enumerate(graph.producer):
            if v not in self.outputs:
                dropped_after[max(graph.readers[v], default=i)].append(v)
            forgotten_after[self.last[i]].append(v)
        for self.stage in range(len(graph.nodes)):
            self._materialise(self.stage)
            for v in dropped_after[self.stage]:
                if graph.nodes[graph.producer[v]].recompute or self.last[graph.producer[v]] <= self.stage:
                    self._evict(v)
            for v in forgotten_after[self.stage]:
                self._evict(v)
                self._forget(v)
        for v in graph.outputs:
            self._lock_value(v, 1)
        for v in graph.outputs:
            if v not in self.resident:
                self._materialise(graph.producer[v])

    def _materialise(self, node: int) -> None:
        """Run ``node``, and before it, recursively, the producers of inputs that are not resident."""
        graph, stack = self.graph, [node]
        self._lock(node, 1)
        while stack:
            top = stack[-1]
            missing = next((v for v in graph.nodes[top].inputs if v not in self.resident), None)
            if missing is not None:
                stack.append(graph.producer[missing])
                self._lock(stack[-1], 1)
                continue
            self._compute(top)
            self._lock(top, -1)
            stack.pop()

    def _lock(self, node: int, change: int) -> None:
        for v in self.graph.nodes[node].inputs:
            self._lock_value(v, change)

    def _lock_value(self, v: int, change: int) -> None:
        self.locks[v] = self.locks.get(v, 0) + change
        self._show(v)

    def _show(self, v: int) -> None:
        """Allow or forbid the eviction of a value, according to its state."""
        free = v in self.resident and not self.locks.get(v, 0) and self.graph.size[v] > 0
        self.table.show(v, free=free and self.graph.nodes[self.graph.producer[v]].recompute)

    def _compute(self, i: int) -> None:
        graph, node = self.graph, self.graph.nodes[i]
        made = [v for v in graph.values_of(i) if v not in self.resident]
        need = sum(graph.size[v] for v in made) + node.workspace
        while self.used + need > self.room:
            victim = self._victim(i)
            if victim is None:
                break
            self._evict(victim)
        self.computes.append(i)
        self.clock += node.cost
        if self.clock > self.most_cost or self.control.stopping():
            self.room = math.inf
        for v in made:
            self.resident.add(v)
            self.used += graph.size[v]
            self._forget(v)
            self._show(v)
        for v in (*node.inputs, *graph.values_of(i)):
            self.table.accessed[v] = self.clock
        for v in made:
            if i != self.stage and not self._wanted(v):
                self._evict(v)  # an output that came along

    def _wanted(self, v: int) -> bool:
        """Whether a recomputation in progress needs the value, or a node that has not run yet will read it."""
        readers = self.graph.readers[v]
        return self.locks.get(v, 0) > 0 or (bool(readers) and readers[-1] >= self.stage) or v in self.outputs

    def _evict(self, v: int) -> None:
        if v not in self.resident:
            return
        self.resident.discard(v)
        self.used -= self.graph.size[v]
        self._show(v)
        if self.score == "eq":
            neighbours = [self.evicted[w] for w in self._around(v) if w in self.evicted]
            self.names += 1
            self.classes.add(v, self.names, self._cost(v), neighbours)
        self.evicted[v] = self.names

    def _forget(self, v: int) -> None:
        """``v`` no longer counts as evicted, so the bounds on the values around it are reset."""
        if self.evicted.pop(v, None) is None or self.score not in {"eq", "full", "msps"}:
            return
        reached = {v}
        if self.score != "eq":
            reached |= self._evicted_from(v, up=False)
            reached |= self._evicted_from(v, up=True) if self.score == "full" else set()
        for w in reached:
            for u in self._around(w):
                self.table.know(u, self._cost(u))

    def _victim(self, running: int) -> int | None:
        """The value with the smallest score that may be evicted while ``running`` runs; the first on a tie."""
        for v in self.table.rising(self.clock, self.graph.values_of(running)):
            weight = self._weight(v)
            if weight <= self.table.known[v]:
                return v
            self.table.know(v, weight)
        return None

    def _weight(self, v: int) -> float:
        """The weight of a value: the score before it is divided by size, staleness or both."""
        if self.score in {"lru", "size"}:
            return 1.0
        cost = self._cost(v)
        if self.score == "eq":
            roots = {self.classes.root(self.evicted[w]) for w in self._around(v) if w in self.evicted}
            cost += sum(self.classes.cost[root] for root in sorted(roots))
        elif self.score in {"full", "msps"}:
            around = self._evicted_from(v, up=True)
            around |= self._evicted_from(v, up=False) if self.score == "full" else set()
            cost += sum(self._cost(w) for w in around)
        return cost

    def _cost(self, v: int) -> float:
        return self.graph.nodes[self.graph.producer[v]].cost

    def _around(self, v: int) -> Iterator[int]:
        """Inputs of the producer of ``v``, and values made from ``v``."""
        yield from self._next(v, up=True)
        yield from self._next(v, up=False)

    def _next(self, v: int, *, up: bool) -> Iterator[int]:
        if up:
            yield from self.graph.nodes[self.graph.producer[v]].inputs
        else:
            for j in self.graph.readers[v]:
                yield from self.graph.values_of(j)

    def _evicted_from(self, v: int, *, up: bool) -> set[int]:
        """Evicted values reached from ``v`` through evicted values alone, towards inputs (``up``) or readers."""
        found: set[int] = set()
        todo = [v]
        while todo:
            for w in self._next(todo.pop(), up=up):
                if w in self.evicted and w not in found:
                    found.add(w)
                    todo.append(w)
        return found
