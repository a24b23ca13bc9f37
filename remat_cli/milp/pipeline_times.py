"""States a bound on the makespan of a pipeline: every choice of plans is a solution of this linear programme.

Columns are when each action begins, how much longer each pass of each stage takes than without recomputation, and the
makespan. An action begins when those that it waits for have ended. A device works at least as long for a microbatch as
the bound on its plans says, however that time is divided among its stages and their passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from remat_cli.mip import Builder, LinearModel, linear
from remat_cli.plan.pipelines import Action, Schedule, Times


def makespan_model(
    schedule: Schedule, least: Sequence[Times], work: Sequence[float], transfer: float, unit: float
) -> LinearModel:
    """The linear programme; its optimum, times ``unit``, is the bound.

    Args:
        schedule: The schedule.
        least: The least times of the passes of each stage; [stages].
        work: The least time of one microbatch's passes on each device; [devices].
        transfer: Time between passes on different devices.
        unit: The time that is 1 in the model.
    """
    build = Builder()
    [makespan] = build.amounts([1.0])
    actions = [action for order in schedule.orders for action in order]
    begin = dict(zip(actions, build.amounts([0.0] * len(actions)), strict=True))
    longer = {
        (stage, kind): column
        for stage in range(len(schedule.device_of))
        for kind, column in zip(schedule.kinds, build.amounts([0.0] * len(schedule.kinds)), strict=True)
    }

    def ends_before(action: Action, column: int, lag: float) -> None:
        least_time = (least[action.stage].of(action.kind) + lag) / unit
        terms = [(1.0, column), (-1.0, begin[action]), (-1.0, longer[action.stage, action.kind])]
        build.rows.append(linear(least_time, terms, math.inf))

    for arc in schedule.arcs():
        ends_before(arc.before, begin[arc.after], transfer if arc.moves else 0.0)
    for order in schedule.orders:
        ends_before(order[-1], makespan, 0.0)
    for device, total in enumerate(work):
        stages = schedule.stages_of(device)
        rest = total - math.fsum(least[stage].of(kind) for stage in stages for kind in schedule.kinds)
        terms = [(1.0, longer[stage, kind]) for stage in stages for kind in schedule.kinds]
        build.rows.append(linear(rest / unit, terms, math.inf))
    return build.build()
