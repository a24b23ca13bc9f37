"""Options that all ways of solving share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from remat_cli.errors import UsageError
from remat_cli.plan.model import Plan
from remat_cli.tolerances import GAP

OPTIMAL_GAP = GAP
"""A plan is called optimal when its proven gap is at most this (and at most the gap asked for)."""

_MODEL_SUFFIXES = (".lp", ".mps")


@dataclass(frozen=True, slots=True)
class SolveOptions:
    """How to solve.

    Attributes:
        strategy: Strategy with options: ``checkmate-ilp{stage_split=2}``.
        solver: MIP solver with options: ``cbc``.
        time_limit_s: Seconds of wall time for the whole command, from ``started_s``; None for no limit.
        gap: Relative gap at which to stop.
        threads: Threads for the solver; None for its own choice.
        seed: Random seed.
        write_model: File for the model (``.lp`` or ``.mps``).
        solver_log: File for the solver's log.
        started_s: ``time.monotonic()`` at which the time limit starts; None for the time of the call.
        reorder: Whether nodes may also run in another order than the document's.
        start: An old plan of the graph, for any budget, to start from; the answer never costs more if it fits.
    """

    strategy: str = "auto"
    solver: str = "highs"
    time_limit_s: float | None = None
    gap: float = OPTIMAL_GAP
    threads: int | None = None
    seed: int = 0
    write_model: Path | None = None
    solver_log: Path | None = None
    started_s: float | None = None
    reorder: bool = False
    start: Plan | None = None

    def __post_init__(self) -> None:
        """Refuse values out of range.

        Raises:
            UsageError: If the gap or the time limit is out of range, the thread count is below one, or the suffix of
                the model file is neither ``.lp`` nor ``.mps``.
        """
        if not 0 <= self.gap < 1:
            raise UsageError(f"gap {self.gap:g} is not between 0 and 1", hint="a gap of 0.0001 means 0.01%")
        if self.time_limit_s is not None and self.time_limit_s <= 0:
            raise UsageError("the time limit must be positive", hint="write it like 60s, 5m or 1h")
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"{self.threads} threads are too few", hint="give --threads 1 or more")
        path = self.write_model
        if path is not None and path.suffix.lower() not in _MODEL_SUFFIXES:
            raise UsageError(f"{path}: a model file ends in .mps or .lp", hint=f"write {path.stem}.lp instead")
