"""The largest batch that a memory holds at bounded extra cost (Checkmate, MLSys 2020, equations 10 and 11).

A batch b times as large makes every value b times as large. Fixed memory does not change. So a plan whose
values peak at V bytes for one sample fits a memory of M bytes up to the batch (M - fixed) / V. All costs grow by the
same factor, so the overhead of a plan does not depend on the batch; neither do shares of the time that copies without
latency take. The task is therefore to find the smallest peak of a plan of bounded overhead, in steps of whole batches:
every batch corresponds to a budget for the graph at its own batch. Where every batch has a graph of its own, see
:mod:`~remat_cli.planning.batch_graphs`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Generic, TypeVar

from remat_cli.control import MORE_TIME, Control, Ending, Outcome, Progress
from remat_cli.errors import Infeasible, Interrupted, LimitReached, StrategyMismatch, UsageError, Worded
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph, Phase
from remat_cli.plan.comparison import BatchFacts
from remat_cli.plan.model import Scope
from remat_cli.planning.batch_graphs import BatchGraphs, Family, OneGraph
from remat_cli.planning.job import Job
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.solution_pool import PooledRuns, SolutionPool
from remat_cli.planning.solved import Solved, replayed
from remat_cli.running import interruptible
from remat_cli.strategies.base import Found, Task
from remat_cli.strategies.published.opener import OPENING_METHODS
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.tolerances import CLEARLY_ABOVE, SAME_COST
from remat_cli.units import Budget

_UNTIMED_S = 60.0
"""Seconds for one batch if there is no time limit. Untuned."""
_SEEDED = "auto"
"""The strategy whose search begins with the batches that quick methods find."""
_SEED_SHARE, _SEED_MOST_S = 0.3, 30.0
"""Time for all quick methods together: a share of the time left, and most seconds. Untuned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxBatch(BatchFacts):
    """How large a batch may be.

    Attributes:
        graph: The graph, made for ``graph_batch`` samples; of several graphs, that of the batch found.
        solved: The plan for the batch found, on the graph at its own batch; None if there is none.
        budget_bytes: The budget of that plan on the graph at its own batch.
        wall_s: Seconds that the search took.
    """

    graph: Graph
    solved: Solved | None
    budget_bytes: int
    wall_s: float

    @property
    def proven(self) -> bool:
        """Whether the batch found is the largest there is (in ``scope``)."""
        undecided = range(self.found + 1, self.impossible)
        return len(undecided) <= len(self.refuted) and set(self.refuted).issuperset(undecided)


_PROPORTION = "times and bytes of one batch then hold for every other in proportion"


def one_forward(graph: Graph) -> float:
    """C0 plus the cost of all forward nodes: the cost limit that allows recomputing one forward pass.

    Raises:
        UsageError: If no node says that it is forward.
    """
    forward = [node.cost for node in graph.nodes if node.phase is Phase.FORWARD]
    if not forward:
        raise UsageError(
            "the graph does not say which nodes are forward, so one forward pass has no cost",
            hint=Worded(
                'give nodes "phase": "forward", or a percentage: max_overhead="30%"',
                'give nodes "phase": "forward", or a percentage: --max-overhead 30%',
            ),
        )
    return math.fsum([graph.no_remat_cost, *forward])


def _refuse_collectives(graph: Graph) -> None:
    """Refuse a graph with collectives.

    Raises:
        UsageError: If it has any.
    """
    if graph.overlaps:
        raise UsageError(
            "the largest batch is not searched for graphs with nodes in the communication queue, whose times do not "
            "grow with the batch",
            hint="solve graphs of single batches instead",
        )


def max_batch(
    graph: Graph,
    memory_bytes: int,
    *,
    graph_batch: int,
    most_cost: float,
    options: SolveOptions | None = None,
    listener: Callable[[Progress], None] | None = None,
) -> MaxBatch:
    """The largest batch of one graph within a memory and a cost; see :func:`remat_cli.max_batch`."""
    if graph_batch < 1:
        raise UsageError(f"a batch of {graph_batch} is too small", hint="say what batch the graph was made for")
    if no_remat_peak(graph) == graph.fixed_memory:
        raise UsageError("no value has a size, so every batch fits", hint="is this the right graph?")
    options = options or SolveOptions()
    batches = OneGraph(graph, graph_batch, memory_bytes, most_cost, options.host)
    if memory_bytes <= graph.fixed_memory or batches.top < 1:
        raise _nothing_fits(memory_bytes)
    job, host = Job.of(graph, options, None), options.host
    if host is not None and (host.latency_s or host.memory_bytes is not None):
        raise UsageError(
            "a search for the largest batch needs a host without latency and without a limit of its memory",
            hint=Worded(
                f"{_PROPORTION}: leave latency_s and memory_bytes out",
                f"{_PROPORTION}: leave --host-latency and --host-memory out",
            ),
        )
    return _searched(job, batches, listener)


def max_batch_of(
    family: Family,
    memory_bytes: int,
    *,
    limit: Callable[[Graph], float],
    options: SolveOptions,
    listener: Callable[[Progress], None] | None = None,
) -> MaxBatch:
    """The same, where every batch has a graph: of a family of several, or made by a function.

    ``limit`` is what a plan may cost on a graph, in the graph's unit. Memory does not fall as the batch grows.
    """
    started_s = time.monotonic() if options.started_s is None else options.started_s
    batches = BatchGraphs(family, memory_bytes, limit, options.host)
    if batches.top < 1:
        raise _nothing_fits(memory_bytes)
    job = Job.of(batches.at(max(1, batches.without)), replace(options, started_s=started_s), None)
    return _searched(job, batches, listener)


def _nothing_fits(memory_bytes: int) -> Infeasible:
    return Infeasible(
        f"not even one sample fits {memory_bytes} bytes: fixed memory and the largest working set need more",
        hint="give more memory",
    )


def _searched(job: Job, batches: B, listener: Callable[[Progress], None] | None) -> MaxBatch:
    """The answer of a search."""
    _refuse_collectives(job.graph)
    search = _Search(job, batches, listener)
    with interruptible(job.context.control):
        if job.strategy.name == _SEEDED:
            search.seed()
        search.run()
    return search.result()


B = TypeVar("B", OneGraph, BatchGraphs)


@dataclass(slots=True)
class _Search(Generic[B]):
    """A search for the largest batch, under way.

    Attributes:
        job: What all runs share, but the graph.
        batches: The batches, and everything that was found for them.
        listener: Receives the progress.
        maker: Text form of the strategy that makes the schedules; empty for the one asked for.
        low: The largest batch with a plan.
        open_top: The smallest batch that had a run without a result; the bisection stays below it.
        cut_short: Whether any of those runs ended because of its time limit.
        refuted: By batch that is proven impossible: the plans for which that is proven.
        tried: Batches that had a run, in order.
    """

    job: Job
    batches: B
    listener: Callable[[Progress], None] | None
    maker: str = ""
    low: int = 0
    open_top: int = 0
    cut_short: bool = False
    refuted: dict[int, Scope] = field(default_factory=dict)
    tried: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Bound the search: from above by the working sets, from below by the plan that keeps everything."""
        self.open_top = self.batches.top + 1
        if self.batches.without:
            self.low = self.batches.reached(self.batches.without, self.low)

    def seed(self) -> None:
        """Start from the batches that quick strategies find, each in a search of its own."""
        context = replace(self.job.context, control=self.job.context.control.part(_SEED_SHARE, _SEED_MOST_S))
        for spec in OPENING_METHODS:
            job = replace(self.job, context=context, strategy=strategy_from_spec(spec))
            other = _Search(job, self.batches.fresh(), self.listener, spec)
            with suppress(StrategyMismatch):  # not for this graph
                other.run()
            self.batches.add(other.batches)
            if isinstance(self.batches, BatchGraphs):
                self.low = self.batches.reached(max(1, other.low), self.low)
        if isinstance(self.batches, OneGraph):
            self.low = self.batches.reached(1, self.low)

    def run(self) -> None:
        """Bisect between ``low`` and ``open_top``; repeat if runs were cut short and there is time left."""
        while True:
            self.cut_short = False
            self._halve()
            if not self.cut_short or self._runs(max(1, self.low)).over() or self.job.context.control.deadline_s is None:
                return
            # Another round helps: it starts from the plans and bounds of this one, with the time that this one left.
            self.open_top = self._impossible

    @property
    def _impossible(self) -> int:
        """The smallest batch above ``low`` that is proven impossible."""
        return min([self.batches.top + 1, *(batch for batch in self.refuted if batch > self.low)])

    def _halve(self) -> None:
        while self.low + 1 < self.open_top:
            # The geometric mean, since a budget is inversely proportional to a batch.
            low, top = self.low, self.open_top
            batch = min(max(math.isqrt(low * top), low + 1), top - 1) if low else max(1, top // 2)
            runs = self._runs(batch)
            if runs.over():
                return
            self._attempt(batch, runs)
            if self._one_plan:
                return

    @property
    def _one_plan(self) -> bool:
        """Whether there is one plan for all batches, because the strategy ignores the budget."""
        return isinstance(self.batches, OneGraph) and not self.job.strategy.minds_budget

    def _attempt(self, batch: int, runs: PooledRuns) -> None:
        """Solve one batch, beginning with the schedules of all others, and draw what follows."""
        self.tried.append(batch)
        self.batches.inherit(batch)
        budget, most_cost = self.batches.budget(batch), self.batches.most_cost(runs.job.graph)
        # With a flag of its own: a decision must stop this run, not the search.
        clock = self._clock(runs).stoppable()
        listener = _Decision(most_cost, batch, clock, self.listener).report
        answer, _ = runs.run(budget, replace(clock, listener=listener))
        ended = answer.exhausted if isinstance(answer, Found) else answer.scope is not None
        self.low = self.batches.reached(batch, self.low)
        if self.low >= batch:
            return
        self.open_top = min(self.open_top, batch)
        scope = _refuted(runs.pool, budget, most_cost)
        if scope is not None:
            self.refuted[batch] = scope
        self.cut_short |= scope is None and not ended

    def _runs(self, batch: int) -> PooledRuns:
        """What runs on the graph of a batch."""
        pool = self.batches.pool(batch)
        return PooledRuns(replace(self.job, graph=pool.graph), pool, self.maker)

    def _clock(self, runs: PooledRuns) -> Control:
        """The clock of the next run, if the bisection goes on after it."""
        if runs.control.deadline_s is None:
            return runs.control.part(most_s=_UNTIMED_S)
        return runs.first_of(max(1, math.ceil(math.log2(max(2, self.open_top - self.low)))))

    def result(self) -> MaxBatch:
        """The result of the search.

        Raises:
            LimitReached, Interrupted: If the search had to stop before it found a batch.
        """
        batches, runs = self.batches, self._runs(max(1, self.low))
        outcome, graph, budget = self._outcome(runs), runs.job.graph, batches.budget(max(1, self.low))
        solved = peak_bytes = cost = strategy = None
        if self.low:
            found = replace(batches.best(self.low), bounds=runs.pool.bounds_at(budget))
            asked = Budget(Fraction(budget), False, f"{budget}B")
            solved = replayed(runs.job, Task(graph, budget, host=runs.pool.host), found, Ending(outcome), asked)
            replay, strategy = solved.report.replay, solved.plan.strategy
            peak_bytes, cost = batches.peak_at(self.low, replay.peak_bytes), replay.time
        if isinstance(batches, OneGraph):  # what is impossible for one batch is so for all larger ones
            graph_batch, impossible, refuted = batches.given[0], self._impossible, ()
            scopes = [self.refuted.get(impossible, Scope.ANY_ORDER)]
        else:
            graph_batch, impossible, scopes = max(1, self.low), batches.top + 1, list(self.refuted.values())
            refuted = tuple(sorted(batch for batch in self.refuted if batch > self.low))
        return MaxBatch(
            graph=graph,
            graph_batch=graph_batch,
            memory_bytes=batches.memory_bytes,
            most_cost=batches.most_cost(graph),
            without=batches.without,
            found=self.low,
            impossible=impossible,
            scope=Scope.DOCUMENT_ORDER if Scope.DOCUMENT_ORDER in scopes else Scope.ANY_ORDER,
            solved=solved,
            budget_bytes=budget,
            peak_bytes=peak_bytes,
            cost=cost,
            strategy=strategy,
            tried=tuple(self.tried),
            outcome=outcome,
            wall_s=time.monotonic() - runs.job.started_s,
            given=batches.given,
            refuted=refuted,
        )

    def _outcome(self, runs: PooledRuns) -> Outcome:
        """How the search ended.

        Raises:
            LimitReached, Interrupted: If it had to stop before it found a batch.
        """
        control, over = runs.control, runs.over()
        undecided = self.low < self.batches.top and self.low + 1 not in self.refuted and not self._one_plan
        late = undecided and (self.cut_short or over)
        outcome = control.stopped_by() if late or control.cancelled.is_set() else Outcome.FINISHED
        if self.low == 0 and outcome is Outcome.INTERRUPTED:
            raise Interrupted("interrupted before a plan for any batch was found")
        if self.low == 0 and over:
            raise LimitReached("the time limit came before a plan for any batch", hint=MORE_TIME)
        return outcome


def _refuted(pool: SolutionPool, budget_bytes: int, most_cost: float) -> Scope | None:
    """The plans of which none stays within a budget and a cost, as the pool proves it; None if it proves no such thing.

    Only proofs for all plans in any order or in document order count: a narrower class says too little.
    """
    scopes = [b.scope for b in pool.bounds_at(budget_bytes) if b.cost > most_cost * (1 + CLEARLY_ABOVE)]
    failure = pool.failures.get(budget_bytes)
    if failure is not None and failure.scope is not None:
        scopes.append(failure.scope)
    return next((scope for scope in (Scope.ANY_ORDER, Scope.DOCUMENT_ORDER) if scope in scopes), None)


@dataclass(frozen=True, slots=True)
class _Decision:
    """Stops a run once its batch is decided: by a plan that is cheap enough, or by a bound above the cost limit."""

    most_cost: float
    batch: int
    clock: Control
    listener: Callable[[Progress], None] | None

    def report(self, news: Progress) -> None:
        """Compare the latest cost and bound with the cost limit, and pass ``news`` on."""
        cheap = news.cost is not None and news.cost <= self.most_cost * (1 + SAME_COST)
        hopeless = not cheap and news.bound is not None and news.bound > self.most_cost * (1 + CLEARLY_ABOVE)
        if cheap or hopeless:
            self.clock.cancelled.set()
        if self.listener is not None:
            self.listener(replace(news, activity=f"batch {self.batch}: {news.activity}"))
