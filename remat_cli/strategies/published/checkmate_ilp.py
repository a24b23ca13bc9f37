"""The optimal schedule by the MILP of the Checkmate paper."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from remat_cli import running
from remat_cli.control import Progress
from remat_cli.errors import Interrupted, LimitReached, UsageError
from remat_cli.graph.analysis import no_remat_peak
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
from remat_cli.units import format_cost

if TYPE_CHECKING:
    from remat_cli.milp.checkmate import CheckmateModel, Formulation
    from remat_cli.strategies.retention.proof import CrossCheck

_LEAVE_OUT = "leave relax=true out for a plan"
_LOOK_LEAST_S = 2.0
"""Seconds that a cross-check gets at least, if there is no time limit. Untuned."""
_BOUND_SHARE, _NO_SHARE = 1.0, 0.5
"""Shares of the time left for a cross-check at a bound, and at a "no", after which a working budget is looked for."""
_EXPLAIN_S = 30.0
"""Most seconds to find the smallest budget that works, once the requested one is proven too small. Untuned."""


@dataclass(frozen=True, slots=True)
class CheckmateIlp(Strategy):
    """The paper's MILP over R, S, FREE and U, solved by any of the four solvers.

    Attributes:
        frontier: Stage t computes node t for the first time. False gives the unpartitioned form, far harder to solve.
        stage_split: How often a node may be computed within one stage.
        ordered: Without the frontier: first computations in document order, as all plans have them without --reorder.
            False is eq. 8 as published, whose cheapest schedule may have another order and is then no plan.
        relax: Solve only the linear relaxation: a lower bound on the cost and no plan.
    """

    frontier: bool = field(default=True, metadata={"help": "stage t computes node t for the first time"})
    stage_split: int = field(default=1, metadata={"help": "how often a node may be computed within one stage"})
    ordered: bool = field(
        default=True,
        metadata={"help": "without the frontier: first computations in document order, like plans"},
    )
    relax: bool = field(default=False, metadata={"help": "only the linear relaxation: a bound and no plan"})

    name: ClassVar[str] = "checkmate-ilp"
    summary: ClassVar[str] = "the optimal schedule, by the MILP of the Checkmate paper"
    reference: ClassVar[str] = "Jain et al., Checkmate, MLSys 2020, eq. 9"
    uses_solver: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse a number of passes below 1."""
        if self.stage_split < 1:
            raise UsageError(f"checkmate-ilp{{stage_split={self.stage_split}}}: a stage needs at least one pass")
        if self.frontier and not self.ordered:
            raise UsageError(
                "checkmate-ilp{ordered=false}: frontier-advancing stages are always in order", hint="add frontier=false"
            )

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """State the MILP, solve it, and decode the schedule."""
        budget = no_remat_peak(task.graph) if task.budget_bytes is None else task.budget_bytes
        large = too_large(task.graph, context.control, self.stage_split)
        if large is not None:
            return large
        context.control.report(Progress("building the model"))
        from remat_cli.milp.checkmate import Formulation  # half a second of Pyomo

        run = _Run.start(
            Task(task.graph, budget), Formulation(self.frontier, self.stage_split, ordered=self.ordered), context
        )
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
        stated: The model.
        decoder: Reads the solver's answers.
        started_s: When it started, by ``time.monotonic()``.
        best: Cheapest schedule within the budget so far.
        elsewhere: Cost of the cheapest schedule that is in another order than the document.
    """

    task: Task
    formulation: Formulation
    context: Context
    stated: CheckmateModel
    decoder: Decoder
    started_s: float = field(default_factory=time.monotonic)
    best: tuple[float, Schedule] | None = None
    elsewhere: float | None = None

    @classmethod
    def start(cls, task: Task, formulation: Formulation, context: Context) -> _Run:
        """State the model."""
        from remat_cli.milp.checkmate import build

        budget_bytes, control = task.budget_bytes, context.control
        assert budget_bytes is not None
        try:
            # The clock is not checked while it is compiled, and there is no partial result to wait for.
            stated = running.run(lambda: build(task.graph, budget_bytes, formulation, control), control, grace_s=0.0)
        except running.Abandoned:
            control.check()
            raise
        control.check()
        run = cls(task, formulation, context, stated, Decoder.of(stated))
        if not formulation.minimize_peak:
            run._keep(tuple(range(len(task.graph.nodes))))
        return run

    def relaxation(self) -> Found | NotFound:
        """The bound of the linear relaxation."""
        outcome = self._solve(self.stated.model.relaxed())
        if outcome.termination is Termination.INFEASIBLE:
            return self._nothing_fits()
        bounds: tuple[Bound, ...] = ()
        if outcome.bound is not None:  # as it is: the weak bounds of some forms are what the paper compares
            bound = outcome.bound * self.stated.cost_scale
            bounds = (Bound(bound if self.best is None else min(bound, self.best[0]), Scope.FRONTIER),)
        reason = "only the bound of the linear relaxation was asked for"
        if not self.formulation.frontier:
            reason += f", here of {self._any_stages()}"
        return NotFound(reason, bounds=bounds, hint=_LEAVE_OUT)

    def _any_stages(self) -> str:
        """The schedules of the form without the frontier."""
        order = " with first computations in document order" if self.formulation.ordered else ""
        return f"all schedules of {len(self.stated.problem.rows)} stages, each at most one pass over all nodes{order}"

    def search(self) -> Found | NotFound:
        """Solve, cut off answers that exceed the budget by what was rounded off, and solve again."""
        model = self.stated.model
        bound: float | None = None
        while True:
            outcome = self._solve(model)
            if outcome.bound is not None:
                bound = max(outcome.bound * self.stated.cost_scale, bound or 0.0)
            if outcome.termination is Termination.INFEASIBLE and self.best is None:
                return self._nothing_fits()
            if outcome.termination is Termination.INFEASIBLE:  # nothing but what was cut off
                return self._found(bound, finished=True)
            if outcome.values is None:
                return self._found(bound, finished=False)
            chosen = self.decoder.chosen(outcome.values)
            self._keep(self.decoder.computes(chosen))
            if not self.formulation.ordered and self.best is None and outcome.objective is not None:
                self.elsewhere = outcome.objective * self.stated.cost_scale
            cuts = self.decoder.cover_cuts(chosen)
            finished = outcome.termination is Termination.OPTIMAL
            if not finished or not cuts or self._good_enough(bound):
                return self._found(bound, finished=finished and not cuts)
            model = model.with_rows(cuts)

    def _found(self, bound: float | None, *, finished: bool) -> Found | NotFound:
        """The cheapest schedule, with the bound as far as a cross-check confirms it."""
        if finished:
            bound = self._no_higher(bound)
        bounds = (self._bound(bound),)
        if self.best is None and self.elsewhere is not None:
            cost = format_cost(self.elsewhere, self.task.graph.cost_unit)
            return NotFound(
                f"the cheapest schedule found, of cost {cost}, has another order than the document",
                bounds=bounds,
                hint="leave ordered=false out for a plan",
            )
        if self.best is None:
            return NotFound("the limit came before the solver found any schedule", bounds=bounds)
        return Found(self.best[1], bounds, exhausted=finished, used_solver=True)

    def _bound(self, bound: float | None) -> Bound:
        """The solver's bound, made safe and no higher than the cost of a schedule in hand."""
        safe = safe_bound(self.task.graph, bound)
        return Bound(safe if self.best is None else min(safe, self.best[0]), Scope.FRONTIER)

    def _no_higher(self, bound: float | None) -> float | None:
        """``bound``, lowered to what a cross-check finds; a cheaper schedule that it finds is kept."""
        check = self._cross_check(_BOUND_SHARE)
        if check is None or check.schedule is None or bound is None:
            return bound
        self._keep(check.schedule.computes)
        return bound if check.bound is None else min(bound, check.bound)

    def _cross_check(self, share: float) -> CrossCheck | None:
        """The same question to another formulation; None if only this one can state it, or there is no time.

        Args:
            share: Of the time left. Without a limit it gets as long as the first answer took, and a few seconds.
        """
        from remat_cli.milp.checkmate import Formulation
        from remat_cli.strategies.retention.proof import cross_check

        if self.formulation != Formulation() or self.context.control.stopping():
            return None
        most_s = _LOOK_LEAST_S + time.monotonic() - self.started_s
        self.context.control.report(Progress("checking the answer by another formulation"))
        known = None if self.best is None else self.best[1]
        return cross_check(self.task, self.context, self.context.control.part(share, most_s), known=known)

    def _good_enough(self, bound: float | None) -> bool:
        return self.best is not None and self.best[0] * (1 - self.context.gap) <= safe_bound(self.task.graph, bound)

    def _keep(self, computes: tuple[int, ...]) -> None:
        """Keep and publish a schedule if it is in document order, within the budget and the cheapest so far."""
        if list(dict.fromkeys(computes)) != list(range(len(self.task.graph.nodes))):
            return  # only without ``ordered``
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

    def _nothing_fits(self) -> Found | NotFound:
        """The answer when the solver says that nothing fits: its "no" if a cross-check confirms it.

        The smallest budget that works is looked for as well, within some seconds. A plan found on the way refutes it.
        """
        form = self.formulation
        reason = "no frontier-advancing schedule fits"
        if not form.frontier:
            reason = "no schedule of as many stages as nodes fits"
        elif form.stage_split > 1:
            reason = f"no schedule with at most {form.stage_split} passes through each stage fits"
        check = self._cross_check(_NO_SHARE)
        if check is not None and check.schedule is not None:
            self._keep(check.schedule.computes)
            return self._refuted(check.bound)
        least, bound = self._least_peak()
        if least is not None:
            self._keep(least.computes)
            if self.best is not None:
                return self._refuted(None)
        budget_bytes = self.task.budget_bytes
        assert budget_bytes is not None
        if not (check is not None and check.impossible) and not (bound is not None and bound > budget_bytes):
            reason = f"according to {self.context.solver.title} alone, {reason}"
        return NotFound(reason, scope=Scope.FRONTIER, best=least, peak_bound_bytes=bound)

    def _refuted(self, bound: float | None) -> Found:
        """The plan that refutes the solver's "no"."""
        assert self.best is not None
        return Found(self.best[1], (self._bound(bound),), exhausted=bound is not None, used_solver=True)

    def _least_peak(self) -> tuple[Schedule | None, int | None]:
        """The schedule with the lowest peak that some seconds allow, and a bound in bytes on every peak."""
        control = self.context.control
        remaining = control.remaining_s()
        limit = time.monotonic() + (_EXPLAIN_S if remaining is None else min(_EXPLAIN_S, 0.8 * remaining))
        control.report(Progress("looking for the smallest budget that works"))
        context = replace(self.context, control=replace(control, deadline_s=limit), gap=INNER_GAP)
        try:
            run = _Run.start(self.task, replace(self.formulation, minimize_peak=True), context)
            outcome = run._solve(run.stated.model)
        except (LimitReached, Interrupted):
            return None, None
        graph, unit = self.task.graph, run.stated.memory.unit_bytes
        best = None
        if outcome.values is not None:
            best = Schedule(priced(graph, run.decoder.computes(run.decoder.chosen(outcome.values))).computes)
        bound = None
        if outcome.bound is not None:
            bound = graph.fixed_memory + math.ceil((outcome.bound - BOUND_MARGIN * max(1.0, abs(outcome.bound))) * unit)
            if best is not None:
                bound = min(bound, priced(graph, best.computes).peak_bytes)
        return best, bound
