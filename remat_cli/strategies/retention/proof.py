"""Proves bounds and checks answers with the retention MILP.

The model over all stages, with rows that hold in every order inside a stage, bounds every schedule in document order.

A solver's plan is replayed, but its "no" and its bound cannot be: there is no certificate of a branch and bound. So
after an answer about the paper's MILP the frontier-advancing schedules are searched again, in the retention MILP and by
HiGHS. Two formulations seldom fail alike. A "no" to one of remat's own models is asked again of HiGHS with other
settings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from remat_cli.control import Control
from remat_cli.errors import Interrupted, LimitReached, SolverFailed
from remat_cli.milp.decode import overfull
from remat_cli.milp.in_stage_rows import LiveThroughRows
from remat_cli.milp.support import common, support_within
from remat_cli.mip import Floats, LinearModel
from remat_cli.plan.model import Scope
from remat_cli.solvers.base import Outcome, Termination
from remat_cli.solvers.highs import Highs
from remat_cli.strategies.base import Bound, Context, Found, Schedule, Task
from remat_cli.strategies.bounds import safe_bound, whole
from remat_cli.strategies.engine import Engine
from remat_cli.strategies.incumbent import Incumbent, Verdict
from remat_cli.strategies.retention.reduced_cost import Cheaper
from remat_cli.strategies.retention.solving import NEIGHBOURS, Retention
from remat_cli.tolerances import START_VIOLATION

# Halving and doubling all of these together changes the gap by less than its noise (benchmark ``ablation``).
_REHEARSAL_DEPTH, _REHEARSAL_GAP = 1.0, 1e-3
_REHEARSAL_S, _REHEARSAL_SHARE = 15.0, 0.2
"""Which rows a proof takes shows on a small support, in a fraction of the time for the full one."""
_SHARE, _LEAST_S, _FACTOR = 0.5, 2.0, 10.0
"""Most time for asking again: a share of the time left, and some seconds and a multiple of the first answer's time,
because HiGHS takes longer without presolve."""


@dataclass(slots=True)
class InStageProof:
    """The model over the full support with rows for what is resident through a stage (see ``milp/in_stage_rows``).

    Attributes:
        incumbent: Gets the bound and the schedules found.
        model: The model; its own in-stage rows assume an order inside a stage and are never stated.
        rows: The rows so far.
        ceiling: The model excludes schedules that cost more.
        proves: Whether the support holds all schedules below the ceiling; else no bound is taken.
    """

    incumbent: Incumbent
    model: Retention
    rows: LiveThroughRows
    ceiling: float
    proves: bool = True

    @classmethod
    def of(cls, incumbent: Incumbent, depth: float | None = None) -> InStageProof:
        """State the model without rows.

        Args:
            incumbent: The incumbent; the cheaper it is, the fewer nodes the support needs.
            depth: Depth of a smaller support that proves nothing; None for a proof.
        """
        cheaper = Cheaper.than_needed(incumbent)
        support = cheaper.affordable()
        if depth is not None:
            support = common(support, support_within(cheaper.graph, depth))
        model = Retention.over(incumbent, None, support=support)
        if cheaper.ceiling < incumbent.cost:
            model.cuts += cheaper.rows(model.stated, model.stating)
        return cls(incumbent, model, LiveThroughRows(model.stated), cheaper.ceiling, depth is None)

    def state(self, steps: Iterable[tuple[int, int]]) -> bool:
        """State the rows of (stage, node) ``steps``; whether one of them was new."""
        block = self.rows.block(steps)
        if block is None:
            return False
        self.model.append(block)
        return True

    def run(self, control: Control, *, gap: float | None = None) -> None:
        """Solve and state the rows that the answer violates, until it violates none; take every bound.

        Args:
            control: Clock.
            gap: Gap at which the solver stops; None for a quarter of the requested one.
        """
        incumbent, context = self.incumbent, self.incumbent.context
        # Every model with fewer rows is a relaxation, so the bound of each round holds. Stating all rows first
        # would add up to n^2 of them, and few cut anything off.
        while not incumbent.over() and not control.stopping():
            incumbent.report("proving")
            model = self.model.model
            least = context.gap / 4 if gap is None else gap
            outcome = context.solver.solve(context.request(model, control, gap=least, start=self._start(model)))
            if self.proves:
                raise_bound(incumbent, proven_cost(self.model, outcome), self.ceiling)
            if outcome.values is None or not self._refine(outcome.values):
                return

    def _refine(self, values: Floats) -> bool:
        """Offer a solution and state rows for its steps over the budget; whether a row was new."""
        decoder = self.model.decoder
        chosen = decoder.chosen(values)
        self.incumbent.offer(decoder.computes(chosen))
        near = range(-NEIGHBOURS, NEIGHBOURS + 1)
        return self.state((t + d, k) for t, k in overfull(self.model.stated, chosen) for d in near)

    def _start(self, model: LinearModel) -> Floats | None:
        """The incumbent as a solution; None if the model does not hold it."""
        if self.incumbent.computes is None or (values := self.model.columns_of(self.incumbent.computes)) is None:
            return None
        for level in self.rows.levels:
            kept = 1.0 if level.kept is None else values[level.kept]
            values[level.variable] = max(0.0, kept - values[level.again])
        return values if model.violation(values) <= START_VIOLATION else None


@dataclass(slots=True)
class InStageProofs(Engine):
    """Bounds the cost by the model that looks inside stages, with the rows of earlier turns.

    Attributes:
        steps: The steps whose rows were stated so far.
    """

    uses_solver: ClassVar[bool] = True

    steps: frozenset[tuple[int, int]] = frozenset()

    def work(self) -> bool:
        """Find out on a small support which rows it takes, unless an earlier turn has, and prove with them."""
        incumbent = self.incumbent
        if not self.steps:
            rehearsal = InStageProof.of(incumbent, _REHEARSAL_DEPTH)
            rehearsal.run(incumbent.step(_REHEARSAL_S, _REHEARSAL_SHARE), gap=_REHEARSAL_GAP)
            self.steps = frozenset(rehearsal.rows.steps)
        if incumbent.over():
            return False
        proof = InStageProof.of(incumbent)
        proof.state(self.steps)
        proof.run(incumbent.context.control)
        self.steps = frozenset(proof.rows.steps)
        return True


def raise_bound(incumbent: Incumbent, bound: float | None, ceiling: float) -> None:
    """Take the bound of a model that excludes schedules above ``ceiling``; None for no bound."""
    if bound is not None:  # nothing is proven of schedules above the ceiling, so the bound is at most the ceiling
        incumbent.raise_bound(Bound(whole(incumbent.graph, min(bound, ceiling)), Scope.DOCUMENT_ORDER))


def proven_cost(model: Retention, outcome: Outcome | None) -> float | None:
    """The bound of ``outcome`` in the graph's cost unit, infinite if nothing fits; None if there is none."""
    if outcome is None:
        return None
    if outcome.termination is Termination.INFEASIBLE:
        return math.inf
    return None if outcome.bound is None else safe_bound(model.incumbent.graph, outcome.bound * model.stated.cost_scale)


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """What the cross-check found.

    Attributes:
        schedule: The cheapest frontier-advancing schedule within the budget; None if it found none.
        cost: Its cost, infinite if there is none.
        bound: No frontier-advancing schedule within the budget costs less; infinite if it found that none fits; None if
            it did not end.
    """

    schedule: Schedule | None
    cost: float
    bound: float | None

    @property
    def impossible(self) -> bool:
        """Whether it found that no schedule fits."""
        return self.bound == math.inf and self.schedule is None


def cross_check(task: Task, context: Context, control: Control, *, known: Schedule | None = None) -> CrossCheck:
    """Search the frontier-advancing schedules in the retention MILP over its full support, by HiGHS.

    Args:
        task: Graph and budget.
        context: Options; its solver is not used, and nothing is published.
        control: Clock.
        known: A schedule to start from.
    """

    def quietly(_: Found) -> None:
        pass

    apart = replace(context, control=control, solver=Highs(), publish=quietly, trace=[])
    incumbent = Incumbent.of(task, apart, goal=Verdict.EXACT)
    if known is not None:
        incumbent.offer(known.computes)
    bound = None
    try:
        model = Retention.over(incumbent, None)
        outcome = model.solve(control)
        if outcome is not None:
            bound = proven_cost(model, outcome)
    except (Interrupted, LimitReached, SolverFailed):
        pass  # it has not ended, and says nothing; the answer that it was to check must not be lost
    schedule = None if incumbent.advancing is None else Schedule(incumbent.advancing)
    return CrossCheck(schedule, incumbent.advancing_cost, bound)


def confirmed(no: Outcome, model: LinearModel, incumbent: Incumbent) -> Outcome:
    """The answer to pass on after a solver said that ``model`` has no solution.

    HiGHS is asked the same: without presolve, where such errors mostly are, if the first answer was its own. If it
    finds a solution, that is the answer. If it does not end in time, the first answer stands, and ``incumbent`` is told
    that nothing else confirms it.

    Args:
        no: The first answer.
        model: The model.
        incumbent: The incumbent, whose clock is that of the stage.
    """
    context = incumbent.context
    other = Highs(presolve="off") if isinstance(context.solver, Highs) else Highs()
    control = context.control.part(_SHARE, _LEAST_S + _FACTOR * no.wall_s)
    incumbent.report("checking that no plan fits")
    try:
        outcome = other.solve(replace(context.request(model, control), seed=context.seed + 1))
    except (LimitReached, SolverFailed):
        incumbent.uncertified = True
        return no
    if outcome.values is not None:
        return outcome
    incumbent.uncertified = outcome.termination is not Termination.INFEASIBLE
    return no
