"""The largest batch that a memory holds at bounded extra cost (Checkmate, MLSys 2020, equations 10 and 11).

A batch b times as large makes every value b times as large. Fixed memory does not change. So a plan whose values peak
at V bytes for one sample fits a memory of M bytes up to the batch (M - fixed) / V. All costs grow by the same factor,
so the overhead of a plan does not depend on the batch; neither do shares of the time that copies without latency take.
The task is therefore to find the smallest peak of a plan of bounded overhead, in steps of whole batches: every batch
corresponds to a budget for the graph at its own batch. Where every batch has a graph of its own, :mod:`batch_graphs`
searches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction

from remat_cli.control import MORE_TIME, Control, Ending, Outcome, Progress
from remat_cli.errors import Infeasible, Interrupted, LimitReached, StrategyMismatch, UsageError, Worded
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph, Phase
from remat_cli.plan.comparison import BatchFacts
from remat_cli.plan.model import Scope
from remat_cli.planning.job import Job
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.pooled_runs import PooledRuns
from remat_cli.planning.solution_pool import SolutionPool
from remat_cli.planning.solved import Solved, replayed
from remat_cli.running import interruptible
from remat_cli.strategies.base import Found, Schedule, Task
from remat_cli.strategies.published.opener import OPENING_METHODS
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.tolerances import CLEARLY_ABOVE, SAME_COST
from remat_cli.units import Budget

UNTIMED_S = 60.0
"""Seconds for one batch if there is no time limit. Untuned."""
SEEDED = "auto"
"""The strategy whose search begins with the batches that quick methods find."""
SEED_SHARE, SEED_MOST_S = 0.3, 30.0
"""Time for all quick methods together: a share of the time left, and most seconds. Untuned."""


@dataclass(frozen=True, slots=True)
class MaxBatch:
    """How large a batch may be.

    Attributes:
        graph: The graph, made for ``graph_batch`` samples; of several graphs, that of the batch found.
        graph_batch: Samples that the graph was made for.
        memory_bytes: The memory, fixed memory included.
        most_cost: What a plan may cost, in the graph's unit, at the graph's batch.
        without: The largest batch without recomputation; 0 if even one sample does not fit.
        found: The largest batch for which there is a plan; 0 if there is none.
        impossible: No plan in ``scope`` for this batch or a larger one is within memory and cost.
        scope: The set of plans for which ``impossible`` and ``refuted`` are proven.
        solved: The plan for ``found``, on the graph at its own batch; None if there is none.
        budget_bytes: The budget of that plan on the graph at its own batch.
        tried: Batches that had a run, in order.
        outcome: How the search ended; ``TIME_LIMIT`` if time was too short to decide every batch.
        wall_s: Seconds that the search took.
        given: Batches of which a graph was given; empty if a function made the graph of every batch.
        refuted: Single batches below ``impossible`` that are proven to be too large. Where every batch has costs of
            its own, that says nothing of larger ones.
    """

    graph: Graph
    graph_batch: int
    memory_bytes: int
    most_cost: float
    without: int
    found: int
    impossible: int
    scope: Scope
    solved: Solved | None
    budget_bytes: int
    tried: tuple[int, ...]
    outcome: Outcome
    wall_s: float
    given: tuple[int, ...] = ()
    refuted: tuple[int, ...] = ()

    @property
    def proven(self) -> bool:
        """Whether the batch found is the largest there is (in ``scope``)."""
        undecided = range(self.found + 1, self.impossible)
        return len(undecided) <= len(self.refuted) and set(self.refuted).issuperset(undecided)

    def facts(self) -> BatchFacts:
        """The facts for a report."""
        replay = None if self.solved is None else self.solved.report.replay
        return BatchFacts(
            memory_bytes=self.memory_bytes,
            most_cost=self.most_cost,
            without=self.without,
            found=self.found,
            impossible=self.impossible,
            scope=self.scope,
            graph_batch=self.graph_batch,
            peak_bytes=None if replay is None else self._peak_at(replay.peak_bytes),
            cost=None if replay is None else replay.time,
            strategy=None if self.solved is None else self.solved.plan.strategy,
            tried=self.tried,
            outcome=self.outcome,
            given=self.given,
            refuted=self.refuted,
        )

    def _peak_at(self, peak_bytes: int) -> int:
        """The peak at batch ``found`` of a plan that peaks at ``peak_bytes`` at the graph's own batch."""
        fixed = self.graph.fixed_memory
        return fixed + -(-(peak_bytes - fixed) * self.found // self.graph_batch)


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
    return math.fsum([graph.total_cost, *forward])


def max_batch(
    graph: Graph,
    memory_bytes: int,
    *,
    graph_batch: int,
    most_cost: float,
    options: SolveOptions | None = None,
    listener: Callable[[Progress], None] | None = None,
) -> MaxBatch:
    """The largest batch for which some plan stays within a memory and a cost, by bisection over solves.

    Args:
        graph: The graph at ``graph_batch`` samples; all of it but ``fixed_memory`` grows with the batch.
        memory_bytes: The memory, fixed memory included.
        graph_batch: Samples that the graph was made for.
        most_cost: What a plan may cost, in the graph's unit (see :func:`one_forward`).
        options: How to solve; the time limit is for the whole search.
        listener: Receives the progress, from any thread.

    Raises:
        Infeasible: If fixed memory alone, or the working set of one sample, does not fit.
        UsageError: If memory does not grow with the batch, or ``graph_batch`` is less than 1.
        LimitReached, Interrupted: If the search has to stop before it has found any batch.
        SolverUnavailable, SolverFailed, StrategyMismatch: From the strategy.
    """
    if graph_batch < 1:
        raise UsageError(f"a batch of {graph_batch} is too small", hint="say what batch the graph was made for")
    if no_remat_peak(graph) == graph.fixed_memory:
        raise UsageError("no value has a size, so every batch fits", hint="is this the right graph?")
    room = memory_bytes - graph.fixed_memory
    scale = _Scale(graph.fixed_memory, room, graph_batch)
    if room <= 0 or scale.batch_at(peak_bound(graph).bytes) < 1:
        raise Infeasible(
            f"not even one sample fits {memory_bytes} bytes: fixed memory and the largest working set need more",
            hint="give more memory",
        )
    job = Job.of(graph, options or SolveOptions(), None)
    host = job.options.host
    if host is not None and (host.latency_s or host.memory_bytes is not None):
        raise UsageError(
            "a search for the largest batch needs a host without latency and without a limit of its memory",
            hint=Worded(
                f"{_PROPORTION}: leave latency_s and memory_bytes out",
                f"{_PROPORTION}: leave --host-latency and --host-memory out",
            ),
        )
    search = _Search(PooledRuns(job, SolutionPool(graph, host)), scale, most_cost, listener)
    with interruptible(search.runs.control):
        if job.strategy.name == SEEDED:
            search.seed()
        search.run()
    return search.result(memory_bytes)


@dataclass(frozen=True, slots=True)
class _Scale:
    """Converts batches to budgets of the graph at its own batch, and peaks to batches."""

    fixed: int
    room: int
    graph_batch: int

    def budget(self, batch: int) -> int:
        """The budget within which a plan must stay to fit at ``batch``."""
        return self.fixed + self.room * self.graph_batch // batch

    def batch_at(self, peak_bytes: int) -> int:
        """The largest batch at which a plan of this peak fits."""
        return self.room * self.graph_batch // (peak_bytes - self.fixed)


@dataclass(slots=True)
class _Search:
    """A search for the largest batch, under way.

    Attributes:
        low: The largest batch with a plan, ``best``.
        high: The smallest batch that is proven impossible in ``scope``.
        open_top: The smallest batch that had a run without a result; the bisection stays below it.
        cut_short: Whether any of those runs ended because of its time limit.
        tried: Batches that had a run, in order.
    """

    runs: PooledRuns
    scale: _Scale
    most_cost: float
    listener: Callable[[Progress], None] | None
    low: int = 0
    best: Found | None = None
    high: int = 0
    open_top: int = 0
    cut_short: bool = False
    scope: Scope = Scope.ANY_ORDER
    tried: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Bound the search: from above by the working sets, from below by the plan that keeps everything."""
        graph = self.runs.job.graph
        self.runs.pool.add(Found(Schedule(tuple(range(len(graph.nodes))))))
        self.high = self.open_top = self.scale.batch_at(peak_bound(graph).bytes) + 1
        self._take_schedules()

    def seed(self) -> None:
        """Start from the batches that quick strategies find, each in a search of its own."""
        job, pool = self.runs.job, self.runs.pool
        job = replace(job, context=replace(job.context, control=self.runs.control.part(SEED_SHARE, SEED_MOST_S)))
        for spec in OPENING_METHODS:
            runs = PooledRuns(replace(job, strategy=strategy_from_spec(spec)), SolutionPool(job.graph), maker=spec)
            with suppress(StrategyMismatch):  # not for this graph
                _Search(runs, self.scale, self.most_cost, self.listener).run()
            for entry in runs.pool.schedules:
                pool.add(entry.found)
        self._take_schedules()

    def run(self) -> None:
        """Bisect between ``low`` and ``open_top``; repeat if runs were cut short and there is time left."""
        while True:
            self.cut_short = False
            self._halve()
            if not self.cut_short or self.runs.over() or self.runs.control.deadline_s is None:
                return
            # Another round helps: it starts from the plans and bounds of this one, with the time that this one left.
            self.open_top = self.high

    def _halve(self) -> None:
        while self.low + 1 < min(self.high, self.open_top) and not self.runs.over():
            batch = middle(self.low, min(self.high, self.open_top))
            self.tried.append(batch)
            self._attempt(batch)
            if self.low < batch:
                self.open_top = min(self.open_top, batch)
            if not self.runs.job.strategy.minds_budget:
                return

    def _attempt(self, batch: int) -> None:
        budget = self.scale.budget(batch)
        clock = clock_of(
            self.runs, self.low, min(self.high, self.open_top)
        ).stoppable()  # with a flag of its own: a decision must stop this run, not the search
        listener = Decision(self.most_cost, batch, clock, self.listener).report
        answer, _ = self.runs.run(budget, replace(clock, listener=listener))
        ended = answer.exhausted if isinstance(answer, Found) else answer.scope is not None
        self._take_schedules()
        self._take_proofs(batch, budget)
        self.cut_short |= self.low < batch < self.high and not ended

    def _take_schedules(self) -> None:
        """Raise ``low`` to the largest batch that any schedule in the pool allows."""
        for entry in self.runs.pool.schedules:
            batch = self.scale.batch_at(entry.peak_bytes)
            if entry.cost <= self.most_cost * (1 + SAME_COST) and batch > self.low:
                self.low, self.best = batch, entry.found

    def _take_proofs(self, batch: int, budget: int) -> None:
        """Lower ``high`` to this batch if it is proven to be too large."""
        scope = refuted(self.runs.pool, budget, self.most_cost)
        if scope is not None and self.low < batch < self.high:
            self.high, self.scope = batch, scope

    def result(self, memory_bytes: int) -> MaxBatch:
        """The result of the search.

        Raises:
            LimitReached, Interrupted: If the search had to stop before it found a batch.
        """
        job = self.runs.job
        undecided = self.low + 1 < self.high and job.strategy.minds_budget
        outcome = outcome_of(self.runs, self.low, undecided=undecided, cut_short=self.cut_short)
        solved, budget = None, self.scale.budget(max(1, self.low))
        if self.best is not None:
            found = replace(self.best, bounds=self.runs.pool.bounds_at(budget))
            asked = Budget(Fraction(budget), False, f"{budget}B")
            solved = replayed(job, Task(job.graph, budget, host=self.runs.pool.host), found, Ending(outcome), asked)
        peak = no_remat_peak(job.graph)
        return MaxBatch(
            graph=job.graph,
            graph_batch=self.scale.graph_batch,
            memory_bytes=memory_bytes,
            most_cost=self.most_cost,
            without=self.scale.batch_at(peak),
            found=self.low,
            impossible=self.high,
            scope=self.scope,
            solved=solved,
            budget_bytes=budget,
            tried=tuple(self.tried),
            outcome=outcome,
            wall_s=time.monotonic() - job.started_s,
            given=(self.scale.graph_batch,),
        )


def middle(low: int, top: int) -> int:
    """The batch to try between ``low``, which has a plan, and ``top``, which has none.

    It is the geometric mean, since a budget is inversely proportional to a batch.
    """
    return min(max(math.isqrt(low * top), low + 1), top - 1) if low else max(1, top // 2)


def clock_of(runs: PooledRuns, low: int, top: int) -> Control:
    """The clock of the next run, if the bisection between ``low`` and ``top`` goes on after it."""
    if runs.control.deadline_s is None:
        return runs.control.part(most_s=UNTIMED_S)
    return runs.first_of(max(1, math.ceil(math.log2(max(2, top - low)))))


def outcome_of(runs: PooledRuns, low: int, *, undecided: bool, cut_short: bool) -> Outcome:
    """How a search ended that found the batch ``low``.

    Args:
        runs: Its runs.
        low: The batch; 0 for none.
        undecided: Whether larger batches are neither found nor proven to be impossible.
        cut_short: Whether the time limit ended a run for one of them.

    Raises:
        LimitReached, Interrupted: If it had to stop before it found a batch.
    """
    control, over = runs.control, runs.over()
    late = undecided and (cut_short or over)
    outcome = control.stopped_by() if late or control.cancelled.is_set() else Outcome.FINISHED
    if low == 0 and outcome is Outcome.INTERRUPTED:
        raise Interrupted("interrupted before a plan for any batch was found")
    if low == 0 and over:
        raise LimitReached("the time limit came before a plan for any batch", hint=MORE_TIME)
    return outcome


def refuted(pool: SolutionPool, budget_bytes: int, most_cost: float) -> Scope | None:
    """The plans of which none stays within a budget and a cost, as the pool proves it; None if it proves no such thing.

    Only proofs for all plans in any order or in document order count: a narrower class says too little.
    """
    scopes = [b.scope for b in pool.bounds_at(budget_bytes) if b.cost > most_cost * (1 + CLEARLY_ABOVE)]
    failure = pool.failures.get(budget_bytes)
    if failure is not None and failure.scope is not None:
        scopes.append(failure.scope)
    return next((scope for scope in (Scope.ANY_ORDER, Scope.DOCUMENT_ORDER) if scope in scopes), None)


@dataclass(frozen=True, slots=True)
class Decision:
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
