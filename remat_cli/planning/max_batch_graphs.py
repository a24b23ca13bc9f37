"""The largest batch where every batch has a graph with costs and bytes of its own (Checkmate, sections 4.10 and 6.4).

Costs that were measured do not grow in proportion with the batch, so neither a plan's overhead nor a bound of one batch
holds for another. Every batch that the search tries is therefore solved on its own graph, within the memory itself, and
against its own limit of cost. Two things carry over: schedules, which are priced again where the graphs are of one
network, and the size of working sets, since memory does not fall as the batch grows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from remat_cli.control import Ending, Outcome, Progress
from remat_cli.errors import Infeasible, StrategyMismatch, UsageError
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.batched import Batched, alike
from remat_cli.graph.model import Graph
from remat_cli.plan.derive import peak
from remat_cli.plan.liveness import cost_of
from remat_cli.plan.model import Scope
from remat_cli.planning.job import Job
from remat_cli.planning.max_batch import (
    SEED_MOST_S,
    SEED_SHARE,
    SEEDED,
    Decision,
    MaxBatch,
    clock_of,
    middle,
    outcome_of,
    refuted,
)
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.pooled_runs import PooledRuns
from remat_cli.planning.solution_pool import SolutionPool
from remat_cli.planning.solved import Solved, replayed
from remat_cli.running import interruptible
from remat_cli.strategies.base import Found, Schedule, Task
from remat_cli.strategies.published.opener import OPENING_METHODS
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.tolerances import SAME_COST
from remat_cli.units import Budget

_MOST = 2**31 - 1
"""No batch above this is looked at."""
_GUESSES = 6
"""Batches that are guessed from a line through two others before every other step halves. Untuned."""


def max_batch_of(
    family: Batched | Callable[[int], Graph],
    memory_bytes: int,
    *,
    limit: Callable[[Graph], float],
    options: SolveOptions,
    listener: Callable[[Progress], None] | None = None,
) -> MaxBatch:
    """The largest batch for which some plan stays within a memory and a cost.

    Args:
        family: Graphs of several batches, or a function that makes the graph of a batch. Memory does not fall as the
            batch grows.
        memory_bytes: The memory, fixed memory included.
        limit: What a plan may cost on a graph, in the graph's unit.
        options: How to solve; the time limit is for the whole search.
        listener: Receives the progress, from any thread.

    Raises:
        Infeasible: If not even one sample fits.
        UsageError: If every batch fits.
        LimitReached, Interrupted: If the search has to stop before it has found any batch.
        SolverUnavailable, SolverFailed, StrategyMismatch: From the strategy.
    """
    started_s = time.monotonic() if options.started_s is None else options.started_s
    graphs = _Graphs(family, memory_bytes)
    if graphs.top < 1:
        raise Infeasible(
            f"not even one sample fits {memory_bytes} bytes: fixed memory and the largest working set need more",
            hint="give more memory",
        )
    job = Job.of(graphs.at(max(1, graphs.without)), replace(options, started_s=started_s), None)
    search = _Search(job, graphs, limit, listener)
    with interruptible(job.context.control):
        if job.strategy.name == SEEDED:
            search.seed()
        search.run()
    return search.result()


class _Graphs:
    """The graph of every batch, and which batches could fit."""

    def __init__(self, family: Batched | Callable[[int], Graph], memory_bytes: int) -> None:
        self.family = family
        self.memory = memory_bytes
        self._made: dict[int, Graph] = {}

    def at(self, batch: int) -> Graph:
        """The graph of a batch; made once."""
        if batch not in self._made:
            self._made[batch] = self.family.at(batch) if isinstance(self.family, Batched) else self.family(batch)
        return self._made[batch]

    @cached_property
    def given(self) -> tuple[int, ...]:
        """Batches with a graph that was given; empty if every batch has one."""
        return self.family.batches if isinstance(self.family, Batched) else ()

    @cached_property
    def without(self) -> int:
        """The largest batch without recomputation; 0 if even one sample does not fit."""
        return last_within(lambda batch: no_remat_peak(self.at(batch)), self.memory)

    @cached_property
    def top(self) -> int:
        """The largest batch whose working sets fit.

        Raises:
            UsageError: If all do.
        """
        return last_within(lambda batch: peak_bound(self._least_at(batch)).bytes, self.memory)

    def _least_at(self, batch: int) -> Graph:
        return self.family.least_at(batch) if isinstance(self.family, Batched) else self.at(batch)

    def last_of(self, schedule: Schedule, batch: int) -> int:
        """The largest batch at which a schedule, which fits at ``batch``, stays within the memory."""
        own = self.at(batch)

        def need(other: int) -> int:
            graph = self.at(other)
            return peak(graph, schedule.computes) if self.alike(own, graph) else self.memory + 1

        return last_within(need, self.memory, batch)

    def alike(self, one: Graph, other: Graph) -> bool:
        """Whether a schedule of one graph is one of the other."""
        return isinstance(self.family, Batched) or alike(one, other)


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


@dataclass(slots=True)
class _Search:
    """A search for the largest batch, under way.

    Attributes:
        job: What all runs share, but the graph.
        graphs: The graph of every batch.
        limit: What a plan may cost on a graph.
        listener: Receives the progress.
        maker: Text form of the strategy that makes the schedules; empty for the one asked for.
        pools: By batch: everything that was found for it, and what other batches left to it.
        low: The largest batch with a plan.
        open_top: The smallest batch that had a run without a result; the bisection stays below it.
        cut_short: Whether any of those runs ended because of its time limit.
        refuted: By batch that is proven impossible: the plans for which that is proven.
        tried: Batches that had a run, in order.
    """

    job: Job
    graphs: _Graphs
    limit: Callable[[Graph], float]
    listener: Callable[[Progress], None] | None
    maker: str = ""
    pools: dict[int, SolutionPool] = field(default_factory=dict)
    low: int = 0
    open_top: int = 0
    cut_short: bool = False
    refuted: dict[int, Scope] = field(default_factory=dict)
    tried: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Bound the search: from above by the working sets, from below by the plan that keeps everything."""
        self.open_top = self.graphs.top + 1
        if self.graphs.without:
            self._take(self.graphs.without)

    def seed(self) -> None:
        """Start from the batches that quick strategies find, each in a search of its own."""
        context = replace(self.job.context, control=self.job.context.control.part(SEED_SHARE, SEED_MOST_S))
        for spec in OPENING_METHODS:
            job = replace(self.job, context=context, strategy=strategy_from_spec(spec))
            other = _Search(job, self.graphs, self.limit, self.listener, spec)
            with suppress(StrategyMismatch):  # not for this graph
                other.run()
            for batch, pool in other.pools.items():
                for entry in pool.schedules:
                    self._pool(batch).add(entry.found)
            self._take(max(1, other.low))

    def run(self) -> None:
        """Bisect between ``low`` and ``open_top``; repeat if runs were cut short and there is time left."""
        while True:
            self.cut_short = False
            self._halve()
            if not self.cut_short or self._runs(max(1, self.low)).over() or self.job.context.control.deadline_s is None:
                return
            # Another round helps: it starts from the plans and bounds of this one, with the time that this one left.
            self.open_top = min([self.graphs.top + 1, *(batch for batch in self.refuted if batch > self.low)])

    def _halve(self) -> None:
        while self.low + 1 < self.open_top:
            batch = middle(self.low, self.open_top)
            runs = self._runs(batch)
            if runs.over():
                return
            self._attempt(batch, runs)

    def _attempt(self, batch: int, runs: PooledRuns) -> None:
        """Solve one batch, beginning with the schedules of all others, and draw what follows."""
        self.tried.append(batch)
        self._inherit(runs.pool)
        most_cost = self.limit(runs.job.graph)
        clock = clock_of(
            runs, self.low, self.open_top
        ).stoppable()  # with a flag of its own: a decision must stop this run, not the search
        listener = Decision(most_cost, batch, clock, self.listener).report
        answer, _ = runs.run(self.graphs.memory, replace(clock, listener=listener))
        ended = answer.exhausted if isinstance(answer, Found) else answer.scope is not None
        self._take(batch)
        if self.low >= batch:
            return
        self.open_top = min(self.open_top, batch)
        scope = refuted(runs.pool, self.graphs.memory, most_cost)
        if scope is not None:
            self.refuted[batch] = scope
        self.cut_short |= scope is None and not ended

    def _take(self, batch: int) -> None:
        """Raise ``low`` to this batch if its pool has a plan for it, and as far as that plan goes on its own."""
        pool = self._pool(batch)
        enough = self.limit(pool.graph) * (1 + SAME_COST)
        fitting = [entry for entry in pool.schedules if entry.peak_bytes <= self.graphs.memory and entry.cost <= enough]
        if not fitting:
            return
        self.low = max(self.low, batch)
        least = fitting[0].found
        if self.job.options.host is not None or least.schedule.held:
            return  # its time, or what it holds, belongs to its own graph
        last = self.graphs.last_of(least.schedule, batch)
        graph = self.graphs.at(last)
        if last > self.low and cost_of(graph, least.schedule.computes) <= self.limit(graph) * (1 + SAME_COST):
            self.low = last
            self._pool(last).add(_moved(least))

    def _pool(self, batch: int) -> SolutionPool:
        """The pool of a batch; a new one begins with keeping everything."""
        if batch not in self.pools:
            pool = self.pools[batch] = SolutionPool(self.graphs.at(batch), self.job.options.host)
            pool.add(Found(Schedule(tuple(range(len(pool.graph.nodes))))))
        return self.pools[batch]

    def _inherit(self, pool: SolutionPool) -> None:
        """Add the schedules of all other batches; none with a host, where a schedule's time belongs to its graph."""
        for other in self.pools.values() if pool.host is None else ():
            if other is not pool and self.graphs.alike(other.graph, pool.graph):
                for entry in other.schedules:
                    pool.add(_moved(entry.found))

    def _runs(self, batch: int) -> PooledRuns:
        """What runs on the graph of a batch."""
        pool = self._pool(batch)
        return PooledRuns(replace(self.job, graph=pool.graph), pool, self.maker)

    def result(self) -> MaxBatch:
        """The result of the search.

        Raises:
            LimitReached, Interrupted: If the search had to stop before it found a batch.
        """
        runs = self._runs(max(1, self.low))
        undecided = self.low < self.graphs.top and self.low + 1 not in self.refuted
        outcome = outcome_of(runs, self.low, undecided=undecided, cut_short=self.cut_short)
        above = tuple(sorted(batch for batch in self.refuted if batch > self.low))
        return MaxBatch(
            graph=runs.job.graph,
            graph_batch=max(1, self.low),
            memory_bytes=self.graphs.memory,
            most_cost=self.limit(runs.job.graph),
            without=self.graphs.without,
            found=self.low,
            impossible=self.graphs.top + 1,
            scope=Scope.DOCUMENT_ORDER if Scope.DOCUMENT_ORDER in self.refuted.values() else Scope.ANY_ORDER,
            solved=self._solved(runs, outcome) if self.low else None,
            budget_bytes=self.graphs.memory,
            tried=tuple(self.tried),
            outcome=outcome,
            wall_s=time.monotonic() - runs.job.started_s,
            given=self.graphs.given,
            refuted=above,
        )

    def _solved(self, runs: PooledRuns, outcome: Outcome) -> Solved:
        """The cheapest plan found for the batch."""
        memory = self.graphs.memory
        best = runs.pool.within(memory)
        assert best is not None  # the batch was found by a plan in this pool
        found = replace(best.found, bounds=runs.pool.bounds_at(memory))
        asked = Budget(Fraction(memory), False, f"{memory}B")
        return replayed(runs.job, Task(runs.job.graph, memory, host=runs.pool.host), found, Ending(outcome), asked)


def _moved(found: Found) -> Found:
    """A schedule on the graph of another batch: nothing that was proven comes along."""
    return replace(found, bounds=(), exhausted=False)
