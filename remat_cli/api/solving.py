"""From a graph and a budget to a plan that has been replayed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from remat_cli import __version__
from remat_cli.api.refusals import no_plan, over_budget, refuse_impossible
from remat_cli.control import Control, Progress
from remat_cli.errors import Interrupted, InvalidStrategyPlan, LimitReached, SolverFailed, UsageError
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.plan.check import Report, check
from remat_cli.plan.derive import derive, peak
from remat_cli.plan.model import Claim, ClaimStatus, Plan
from remat_cli.running import Abandoned, interruptible, run
from remat_cli.solvers.registry import solver_from_spec
from remat_cli.spec import format_spec, options_of
from remat_cli.strategies.base import Context, Found, NotFound, Schedule, Strategy, Task
from remat_cli.strategies.bounds import telling
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.units import Budget, parse_budget

OPTIMAL_GAP = 1e-4
"""A plan is called optimal when its proven gap is at most this (and at most the gap asked for)."""

_MODEL_SUFFIXES = (".lp", ".mps")
_RESERVE_SHARE = 0.1
_RESERVE_MOST_S = 2.0
_GRACE_S = 2.5
"""Seconds that a strategy gets to stop by itself. Most of it fits into what the deadline leaves of the limit."""


@dataclass(frozen=True, slots=True)
class SolveOptions:
    """How to solve.

    Attributes:
        strategy: Strategy with options: ``checkmate-ilp{stage_split=2}``.
        solver: MIP solver with options: ``cbc``.
        time_limit_s: Wall time for everything, from ``started_s``; None for no limit.
        gap: Relative gap at which to stop.
        threads: Threads for the solver; None for its own choice.
        seed: Random seed.
        write_model: File for the model (``.lp`` or ``.mps``).
        solver_log: File for the solver's log.
        started_s: ``time.monotonic()`` at which the time limit starts; None for the call.
    """

    strategy: str = "auto"
    solver: str = "highs"
    time_limit_s: float | None = None
    gap: float = OPTIMAL_GAP
    threads: int | None = None
    seed: int = 0
    write_model: Path | None = None
    solver_log: Path | None = None
    started_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing.

        Raises:
            UsageError: If the gap or the time limit is out of range, the thread count is below one, or the model file
                has another suffix than the two there are.
        """
        if not 0 <= self.gap < 1:
            raise UsageError(f"gap {self.gap:g} is not between 0 and 1", hint="a gap of 0.0001 means 0.01%")
        if self.time_limit_s is not None and self.time_limit_s <= 0:
            raise UsageError("the time limit must be positive", hint="write it like 60s, 5m or 1h")
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"{self.threads} threads are too few", hint="give --threads 1 or more")
        path = self.write_model
        if path is not None and path.suffix.lower() not in _MODEL_SUFFIXES:
            raise UsageError(f"{path}: a model file ends in .mps or .lp", hint=f"write {path.stem}.lp instead")


@dataclass(frozen=True, slots=True)
class Solved:
    """A plan, the report of its replay, and how the search ended.

    Attributes:
        plan: The plan.
        report: Its replay.
        outcome: ``finished``, ``time limit``, ``interrupted``, or ``solver failed: `` and its last words.
        wall_s: Seconds it took.
    """

    plan: Plan
    report: Report
    outcome: str
    wall_s: float


def solve(
    graph: Graph,
    budget: Budget | str | int | None,
    options: SolveOptions | None = None,
    *,
    listener: Callable[[Progress], None] | None = None,
) -> Solved:
    """The cheapest plan of ``graph`` within ``budget`` that the strategy finds.

    Args:
        graph: The graph.
        budget: ``"16GB"``, ``"80%"`` (of the no-remat peak), bytes, or None for no limit; fixed memory included.
        options: How to solve.
        listener: Gets the progress, from any thread.

    Raises:
        Infeasible: If no plan fits, with the reason.
        LimitReached, Interrupted: If there is no plan yet when it has to stop.
        UsageError, SolverUnavailable, SolverFailed, StrategyMismatch, InvalidStrategyPlan: As their names say.
    """
    options = options or SolveOptions()
    started_s = time.monotonic() if options.started_s is None else options.started_s
    asked = _budget(budget)
    budget_bytes = None if asked is None else asked.bytes_for(no_remat_peak(graph))
    strategy = strategy_from_spec(options.strategy)
    solver = solver_from_spec(options.solver)
    if budget_bytes is not None:
        refuse_impossible(graph, budget_bytes, asked)
    control = _control(options.time_limit_s, started_s, listener)
    desk = _Desk(Task(graph, budget_bytes))
    context = Context(
        control=control,
        solver=solver,
        gap=options.gap,
        threads=options.threads,
        seed=options.seed,
        publish=desk.publish,
        write_model=options.write_model,
        solver_log=options.solver_log,
    )
    answer, outcome = _run_strategy(strategy, desk, context)
    if isinstance(answer, NotFound):
        raise no_plan(graph, asked, budget_bytes, answer, control)
    wall_s = time.monotonic() - started_s
    plan = _plan(desk.task, answer, strategy, solver_name=options.solver, asked=asked, options=options)
    report = check(replace(plan, run={}), budget_text="" if asked is None else asked.text)
    if not report.valid:
        worst = next(f for f in report.findings if f.severity == "error")
        raise InvalidStrategyPlan(
            f"strategy {plan.strategy} returned a plan that does not replay: {worst.message}",
            hint="this is a defect of the strategy; please report it with the graph",
        )
    if not report.within_budget:
        raise over_budget(report)
    plan = replace(plan, run={"outcome": outcome, "wall_s": round(wall_s, 3)})
    return Solved(plan, report, outcome, wall_s)


@dataclass(slots=True)
class _Desk:
    """Where a strategy hands in schedules on the way; keeps the cheapest one within the budget."""

    task: Task
    best: Found | None = None
    best_cost: float = math.inf

    def publish(self, found: Found) -> None:
        """Look at a schedule. Called from any thread, but never from two at once."""
        graph = self.task.graph
        cost = math.fsum(graph.nodes[k].cost for k in found.schedule.computes)
        if cost < self.best_cost and (
            self.task.budget_bytes is None or peak(graph, found.schedule.computes) <= self.task.budget_bytes
        ):
            self.best, self.best_cost = found, cost


def _budget(budget: Budget | str | int | None) -> Budget | None:
    if budget is None or isinstance(budget, Budget):
        return budget
    return parse_budget(str(budget))


def _control(time_limit_s: float | None, started_s: float, listener: Callable[[Progress], None] | None) -> Control:
    """The control of a solve; its deadline leaves a little of the limit for replaying and writing the plan."""
    limit_s = time_limit_s
    if limit_s is not None:
        limit_s -= min(_RESERVE_SHARE * limit_s, _RESERVE_MOST_S)
    return replace(Control.within(limit_s, started_s=started_s), listener=listener)


def _run_strategy(strategy: Strategy, desk: _Desk, context: Context) -> tuple[Found | NotFound, str]:
    """Run the strategy and say how that ended; what it published stands in for an answer that does not come."""
    control = context.control
    outcome = ""
    with interruptible(control):
        try:
            answer = run(lambda: strategy.solve(desk.task, context), control, grace_s=_GRACE_S)
        except (Abandoned, LimitReached, Interrupted):
            answer = NotFound("stopped before any schedule was found")
        except SolverFailed as error:
            if desk.best is None:
                raise
            answer, outcome = desk.best, f"solver failed: {error.message}"
    if isinstance(answer, NotFound) and desk.best is not None and answer.scope is None:
        answer = replace(desk.best, exhausted=False)
    if isinstance(answer, Found) and answer.exhausted:
        outcome = outcome or "finished"
    return answer, outcome or ("interrupted" if control.cancelled.is_set() else "time limit")


def _plan(
    task: Task, found: Found, strategy: Strategy, *, solver_name: str, asked: Budget | None, options: SolveOptions
) -> Plan:
    """The plan of a schedule, with the claim that its bound allows."""
    graph, schedule = task.graph, found.schedule
    cost = math.fsum(graph.nodes[k].cost for k in schedule.computes)
    bound = telling(graph, found.bounds, cost)
    gap = (cost - bound.cost) / cost if cost > 0 else 0.0
    status = ClaimStatus.OPTIMAL if gap <= min(OPTIMAL_GAP, max(options.gap, 1e-9)) else ClaimStatus.FEASIBLE
    maker = strategy if not found.maker else strategy_from_spec(found.maker)
    solver = solver_from_spec(solver_name) if found.used_solver else None
    return Plan(
        graph=graph,
        statements=_statements(graph, schedule, maker),
        budget_bytes=task.budget_bytes,
        claim=Claim(status, cost, bound.cost, bound.scope),
        strategy=format_spec(maker.name, maker),
        strategy_options=options_of(maker),
        solver=None if solver is None else solver.name,
        solver_version=None if solver is None else solver.availability().version,
        provenance=_provenance(options, asked),
    )


def _statements(graph: Graph, schedule: Schedule, maker: Strategy) -> Any:
    try:
        return derive(graph, schedule.computes, schedule.held)
    except ValueError as error:
        raise InvalidStrategyPlan(
            f"strategy {maker.name} returned an impossible sequence: {error}",
            hint="this is a defect of the strategy; please report it with the graph",
        ) from None


def _provenance(options: SolveOptions, asked: Budget | None) -> dict[str, Any]:
    """What someone needs to make the plan again."""
    return {
        "remat": __version__,
        "budget": None if asked is None else asked.text,
        "strategy": options.strategy,
        "solver": options.solver,
        "gap": options.gap,
        "seed": options.seed,
        "threads": options.threads,
        "time_limit_s": options.time_limit_s,
    }
