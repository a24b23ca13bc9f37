"""Annealing of sequences with collectives, by their time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from remat_cli.control import Control
from remat_cli.strategies.engine import Engine
from remat_cli.strategies.overlapping.sequences import Sequences

_ROUND_SHARE, _ROUND_S = 0.8, 60.0
"""Limits of each round."""
_HEAT = ((1e-2, 1e-5), (3e-3, 1e-5), (1e-3, 1e-6))
"""First and last temperatures of annealing, in shares of C0."""
_SLICE, _LEAST_MOVES, _MOST_MOVES = 20_000_000, 4_000, 50_000
"""In the first round: moves of a run times the steps of its sequence, and limits of the moves."""
_LONGER = 8
"""Each round has twice the moves of the one before, up to so many times those of the first."""


@dataclass(slots=True)
class Annealing(Engine):
    """Anneals when collectives are issued and what is computed again.

    Attributes:
        rounds_done: Rounds so far, over all turns.
    """

    rounds_done: int = 0

    def work(self, *, rounds: int | None = None) -> bool:
        """Anneal in rounds, each with longer runs.

        Args:
            rounds: Number of rounds; None to go on while there is time, or without a limit while rounds gain.
        """
        incumbent, done = self.incumbent, 0
        limited = incumbent.context.control.deadline_s is not None
        incumbent.shared(Sequences).follow()
        while not incumbent.over() and done != rounds:
            before = incumbent.cost
            incumbent.report("annealing")
            self._round(incumbent.context.control.part(_ROUND_SHARE, _ROUND_S))
            self.rounds_done += 1
            done += 1
            if not limited and not incumbent.cost < before * (1 - incumbent.context.gap):
                break
        return True

    def _round(self, control: Control) -> None:
        """Anneal from the starts in turn, with falling temperatures."""
        sequences = self.incumbent.shared(Sequences)
        longer = min(2**self.rounds_done, _LONGER)
        for heat in _HEAT:
            for start in dict.fromkeys([*sequences.starts, *([] if sequences.best is None else [sequences.best])]):
                if control.stopping() or self.incumbent.over():
                    return
                found = sequences.walker.anneal(start, longer * _moves(start.steps), heat)
                sequences.take(found)
                sequences.take(sequences.walker.issued_early(found))


def _moves(steps: Sequence[int]) -> int:
    """Moves of a run in the first round."""
    return min(_MOST_MOVES, max(_LEAST_MOVES, _SLICE // max(1, len(steps))))
