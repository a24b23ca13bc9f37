"""Starts from the schedules of methods that frameworks have, with collectives issued earlier where that is quicker."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from remat_cli.errors import Interrupted, LimitReached, StrategyMismatch
from remat_cli.milp.module_choice import ModuleChoice
from remat_cli.plan.liveness import heights
from remat_cli.strategies.base import Found, Task
from remat_cli.strategies.engine import Engine
from remat_cli.strategies.overlapping.sequences import Sequences
from remat_cli.strategies.policies.sharded import one_ahead, unit_of
from remat_cli.strategies.policies.whole_modules import chosen_from, every, layers_of
from remat_cli.strategies.registry import strategy_from_spec

METHODS = (
    "fsdp{reshard=true}",
    "fsdp{reshard=false}",
    "fsdp{reshard=true,checkpoint=true}",
    "fsdp{reshard=false,checkpoint=true}",
    "every-n-layers",
    "min-cut",
)

_SHARES = (1.0, 0.0, 0.5, 0.25, 0.75)
"""Shares of the layers that are gathered again, for each of which as few as possible are recomputed; and likewise the
other way around. Untuned."""


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
        self._partly(sequences)
        return False

    def _partly(self, sequences: Sequences) -> None:
        """Suggest schedules as FSDP2's in which the first layers alone are recomputed, or gathered again.

        What the last layers keep is needed first in the backward pass, so that the peak is that at its begin. For a
        number of layers that are gathered again, as few are recomputed as fits, and the other way around.
        """
        incumbent, graph = self.incumbent, self.incumbent.graph
        try:
            partly = _Partly.of(Task(graph, incumbent.budget_bytes))
        except StrategyMismatch:
            return

        def fits(computes: Sequence[int]) -> bool:
            return max(heights(graph, computes)) <= incumbent.budget_bytes

        stopping = incumbent.context.control.stopping
        for share in _SHARES:
            for of_units in (True, False):
                most = [len(partly.layers), len(partly.units)]
                fixed = round(share * most[of_units])

                def schedule(count: int, fixed: int = fixed, of_units: bool = of_units) -> list[int]:
                    return partly.schedule(*((count, fixed) if of_units else (fixed, count)))

                few, many = -1, most[not of_units]
                if stopping() or not fits(schedule(many)):
                    continue
                while many - few > 1 and not stopping():
                    middle = (few + many) // 2
                    few, many = (few, middle) if fits(schedule(middle)) else (middle, many)
                sequences.suggest(schedule(many))


@dataclass(frozen=True, slots=True)
class _Partly:
    """Schedules in which some layers are recomputed and some gathered again.

    Attributes:
        choice: The modules of a graph.
        layers: The layers that can be recomputed, by their position among the modules.
        units: What is gathered at a time, as nodes, in the order of the document.
    """

    choice: ModuleChoice
    layers: list[int]
    units: list[list[int]]

    @classmethod
    def of(cls, task: Task) -> _Partly:
        """The layers of a graph.

        Raises:
            StrategyMismatch: If it has none.
        """
        choice = chosen_from(task, "overlap")
        units: dict[str, list[int]] = {}
        for k, node in enumerate(task.graph.nodes):
            if task.graph.moves_freely(k):
                units.setdefault(unit_of(node.id), []).append(k)
        return cls(choice, every(layers_of(choice), 1), list(units.values()))

    def schedule(self, recomputed: int, again: int) -> list[int]:
        """The first ``recomputed`` layers recomputed as a whole, and the first ``again`` units gathered again."""
        computes, _ = self.choice.schedule(self.layers[:recomputed])
        dropped = {k for unit in self.units[:again] for k in unit}
        return one_ahead(self.choice.training.graph, computes, dropped)
