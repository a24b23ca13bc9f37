"""Starts from the schedules of methods that frameworks have, with collectives issued earlier where that is quicker."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from remat_cli.errors import Interrupted, LimitReached, StrategyMismatch
from remat_cli.strategies.base import Found, Task
from remat_cli.strategies.engine import Engine
from remat_cli.strategies.overlapping.sequences import Sequences
from remat_cli.strategies.registry import strategy_from_spec

METHODS = (
    "fsdp{reshard=true}",
    "fsdp{reshard=false}",
    "fsdp{reshard=true,checkpoint=true}",
    "fsdp{reshard=false,checkpoint=true}",
    "every-n-layers",
    "min-cut",
)


@dataclass(slots=True)
class UsualMethods(Engine):
    """Runs the methods that know the graph."""

    def work(self) -> bool:
        """Take the schedule of each."""
        incumbent = self.incumbent
        sequences = incumbent.shared(Sequences)
        sequences.follow()
        context = replace(incumbent.context, publish=lambda found: sequences.suggest(found.schedule.computes))
        for spec in METHODS:
            if incumbent.context.control.stopping():
                break
            incumbent.report(spec.partition("{")[0])
            with suppress(StrategyMismatch, LimitReached, Interrupted):
                answer = strategy_from_spec(spec).solve(Task(incumbent.graph, incumbent.budget_bytes), context)
                schedule = answer.schedule if isinstance(answer, Found) else answer.best
                if schedule is not None:
                    sequences.suggest(schedule.computes)
        return False
