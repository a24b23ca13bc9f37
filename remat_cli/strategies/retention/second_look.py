"""A second look at what a solver said: the same question to another formulation, or to a solver with other settings.

A solver's plan is replayed, but its "no" and its bound cannot be: there is no certificate of a branch and bound. So
after an answer about the paper's MILP the frontier-advancing schedules are searched again, in the retention MILP and by
HiGHS. Two formulations seldom fail alike. A "no" to one of remat's own models is asked again of HiGHS with other
settings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from remat_cli.control import Control
from remat_cli.errors import Interrupted, LimitReached, SolverFailed
from remat_cli.mip import LinearModel
from remat_cli.solvers.base import Outcome, Termination
from remat_cli.solvers.highs import Highs
from remat_cli.strategies.base import Context, Found, Schedule, Task
from remat_cli.strategies.incumbent import Incumbent, Verdict
from remat_cli.strategies.retention.proof import proven_cost
from remat_cli.strategies.retention.solving import Retention

_SHARE, _LEAST_S, _FACTOR = 0.5, 2.0, 10.0
"""Most time for asking again: a share of the time left, and some seconds and a multiple of the first answer's time,
because HiGHS takes longer without presolve. Untuned."""


@dataclass(frozen=True, slots=True)
class SecondLook:
    """What the second look found.

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


def second_look(task: Task, context: Context, control: Control, *, known: Schedule | None = None) -> SecondLook:
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
    return SecondLook(schedule, incumbent.advancing_cost, bound)


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
