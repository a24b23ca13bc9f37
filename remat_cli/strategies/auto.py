"""The default of ``remat solve``: no recomputation if the graph fits, else all engines in a fixed order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from remat_cli.errors import UsageError
from remat_cli.strategies.base import Context, Found, NotFound, Task
from remat_cli.strategies.engine import Pipelined, Stage
from remat_cli.strategies.keep_all import kept_all

_ALL = "all"


@dataclass(frozen=True, slots=True)
class Auto(Pipelined):
    """``keep-all`` if it fits the budget, else quick methods, ``optimal``, and ``search`` until the gap is reached.

    The stages are those of ``pipeline.AUTO``. A few graphs have a plan though no frontier-advancing one exists. Where
    nothing else finds one and the graph is small, ``checkmate-ilp`` with split stages looks for it.

    Attributes:
        stages: Names of the stages to run, joined by ``+``, or ``all``. ``remat strategies auto`` lists them.
    """

    stages: str = field(default=_ALL, metadata={"help": "stages to run, joined by +; see remat strategies auto"})

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "keep-all if it fits, else quick methods, optimal, and search until the gap is reached"
    reference: ClassVar[str] = ""
    uses_solver: ClassVar[bool] = True
    copies: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse names that no stage has."""
        if self.stages != _ALL:
            from remat_cli.strategies.pipeline import AUTO

            known = [stage.name for stage in AUTO]
            for name in self.stages.split("+"):
                if name not in known:
                    raise UsageError(f'auto{{stages}}: "{name}" is not a stage', hint=f"stages: {', '.join(known)}")

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Run the stages; the answer names the strategy that made it."""
        return kept_all(task) or Pipelined.solve(self, task, context)

    def pipeline(self) -> tuple[Stage, ...]:
        """All stages, or those that were chosen."""
        from remat_cli.strategies.pipeline import AUTO

        chosen = self.stages.split("+")
        return tuple(stage for stage in AUTO if self.stages == _ALL or stage.name in chosen)

    def beside(self) -> tuple[Stage, ...]:
        """Annealing, merging and windows, which find plans while the stages prove bounds; none for chosen stages."""
        from remat_cli.strategies.pipeline import BESIDE

        return BESIDE if self.stages == _ALL else ()
