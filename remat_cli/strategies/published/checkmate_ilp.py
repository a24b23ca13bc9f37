"""The optimal schedule by the MILP of the Checkmate paper."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from remat_cli import running
from remat_cli.control import Progress
from remat_cli.errors import Interrupted, LimitReached, UsageError
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.milp.checkmate import CheckmateModel, Formulation, build
from remat_cli.milp.decode import Decoder
from remat_cli.mip import Floats, LinearModel
from remat_cli.plan.liveness import priced
from remat_cli.plan.model import Scope
from remat_cli.solvers.base import Outcome, SolverProgress, Termination
from remat_cli.solvers.checked import as_solved
from remat_cli.solvers.modelfile import write_model
from remat_cli.strategies.base import Bound, Context, Found, NotFound, Schedule, Strategy, Task
from remat_cli.strategies.bounds import safe_bound
from remat_cli.strategies.published.model_size import too_large
from remat_cli.tolerances import BOUND_MARGIN, INNER_GAP

_LEAVE_OUT = "leave relax=true out for a plan"
_CUT_ROUNDS = 50
"""Solves between which schedules over the budget are cut off. Untuned."""
_EXPLAIN_S = 30.0
"""Most seconds to find the smallest budget that works, once the requested one is proven too small. Untuned."""


@dataclass(frozen=True, slots=True)
class CheckmateIlp(Strategy):
    """The paper's MILP over R, S, FREE and U, solved by any of the four solvers.

    Attributes:
        frontier: Stage t computes node t for the first time. False gives the unpartitioned form, far harder to solve.
        stage_split: How often a node may be computed within one stage.
        relax: Solve only the linear relaxation: a lower bound on the cost and no plan.
    """

    frontier: bool = field(default=True, metadata={"help": "stage t computes node t for the first time"})
    stage_split: int = field(default=1, metadata={"help": "how often a node may be computed within one stage"})
    relax: bool = field(default=False, metadata={"help": "only the linear relaxation: a bound and no plan"})

    name: ClassVar[str] = "checkmate-ilp"
    summary: ClassVar[str] = "the optimal schedule, by the MILP of the Checkmate paper"
    reference: ClassVar[str] = "Jain et al., Checkmate, MLSys 2020, eq. 9"
    uses_solver: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse a number of passes below 1."""
        if self.stage_split < 1:
            raise UsageError(f"checkmate-ilp{{stage_split={self.stage_split}}}: a stage needs at least one pass")

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """State the MILP, solve it, and decode the schedule."""
        budget = no_remat_peak(task.graph) if task.budget_bytes is None else task.budget_bytes
        large = too_large(task.graph, context.control, self.stage_split)
        if large is not None:
            return large
        context.control.report(Progress("building the model"))
        run = _Run.start(Task(task.graph, budget), Formulation(self.frontier, self.stage_split), context)
        if self.relax:
            return run.relaxation()
        return run.search()


@dataclass(slots=True)
class _Run:
    """One solve of the model.

    Attributes:
        task: Graph and budget.
        formulation: Form of the model.
        context: What the strategy may use.
        stated: The model as stated.
        decoder: Reads the solver's answers.
        best: Cheapest schedule within the budget so far.
    """

    task: Task
    formulation: Formulation
    context: Context
    stated: CheckmateModel
    decoder: Decoder
    best: tuple[float, Schedule] | None = None

    @classmethod
    def start(cls, task: Task, formulation: Formulation, context: Context) -> _Run:
        """State and compile the model."""
        budget_bytes = task.budget_bytes
        assert budget_bytes is not None

        def state() -> tuple[CheckmateModel, Decoder]:
            stated = build(task.graph, budget_bytes, formulation, context.control)
            return stated, Decoder.of(stated, stated.compiled())

        try:
            # Pyomo's compiler does not check the clock, and there is no partial result to wait for.
            stated, decoder = running.run(state, context.control, grace_s=0.0)
        except running.Abandoned:
            context.control.check()
            raise
        context.control.check()
        return cls(task, formulation, context, stated, decoder)

    def relaxation(self) -> NotFound:
        """The bound of the linear relaxation."""
        outcome = self._solve(self.decoder.compiled.model.relaxed())
        if outcome.termination is Termination.INFEASIBLE:
            return NotFound("not even the linear relaxation has a solution within the budget", scope=Scope.FRONTIER)
        bounds: tuple[Bound, ...] = ()
        if outcome.bound is not None:
            bounds = (Bound(outcome.bound * self.stated.cost_scale, Scope.FRONTIER),)
        return NotFound("only the bound of the linear relaxation was asked for", bounds=bounds, hint=_LEAVE_OUT)

    def search(self) -> Found | NotFound:
        """Solve, cut off answers that are over the budget by the solver's tolerance, and solve again."""
        model = self.decoder.compiled.model
        bound: float | None = None
        for _ in range(_CUT_ROUNDS):
            outcome = self._solve(model)
            if outcome.bound is not None:
                bound = max(outcome.bound * self.stated.cost_scale, bound or 0.0)
            if outcome.termination is Termination.INFEASIBLE:
                return self._infeasible() if self.best is None else self._found(bound, finished=True)
            if outcome.values is None:
                break
            chosen = self.decoder.chosen(outcome.values)
            self._keep(self.decoder.computes(chosen))
            cuts = self.decoder.cover_cuts(chosen)
            finished = outcome.termination is Termination.OPTIMAL
            if not finished or not cuts or self._good_enough(bound):
                return self._found(bound, finished=finished and not cuts)
            model = model.with_rows(cuts)
        return self._found(bound, finished=False)

    def _found(self, bound: float | None, *, finished: bool) -> Found | NotFound:
        bounds = (Bound(safe_bound(self.task.graph, bound), Scope.FRONTIER),)
        if self.best is None:
            return NotFound("the limit came before the solver found any schedule", bounds=bounds)
        return Found(self.best[1], bounds, exhausted=finished, used_solver=True)

    def _good_enough(self, bound: float | None) -> bool:
        return self.best is not None and self.best[0] * (1 - self.context.gap) <= safe_bound(self.task.graph, bound)

    def _keep(self, computes: tuple[int, ...]) -> None:
        """Keep and publish a schedule if it is within the budget and the cheapest so far."""
        found = priced(self.task.graph, computes)
        within = self.task.budget_bytes is None or found.peak_bytes <= self.task.budget_bytes
        if within and (self.best is None or found.cost < self.best[0]):
            self.best = (found.cost, Schedule(found.computes))
            self.context.publish(Found(self.best[1], exhausted=False, used_solver=True))

    def _solve(self, model: LinearModel) -> Outcome:
        context = self.context
        if not self.formulation.minimize_peak:
            context.control.report(Progress(context.solver.title))
            if context.write_model is not None:
                self._write(model, context.write_model)
        return context.solver.solve(context.request(model, context.control, on_progress=self._progress))

    def _write(self, model: LinearModel, path: Path) -> None:
        """Write ``model`` as the solver gets it; the model of the next round, with its cuts, overwrites it."""
        solved, factor = as_solved(model)
        write_model(solved, path, note=f"the objective is a cost in units of {self.stated.cost_scale / factor!r}")

    def _progress(self, incumbent: SolverProgress) -> None:
        """Pass the solver's progress on, and keep its schedules in case it does not stop in time."""
        scale = self.stated.cost_scale
        values: Floats | None = incumbent.values
        if not self.formulation.minimize_peak:
            if values is not None:
                self._keep(self.decoder.computes(self.decoder.chosen(values)))
            bound = None if incumbent.bound is None else incumbent.bound * scale
            # A solver that reports an objective without values gives the values at its end.
            costs = [] if incumbent.objective is None else [incumbent.objective * scale]
            cost = min([*costs, *([] if self.best is None else [self.best[0]])], default=None)
            self.context.control.report(Progress(self.context.solver.title, cost, bound, incumbent.nodes))

    def _infeasible(self) -> NotFound:
        """No schedule of the class fits: find the smallest budget that works, within some seconds."""
        form = self.formulation
        reason = "no frontier-advancing schedule fits"
        if not form.frontier:
            reason = "no schedule of as many stages as nodes fits"
        elif form.stage_split > 1:
            reason = f"no schedule with at most {form.stage_split} passes through each stage fits"
        control = self.context.control
        remaining = control.remaining_s()
        limit = time.monotonic() + (_EXPLAIN_S if remaining is None else min(_EXPLAIN_S, 0.8 * remaining))
        control.report(Progress("looking for the smallest budget that works"))
        context = replace(self.context, control=replace(control, deadline_s=limit), gap=INNER_GAP)
        try:
            least = _Run.start(self.task, replace(form, minimize_peak=True), context)
            outcome = least._solve(least.decoder.compiled.model)
        except (LimitReached, Interrupted):
            return NotFound(reason, scope=Scope.FRONTIER)
        graph, unit = self.task.graph, least.stated.memory.unit_bytes
        best = None
        if outcome.values is not None:
            best = Schedule(priced(graph, least.decoder.computes(least.decoder.chosen(outcome.values))).computes)
        bound = None
        if outcome.bound is not None:
            bound = graph.fixed_memory + math.ceil((outcome.bound - BOUND_MARGIN * max(1.0, abs(outcome.bound))) * unit)
        return NotFound(reason, scope=Scope.FRONTIER, best=best, peak_bound_bytes=bound)
