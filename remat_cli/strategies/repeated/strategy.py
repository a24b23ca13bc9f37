"""The strategy ``repeated``: one solution for all equal blocks, and a programme over their chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from remat_cli.graph.analysis import no_remat_peak
from remat_cli.strategies.base import Context, Found, Needs, NotFound, Strategy, Task
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.repeated.search import Repetition


@dataclass(frozen=True, slots=True)
class Repeated(Strategy):
    """Cuts a training step into blocks, finds what a block may keep, and chooses for all blocks by a programme.

    Equal blocks are solved once, and so are equal stretches of blocks. The blocks are joined to groups of several
    sizes, and the cheapest plan counts.
    """

    name: ClassVar[str] = "repeated"
    summary: ClassVar[str] = "one solution for all equal blocks, and a programme over the chain of blocks"
    reference: ClassVar[str] = "Zhao et al., Rockmate, ICML 2023; Beaumont et al., INRIA RR-9302, 2019"
    needs: ClassVar[Needs] = Needs.CHAIN

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Solve all groupings that the time allows."""
        incumbent = Incumbent.empty(task, context)
        if task.budget_bytes is None:
            incumbent.budget_bytes = no_remat_peak(task.graph)
        Repetition(incumbent).turn(context.control, strict=True)
        return incumbent.answer(self.name)
