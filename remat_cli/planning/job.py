"""One run of a strategy on one task, and the replayed plan of its answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from remat_cli.brief import Brief
from remat_cli.control import Control, Ending, Outcome, Progress
from remat_cli.errors import (
    Interrupted,
    InvalidStrategyPlan,
    LimitReached,
    SolverFailed,
    StrategyMismatch,
    UsageError,
    Worded,
)
from remat_cli.graph.model import Graph
from remat_cli.plan.check import Report, check
from remat_cli.plan.derive import derive
from remat_cli.plan.host import seconds_in
from remat_cli.plan.io import host_to_document
from remat_cli.plan.liveness import cost_of
from remat_cli.plan.model import Claim, ClaimStatus, Copies, PeakClaim, Plan
from remat_cli.planning.options import OPTIMAL_GAP, SolveOptions
from remat_cli.planning.published import published_for, quicker
from remat_cli.planning.refusals import STOPPED, over_budget
from remat_cli.planning.warm_start import WarmStart
from remat_cli.running import Abandoned, run
from remat_cli.solvers.registry import usable_solver
from remat_cli.spec import format_spec, options_of
from remat_cli.strategies.base import Context, Found, Known, NotFound, Schedule, StageRecord, Strategy, Task
from remat_cli.strategies.bounds import telling
from remat_cli.strategies.ordering.reorder import solve_reordered
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.tolerances import SETTLED
from remat_cli.units import Budget, format_duration
from remat_cli.version import __version__

_RESERVE_SHARE = 0.1
_RESERVE_MOST_S = 2.0
"""What is left of the time limit for replaying and writing the plan: a share of it, and seconds at most. Untuned."""
_RESERVE_PER_NODE_S, _RESERVE_LARGEST = 8e-5, 0.3
"""More for large graphs: seconds for every node, and at most this share of the time limit (benchmark ``repeated``)."""
_GRACE_SHARE, _GRACE_S = 0.5, 0.2
"""Seconds that a strategy gets to stop by itself: a share of the reserve, and some more. After them the best published
schedule stands, and what is left of the reserve is for replaying and writing."""


@dataclass(frozen=True, slots=True, repr=False)
class Solved(Brief):
    """A plan, the report of its replay, and how the search ended.

    Attributes:
        plan: The plan.
        report: Its replay.
        ending: How the search ended.
        wall_s: Seconds since the command started.
    """

    plan: Plan
    report: Report
    ending: Ending
    wall_s: float

    @property
    def outcome(self) -> Outcome:
        """How the search ended, without a solver's message."""
        return self.ending.outcome

    def _brief(self) -> dict[str, str]:
        return {**self.report._brief(), "search": f"{self.ending} after {format_duration(self.wall_s)}"}


@dataclass(frozen=True, slots=True)
class Job:
    """What all runs of one command share. The budget of each run is not part of it.

    Attributes:
        graph: The graph.
        options: How to solve.
        strategy: The strategy asked for.
        context: What the strategy may use; its control is the clock of the whole command.
        started_s: ``time.monotonic()`` at the start of the command.
        start: The old plan to start from; None for none.
        near: Other old plans to start from, which the answer does not mention.
    """

    graph: Graph
    options: SolveOptions
    strategy: Strategy
    context: Context
    started_s: float
    start: WarmStart | None = None
    near: tuple[WarmStart, ...] = ()

    @classmethod
    def of(
        cls,
        graph: Graph,
        options: SolveOptions,
        listener: Callable[[Progress], None] | None,
        near: Sequence[WarmStart] = (),
    ) -> Job:
        """The job that ``options`` describe; ``listener`` receives its progress, from any thread.

        Args:
            graph: The graph.
            options: How to solve.
            listener: Receives its progress.
            near: Old plans without copies to start from beside that of ``options``.

        Raises:
            UsageError, SolverUnavailable: If there is no such strategy or solver.
            UsageError, StrategyMismatch: If the plan to start from is for another graph, or not for the strategy.
        """
        started_s = time.monotonic() if options.started_s is None else options.started_s
        strategy = strategy_from_spec(options.strategy)
        if options.host is not None:
            _check_host(graph, strategy, options)
        context = Context(
            control=_control(options.time_limit_s, started_s, listener, len(graph.nodes)),
            solver=usable_solver(options.solver),
            gap=options.gap,
            threads=options.threads,
            seed=options.seed,
            write_model=options.write_model,
            solver_log=options.solver_log,
        )
        old = options.start
        start = None if old is None else WarmStart.of(old, graph, strategy, reorder=options.reorder, host=options.host)
        return cls(graph, options, strategy, context, started_s, start, tuple(near))

    def task(self, budget_bytes: int | None) -> Task:
        """The task of finding a plan within a budget, beginning with the old plans if there are any."""
        starts = (*(() if self.start is None else (self.start,)), *self.near)
        known = Known(tuple(start.found.schedule for start in starts), searched=False) if starts else None
        return Task(self.graph, budget_bytes, known, self.options.host)

    def attempt(
        self,
        task: Task,
        *,
        strategy: Strategy | None = None,
        control: Control | None = None,
        witness: Callable[[Found], None] | None = None,
    ) -> tuple[Found | NotFound, Ending]:
        """Run a strategy; returns its answer and how it ended. Without an answer, the best published schedule counts.

        Args:
            task: Graph and budget.
            strategy: The strategy; None for the one asked for.
            control: Its clock; None for that of the command. Only the clock of the command abandons a run.
            witness: Receives every schedule that is published.

        Returns:
            The answer and how the run ended. A run that its own brake stopped ended at its time limit.

        Raises:
            SolverFailed: If the solver fails before there is any schedule.
            StrategyMismatch, SolverUnavailable: From the strategy.
        """
        clock = self.context.control if control is None else control
        # The strategy has an incumbent of its own, but may be abandoned with it. This one collects what is published.
        published = published_for(task, replace(self.context, control=clock))
        fits = self.start is not None and (task.budget_bytes is None or self.start.peak_bytes <= task.budget_bytes)
        if self.start is not None and (fits or task.host is None):
            published.take(self.start.found)
        for near in self.near:
            published.take(near.found)

        def publish(found: Found) -> None:
            if witness is not None:
                witness(found)
            published.take(found)

        context = replace(self.context, control=clock, publish=publish)
        chosen = self.strategy if strategy is None else strategy
        failure: Ending | None = None
        try:
            grace_s = _GRACE_S + _GRACE_SHARE * _reserve_s(self.options.time_limit_s)
            answer = run(lambda: self._answer(chosen, task, context), self.context.control, grace_s=grace_s)
        except (Abandoned, LimitReached, Interrupted):
            answer = NotFound(STOPPED)
        except SolverFailed as error:
            best = published.best()
            if best is None:
                raise
            answer, failure = best, Ending(Outcome.SOLVER_FAILED, error.message)
        if isinstance(answer, NotFound):
            answer = published.best() or answer  # a plan in hand refutes any "no"
        if isinstance(answer, Found) and self.start is not None:
            if fits and task.host is not None and (best := published.best()) is not None:
                answer = quicker(answer, best)
            answer = self.start.credited(answer)
        for near in self.near:
            answer = near.credited(answer) if isinstance(answer, Found) else answer
        finished = isinstance(answer, Found) and answer.exhausted
        return answer, failure or Ending(Outcome.FINISHED if finished else self.context.control.stopped_by())

    def _answer(self, strategy: Strategy, task: Task, context: Context) -> Found | NotFound:
        if self.options.reorder:
            return solve_reordered(strategy, task, context)
        return strategy.solve(task, context)

    def solved(
        self, task: Task, found: Found, ending: Ending, asked: Budget | None, *, peak: PeakClaim | None = None
    ) -> Solved:
        """The replayed plan of ``found``.

        Args:
            task: Graph and budget.
            found: The schedule and its bounds.
            ending: How the search ended.
            asked: The budget as asked.
            peak: The bound on every peak, if the least peak was asked for.

        Raises:
            InvalidStrategyPlan: If the plan does not replay.
            Infeasible: If the plan is over the budget of ``task``.
        """
        plan = self._plan(task, found, asked, peak)
        report = check(replace(plan, run={}), budget_text="" if asked is None else asked.text)
        if not report.valid:
            worst = next(f for f in report.findings if f.severity == "error")
            raise InvalidStrategyPlan(
                f"strategy {plan.strategy} returned a plan that does not replay: {worst.message}",
                hint="this is a defect of the strategy; please report it with the graph",
            )
        if not report.within_budget:
            raise over_budget(report)
        wall_s = time.monotonic() - self.started_s
        run = {"outcome": str(ending), "wall_s": round(wall_s, 3), "stages": [_stage(r) for r in self.context.trace]}
        return Solved(replace(plan, run=run), report, ending, wall_s)

    def _plan(self, task: Task, found: Found, asked: Budget | None, least: PeakClaim | None) -> Plan:
        """The plan of a schedule, with the claim that its bound allows."""
        graph, schedule = task.graph, found.schedule
        cost = cost_of(graph, schedule.computes) if found.time is None else found.time
        copies = Copies.NONE if task.host is None else Copies.ANY
        bound = telling(graph, [b for b in found.bounds if b.copies is copies], cost)
        gap = (cost - bound.cost) / cost if cost > 0 else 0.0
        proven = gap <= min(OPTIMAL_GAP, max(self.options.gap, SETTLED))  # below that, nothing can be proven
        maker = self.strategy if not found.maker else strategy_from_spec(found.maker)
        solver = self.context.solver if found.used_solver else None
        return Plan(
            graph=graph,
            statements=_statements(graph, schedule, maker),
            budget_bytes=task.budget_bytes,
            claim=Claim(
                ClaimStatus.OPTIMAL if proven else ClaimStatus.FEASIBLE, cost, bound.cost, bound.scope, least, copies
            ),
            strategy=format_spec(maker.name, maker),
            strategy_options=options_of(maker),
            solver=None if solver is None else solver.name,
            solver_version=None if solver is None else solver.availability().version,
            provenance=_provenance(self.options, asked, found.order)
            | ({} if least is None else {"minimize": "peak"})
            | ({} if self.start is None else {"start": self.start.document()}),
            host=task.host,
        )


def _check_host(graph: Graph, strategy: Strategy, options: SolveOptions) -> None:
    """Refuse a host where no plan could use it.

    Raises:
        UsageError: If costs are not times, or with ``reorder``.
        StrategyMismatch: If the strategy makes no copies.
    """
    seconds_in(graph.cost_unit)
    if not strategy.copies:
        raise StrategyMismatch(
            f"{strategy.name} copies nothing to a host",
            hint=Worded(
                "take the strategy auto or offload, or leave host out",
                "take --strategy auto or offload, or leave --host-bandwidth out",
            ),
        )
    if options.reorder:
        raise UsageError(
            "with a host, nodes run in the document's order, for which its bounds hold",
            hint=Worded("leave reorder or the host out", "leave --reorder or the host out"),
        )


def _stage(record: StageRecord) -> dict[str, Any]:
    """A stage as an entry of the plan's ``run``; unknown entries are left out."""
    told = {
        "stage": record.name,
        "within": record.depth or None,
        "seconds": None if record.seconds is None else round(record.seconds, 3),
        "cost": record.cost if math.isfinite(record.cost) else None,
        "gained": record.gained,
        "bound": record.bound if math.isfinite(record.bound) else None,
        "note": record.note or None,
    }
    return {key: value for key, value in told.items() if value is not None}


def _control(
    time_limit_s: float | None, started_s: float, listener: Callable[[Progress], None] | None, nodes: int
) -> Control:
    """The control of a solve; its deadline leaves a reserve for replaying and writing the plan."""
    limit_s = None
    if time_limit_s is not None:
        more_s = min(_RESERVE_LARGEST * time_limit_s, nodes * _RESERVE_PER_NODE_S)
        limit_s = time_limit_s - _reserve_s(time_limit_s) - more_s
    return replace(Control.within(limit_s, started_s=started_s), listener=listener)


def _reserve_s(time_limit_s: float | None) -> float:
    """Seconds reserved for replaying and writing the plan."""
    return _RESERVE_MOST_S if time_limit_s is None else min(_RESERVE_SHARE * time_limit_s, _RESERVE_MOST_S)


def _statements(graph: Graph, schedule: Schedule, maker: Strategy) -> Any:
    try:
        return derive(graph, schedule.computes, schedule.held, schedule.copying)
    except ValueError as error:
        raise InvalidStrategyPlan(
            f"strategy {maker.name} returned an impossible sequence: {error}",
            hint="this is a defect of the strategy; please report it with the graph",
        ) from None


def _provenance(options: SolveOptions, asked: Budget | None, order: str) -> dict[str, Any]:
    """What is needed to reproduce the plan, and whether and how its nodes were reordered."""
    return {
        **({} if options.host is None else {"host": host_to_document(options.host)}),
        **({"reorder": True, "order": order or "document"} if options.reorder else {}),
        "remat": __version__,
        "budget": None if asked is None else asked.text,
        "strategy": options.strategy,
        "solver": options.solver,
        "gap": options.gap,
        "seed": options.seed,
        "threads": options.threads,
        "time_limit_s": options.time_limit_s,
    }
