"""What the search for the largest batch knows of batches: one graph at a budget for each, or a graph for each.

Costs that were measured do not grow in proportion with the batch (Checkmate, sections 4.10 and 6.4), so neither a
plan's overhead nor a bound of one batch holds for another. Where every batch has a graph of its own, each that the
search tries is therefore solved on its own graph, within the memory itself, and against its own limit of cost. Two
things carry over: schedules, which are priced again where the graphs are of one network, and the size of working sets,
since memory does not fall as the batch grows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from remat_cli.errors import UsageError
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.batched import Batched, alike
from remat_cli.graph.model import Graph
from remat_cli.plan.derive import peak
from remat_cli.plan.host import Host
from remat_cli.plan.liveness import cost_of
from remat_cli.planning.solution_pool import SolutionPool
from remat_cli.strategies.base import Found, Schedule
from remat_cli.tolerances import SAME_COST

_MOST = 2**31 - 1
"""No batch above this is looked at."""
_GUESSES = 6
"""Batches that are guessed from a line through two others before every other step halves. Untuned."""


class OneGraph:
    """One graph for all batches: each is a budget of it, and all share the pool of what was found.

    Attributes:
        given: The batch that the graph was made for.
        memory_bytes: The memory, fixed memory included.
        top: The largest batch whose working sets fit.
        without: The largest batch without recomputation; 0 if even one sample does not fit.
    """

    def __init__(self, graph: Graph, batch: int, memory_bytes: int, most_cost: float, host: Host | None) -> None:
        self.given, self.memory_bytes = (batch,), memory_bytes
        self._graph, self._most_cost, self._host = graph, most_cost, host
        self._room = memory_bytes - graph.fixed_memory
        self.top, self.without = self._last_of(peak_bound(graph).bytes), self._last_of(no_remat_peak(graph))
        self._best: Found | None = None

    def _last_of(self, peak_bytes: int) -> int:
        """The largest batch at which a plan of this peak fits."""
        return self._room * self.given[0] // (peak_bytes - self._graph.fixed_memory)

    def fresh(self) -> OneGraph:
        """The same batches, with nothing found yet, for strategies that copy nothing."""
        return OneGraph(self._graph, self.given[0], self.memory_bytes, self._most_cost, None)

    def add(self, other: OneGraph) -> None:
        """Add the schedules that another search has found."""
        for entry in other.pool(1).schedules:
            self._pool.add(entry.found)

    def most_cost(self, _: Graph) -> float:
        """What a plan may cost."""
        return self._most_cost

    def budget(self, batch: int) -> int:
        """The budget within which a plan must stay to fit at ``batch``."""
        return self._graph.fixed_memory + self._room * self.given[0] // batch

    def peak_at(self, batch: int, peak_bytes: int) -> int:
        """The peak at ``batch`` of a plan that peaks at ``peak_bytes`` at the graph's own batch."""
        fixed = self._graph.fixed_memory
        return fixed + -(-(peak_bytes - fixed) * batch // self.given[0])

    @cached_property
    def _pool(self) -> SolutionPool:
        return _new_pool(self._graph, self._host)

    def pool(self, _: int) -> SolutionPool:
        """Everything that was found."""
        return self._pool

    def inherit(self, batch: int) -> None:
        """All batches share one pool already."""

    def reached(self, _: int, low: int) -> int:
        """The largest batch that any schedule in the pool allows; ``low`` at least."""
        for entry in self._pool.schedules:
            batch = self._last_of(entry.peak_bytes)
            if entry.cost <= self._most_cost * (1 + SAME_COST) and batch > low:
                low, self._best = batch, entry.found
        return low

    def best(self, _: int) -> Found:
        """The plan for the largest batch reached."""
        assert self._best is not None
        return self._best


@dataclass(frozen=True, slots=True)
class OfSizes:
    """A graph for every size, of one network, whose bytes are known quickly.

    Attributes:
        exact: The graph of a size.
        rough: The graph of a size with the bytes of that size and costs of another; quick.
        most: The largest size that there is; None without such a limit.
    """

    exact: Callable[[int], Graph]
    rough: Callable[[int], Graph]
    most: int | None = None

    def last(self, peak: Callable[[Graph], int], memory: int, low: int = 0) -> int:
        """The last size whose peak, which does not fall, is within ``memory``; ``low``, if not even the next is."""
        return last_within(lambda n: memory + 1 if self.most and n > self.most else peak(self.rough(n)), memory, low)


Family: TypeAlias = Batched | OfSizes | Callable[[int], Graph]


class BatchGraphs:
    """A graph for every batch, each with a pool of its own and the whole memory as its budget.

    Attributes:
        given: Batches of which a graph was given; empty if every batch has one.
        memory_bytes: The memory, fixed memory included.
        most_cost: What a plan of a graph may cost.
    """

    def __init__(
        self,
        family: Family,
        memory_bytes: int,
        most_cost: Callable[[Graph], float],
        host: Host | None,
    ) -> None:
        self.family, self.memory_bytes, self.most_cost = family, memory_bytes, most_cost
        self.given = family.batches if isinstance(family, Batched) else ()
        self._host = host
        self._made: dict[int, Graph] = {}
        self._pools: dict[int, SolutionPool] = {}

    def fresh(self) -> BatchGraphs:
        """The same batches, with nothing found yet."""
        other = BatchGraphs(self.family, self.memory_bytes, self.most_cost, self._host)
        other._made, other.top, other.without = self._made, self.top, self.without
        return other

    def add(self, other: BatchGraphs) -> None:
        """Add the schedules that another search has found."""
        for batch, pool in other._pools.items():
            for entry in pool.schedules:
                self.pool(batch).add(entry.found)

    def at(self, batch: int) -> Graph:
        """The graph of a batch; made once."""
        if batch not in self._made:
            family = self.family
            make = family.at if isinstance(family, Batched) else family.exact if isinstance(family, OfSizes) else family
            self._made[batch] = make(batch)
        return self._made[batch]

    @cached_property
    def without(self) -> int:
        """The largest batch without recomputation; 0 if even one sample does not fit."""
        if isinstance(self.family, OfSizes):
            return self.family.last(no_remat_peak, self.memory_bytes)
        return last_within(lambda batch: no_remat_peak(self.at(batch)), self.memory_bytes)

    @cached_property
    def top(self) -> int:
        """The largest batch whose working sets fit.

        Raises:
            UsageError: If all do.
        """
        if isinstance(self.family, OfSizes):
            return self.family.last(lambda graph: peak_bound(graph).bytes, self.memory_bytes)
        least_at = self.family.least_at if isinstance(self.family, Batched) else self.at
        return last_within(lambda batch: peak_bound(least_at(batch)).bytes, self.memory_bytes)

    def budget(self, _: int) -> int:
        """The memory."""
        return self.memory_bytes

    def peak_at(self, _: int, peak_bytes: int) -> int:
        """The peak of a plan of a batch's own graph."""
        return peak_bytes

    def pool(self, batch: int) -> SolutionPool:
        """Everything that was found for a batch, and what other batches left to it."""
        if batch not in self._pools:
            self._pools[batch] = _new_pool(self.at(batch), self._host)
        return self._pools[batch]

    def inherit(self, batch: int) -> None:
        """Add the schedules of all other batches; none with a host, where a schedule's time belongs to its graph."""
        pool = self.pool(batch)
        for other in self._pools.values() if self._host is None else ():
            if other is not pool and self._alike(other.graph, pool.graph):
                for entry in other.schedules:
                    pool.add(_moved(entry.found))

    def reached(self, batch: int, low: int) -> int:
        """The largest batch with a plan: ``low``, or ``batch`` if its pool has one, and as far as that goes on."""
        pool = self.pool(batch)
        enough = self.most_cost(pool.graph) * (1 + SAME_COST)
        fitting = [one for one in pool.schedules if one.peak_bytes <= self.memory_bytes and one.cost <= enough]
        if not fitting:
            return low
        low, least = max(low, batch), fitting[0].found
        if self._host is not None or least.schedule.held:
            return low  # its time, or what it holds, belongs to its own graph
        last = self._last_of(least.schedule, batch)
        graph = self.at(last)
        if last > low and cost_of(graph, least.schedule.computes) <= self.most_cost(graph) * (1 + SAME_COST):
            low = last
            self.pool(last).add(_moved(least))
        return low

    def _last_of(self, schedule: Schedule, batch: int) -> int:
        """The largest batch at which a schedule, which fits at ``batch``, stays within the memory."""
        own = self.at(batch)
        if isinstance(self.family, OfSizes):
            rough = self.family.rough(batch + 1)
            if not alike(own, rough):
                return batch
            return self.family.last(lambda graph: peak(graph, schedule.computes), self.memory_bytes, batch)

        def need(other: int) -> int:
            graph = self.at(other)
            return peak(graph, schedule.computes) if self._alike(own, graph) else self.memory_bytes + 1

        return last_within(need, self.memory_bytes, batch)

    def _alike(self, one: Graph, other: Graph) -> bool:
        """Whether a schedule of one graph is one of the other."""
        return isinstance(self.family, Batched) or alike(one, other)

    def best(self, batch: int) -> Found:
        """The cheapest plan found for a batch that was reached."""
        entry = self.pool(batch).within(self.memory_bytes)
        assert entry is not None
        return entry.found


def _new_pool(graph: Graph, host: Host | None) -> SolutionPool:
    """A pool that begins with keeping everything."""
    pool = SolutionPool(graph, host)
    pool.add(Found(Schedule(tuple(range(len(graph.nodes))))))
    return pool


def _moved(found: Found) -> Found:
    """A schedule on the graph of another batch: nothing that was proven comes along."""
    return replace(found, bounds=(), exhausted=False)


def last_within(need: Callable[[int], int], memory: int, low: int = 0) -> int:
    """The last batch of which ``need``, which does not fall, is within ``memory``; ``low``, if not even the next is.

    Memory mostly grows by as much for each sample, so the line through two batches leads near it.

    Raises:
        UsageError: If every batch is.
    """
    samples: list[tuple[int, int]] = []
    high, batch, turn = _MOST + 1, low + 1, 0
    while low + 1 < high:
        needed = need(batch)
        samples = [*samples[-1:], (batch, needed)]
        low, high = (batch, high) if needed <= memory else (low, batch)
        turn += 1
        aim = _aim(samples, memory, low) if turn < _GUESSES or turn % 2 else 0
        batch = aim if low < aim < high else min(2 * low + 1, high - 1) if high > _MOST else (low + high) // 2
    if low >= _MOST:
        raise UsageError("memory does not grow with the batch, so every batch fits", hint="are these the right graphs?")
    return low


def _aim(samples: list[tuple[int, int]], memory: int, low: int) -> int:
    """The last batch within the memory on the line through two; the next if that is known to fit; 0 without a line."""
    if len(samples) < 2 or samples[0][1] == samples[1][1]:
        return 0
    (a, least), (b, most) = samples
    aim = a + (memory - least) * (b - a) // (most - least)
    return aim + 1 if aim == low else aim
