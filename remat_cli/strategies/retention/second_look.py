"""A second look at what a solver said of the paper's MILP: the same question to another formulation.

A solver's plan is replayed, but its "no" and its bound cannot be: there is no certificate of a branch and bound. So the
frontier-advancing schedules are searched again, in the retention MILP and by HiGHS. Two formulations seldom fail alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from remat_cli.control import Control
from remat_cli.errors import Interrupted, LimitReached, SolverFailed
from remat_cli.solvers.highs import Highs
from remat_cli.strategies.base import Context, Found, Schedule, Task
from remat_cli.strategies.incumbent import Incumbent, Verdict
from remat_cli.strategies.retention.proof import proven_cost
from remat_cli.strategies.retention.solving import Retention


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
