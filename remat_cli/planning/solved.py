"""The result of a search: its plan, replayed, with the claim that its bounds allow and what is needed to repeat it."""

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from remat_cli.control import Ending, Outcome
from remat_cli.errors import InvalidStrategyPlan
from remat_cli.plan.check import Report, check
from remat_cli.plan.io import host_to_document
from remat_cli.plan.model import Claim, ClaimStatus, PeakClaim, Plan, Statement
from remat_cli.planning.job import Job
from remat_cli.planning.options import OPTIMAL_GAP
from remat_cli.planning.refusals import over_budget
from remat_cli.short_repr import ShortRepr
from remat_cli.spec import format_spec, options_of
from remat_cli.strategies.base import Found, StageRecord, Strategy, Task
from remat_cli.strategies.bounds import strongest
from remat_cli.strategies.objective import objective_for
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.tolerances import SETTLED
from remat_cli.units import Budget, format_duration
from remat_cli.version import __version__


@dataclass(frozen=True, slots=True, repr=False)
class Solved(ShortRepr):
    """A plan, the report of its replay, and how the search ended.

    Attributes:
        plan: The plan.
        report: Its replay.
        ending: How the search ended.
        wall_s: Seconds since the command started.
        recalled_from: The file of a cache in which the plan was found; None if it was made now.
    """

    plan: Plan
    report: Report
    ending: Ending
    wall_s: float
    recalled_from: Path | None = None

    @property
    def outcome(self) -> Outcome:
        """How the search ended, without a solver's message."""
        return self.ending.outcome

    def _facts(self) -> dict[str, str]:
        return {**self.report._facts(), "search": f"{self.ending} after {format_duration(self.wall_s)}"}


def replayed(
    job: Job, task: Task, found: Found, ending: Ending, asked: Budget | None, *, least: PeakClaim | None = None
) -> Solved:
    """The plan of a schedule that ``job`` found, replayed; ``least`` bounds every peak, if the least was asked for.

    Raises:
        InvalidStrategyPlan: If the plan does not replay.
        Infeasible: If the plan is over the budget of ``task``.
    """
    plan = _plan_of(job, task, found, asked, least)
    report = check(replace(plan, run={}), budget_text="" if asked is None else asked.text)
    if not report.valid:
        worst = next(f for f in report.findings if f.severity == "error")
        raise InvalidStrategyPlan(
            f"strategy {plan.strategy} returned a plan that does not replay: {worst.message}", hint=_REPORT_IT
        )
    if not report.within_budget:
        raise over_budget(report)
    wall_s = time.monotonic() - job.started_s
    run = {"outcome": str(ending), "wall_s": round(wall_s, 3), "stages": [_stage(r) for r in job.context.trace]}
    return Solved(replace(plan, run=run), report, ending, wall_s)


_REPORT_IT = "this is a defect of the strategy; please report it with the graph"


def _plan_of(job: Job, task: Task, found: Found, asked: Budget | None, least: PeakClaim | None) -> Plan:
    """The plan of a schedule, with its claim."""
    maker = job.strategy if not found.maker else strategy_from_spec(found.maker)
    solver = job.context.solver if found.used_solver else None
    return Plan(
        graph=task.graph,
        statements=_statements(task, found, maker),
        budget_bytes=task.budget_bytes,
        claim=_claim(job, task, found, least),
        strategy=format_spec(maker.name, maker),
        strategy_options=options_of(maker),
        solver=None if solver is None else solver.name,
        solver_version=None if solver is None else solver.availability().version,
        provenance=_provenance(job, found, asked, least),
        host=task.host,
    )


def _claim(job: Job, task: Task, found: Found, least: PeakClaim | None) -> Claim:
    """What is proven of the cost of a schedule: optimal, if its gap to the strongest of its bounds is small enough."""
    objective = objective_for(task)
    cost = objective.cost(found.schedule)
    bound = strongest(task.graph, filter(objective.counts, found.bounds), cost)
    gap = (cost - bound.cost) / cost if cost > 0 else 0.0
    proven = gap <= min(OPTIMAL_GAP, max(job.options.gap, SETTLED))  # below that, nothing can be proven
    status = ClaimStatus.OPTIMAL if proven else ClaimStatus.FEASIBLE
    return Claim(status, cost, bound.cost, bound.scope, least, objective.copies)


def _statements(task: Task, found: Found, maker: Strategy) -> tuple[Statement, ...]:
    try:
        return objective_for(task).statements(found.schedule)
    except ValueError as error:
        raise InvalidStrategyPlan(
            f"strategy {maker.name} returned an impossible sequence: {error}", hint=_REPORT_IT
        ) from None


def _provenance(job: Job, found: Found, asked: Budget | None, least: PeakClaim | None) -> dict[str, Any]:
    """What is needed to reproduce the plan, and whether and how its nodes were reordered."""
    options = job.options
    return {
        **({} if options.host is None else {"host": host_to_document(options.host)}),
        **({"reorder": True, "order": found.order or "document"} if options.reorder else {}),
        "remat": __version__,
        "budget": None if asked is None else asked.text,
        "strategy": options.strategy,
        "solver": options.solver,
        "gap": options.gap,
        "seed": options.seed,
        "threads": options.threads,
        "time_limit_s": options.time_limit_s,
        **({} if least is None else {"minimize": "peak"}),
        **({} if job.start is None else {"start": job.start.document()}),
    }


def _stage(record: StageRecord) -> dict[str, Any]:
    """A stage as an entry of the plan's ``run``; what is unknown is left out."""
    entry = {
        "stage": record.name,
        "within": record.depth or None,
        "seconds": None if record.seconds is None else round(record.seconds, 3),
        "cost": record.cost if math.isfinite(record.cost) else None,
        "gained": record.gained,
        "bound": record.bound if math.isfinite(record.bound) else None,
        "note": record.note or None,
    }
    return {key: value for key, value in entry.items() if value is not None}
