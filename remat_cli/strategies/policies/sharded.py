"""Gather parameters as PyTorch's FSDP2 does: one block ahead, and again in the backward pass or not."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from remat_cli.errors import StrategyMismatch
from remat_cli.graph.model import Graph, Phase
from remat_cli.graph.phases import require_phases
from remat_cli.strategies.base import Context, Found, Needs, Schedule, Strategy, Task
from remat_cli.strategies.objective import objective_for
from remat_cli.strategies.policies.whole_modules import chosen_from, every, layers_of


@dataclass(frozen=True, slots=True)
class Fsdp(Strategy):
    """Collectives that read only fixed memory gather parameters: a layer's are issued when the one before is needed.

    Attributes:
        reshard: Whether the backward pass gathers again what the forward pass gathered (``reshard_after_forward``).
        checkpoint: Whether every layer is recomputed as a whole, as by ``every-n-layers{n=1}``.
    """

    reshard: bool = field(default=True, metadata={"help": "whether the backward pass gathers again"})
    checkpoint: bool = field(default=False, metadata={"help": "whether every layer is recomputed as a whole"})

    name: ClassVar[str] = "fsdp"
    summary: ClassVar[str] = "gather one ahead, and again in the backward pass or not, as FSDP2; needs collectives"
    reference: ClassVar[str] = "PyTorch, torch.distributed.fsdp.fully_shard"
    needs: ClassVar[Needs] = Needs.COLLECTIVES
    minds_budget: ClassVar[bool] = False
    overlaps: ClassVar[bool] = True
    ignores: ClassVar[frozenset[str]] = frozenset({"costs", "sizes", "budget"})

    def solve(self, task: Task, context: Context) -> Found:
        """The schedule.

        Raises:
            StrategyMismatch: If no collective reads only fixed memory, a node has no phase, or, with ``checkpoint``,
                there are no layers.
        """
        graph = task.graph
        if not any(map(graph.moves_freely, range(len(graph.nodes)))):
            raise StrategyMismatch(
                "fsdp needs gathers of parameters: nodes with queue: communication, no inputs and one output",
                hint="take another strategy, such as auto",
            )
        require_phases(graph, self.name)
        computes: Sequence[int] = range(len(graph.nodes))
        if self.checkpoint:
            choice = chosen_from(task, self.name)
            layers = layers_of(choice)
            if not layers:
                raise StrategyMismatch(
                    f"{self.name}{{checkpoint=true}} needs modules whose names differ in a number, such as layers.0",
                    hint="name nodes so, as in layers.0/linear and grad/layers.0/linear",
                )
            computes = choice.schedule(every(layers, 1))[0]
        dropped = range(len(graph.nodes)) if self.reshard else ()
        schedule = Schedule(tuple(one_ahead(graph, computes, dropped)))
        return Found(schedule, (objective_for(task).trivial_bound,))


def one_ahead(graph: Graph, computes: Sequence[int], dropped: Collection[int]) -> list[int]:
    """``computes`` with the gathers of each layer issued when those of the one before it are needed.

    Those of the first layer of the backward pass are issued when they are needed themselves, so that nothing of the
    backward pass is gathered during the forward pass.

    Args:
        graph: The graph; every node has a phase.
        computes: A schedule, whose own gathers are left out.
        dropped: The gathers whose results are dropped before the backward pass.
    """
    there: set[int] = set()
    backward = False
    issued: list[list[int]] = []
    others = [x for x in computes if not graph.moves_freely(x)]
    slot, unit = -1, ""  # where the unit before was needed first, and the unit that is being gathered
    needed = -1  # where that one was needed first
    for k, x in enumerate(others):
        issued.append([])
        if graph.nodes[x].phase is Phase.BACKWARD and not backward:
            backward, slot, unit, needed = True, -1, "", -1
            there = {v for v in there if graph.producer[v] not in dropped}
        for maker in dict.fromkeys(graph.producer[v] for v in graph.nodes[x].inputs):
            if not graph.moves_freely(maker) or graph.first_value[maker] in there:
                continue
            if unit_of(graph.nodes[maker].id) != unit:
                slot, unit, needed = needed, unit_of(graph.nodes[maker].id), k
            issued[needed if slot < 0 else slot].append(maker)
            there.add(graph.first_value[maker])
    return [step for gathers, x in zip(issued, others, strict=True) for step in (*gathers, x)]


def unit_of(name: str) -> str:
    """What is gathered at a time: a layer, such as ``model.layers.3``; outside of layers, each parameter by itself."""
    found = re.match(r"(.*?\.\d+)[./]", name)
    return name if found is None else found.group(1)
