"""Annealing, merging and windows by turns, until time or patience is out."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import ClassVar

from remat_cli.errors import LimitReached
from remat_cli.strategies.engine import Engine, engine_at
from remat_cli.strategies.incumbent import Verdict
from remat_cli.strategies.openers.crowded import crowded_stages

MEMBERS = {
    "annealing": "remat_cli.strategies.annealing.workers:Annealing",
    "merging": "remat_cli.strategies.retention.merging:Merging",
    "windows": "remat_cli.strategies.retention.windows:Windows",
}
"""The engines that can take part. Merging runs right after annealing, whose schedules it combines."""
_LEAST_SHARE = 0.2
"""Least share of the time for annealing and for windows: a gain rate is known only of an engine that runs. Untuned."""
_ENOUGH = 0.5
"""Share of the time after which to stop if only schedules outside a class can be cheaper, and crowded stages have
nothing left to look into: on G1 at 90% they are found within seconds (benchmark ``targets``)."""
_PATIENCE_BEYOND = 2
"""Idle rounds before the end in that case. Untuned."""
_RUNS, _WINDOWS = 2, 3
"""Runs of annealing in one turn, and windows in one turn. Untuned."""


@dataclass(slots=True)
class _Clock:
    """The time and the gain of a member: ``rate`` is the gain per second of its last turn."""

    spent_s: float = 0.0
    rate: float = 0.0


@dataclass(slots=True)
class Turns(Engine):
    """Lets annealing, with merging after it, and windows take turns.

    Without a time limit each runs in every round, so that the result does not depend on the clock. With one, the member
    with the highest gain per second in its last turn runs next, and each gets a least share of the time.

    Attributes:
        clocks: Time and gain of annealing and of windows.
    """

    uses_solver: ClassVar[bool] = True

    clocks: dict[str, _Clock] = field(default_factory=lambda: {"annealing": _Clock(), "windows": _Clock()})

    def work(self, members: tuple[str, ...], *, depth: float = 2.0, patience: int = 8, persistent: bool = True) -> bool:
        """Take turns until time or patience is out.

        Args:
            members: Of ``annealing``, ``merging`` and ``windows``, those that take part.
            depth: Support of the model that windows are taken from.
            patience: Idle rounds in a row after which to end without a time limit, or if only schedules outside a class
                can be cheaper.
            persistent: Whether to go on after that under a time limit.
        """
        incumbent, idle = self.incumbent, 0
        at_first_s = incumbent.context.control.remaining_s() or 0.0
        while not incumbent.over() and (
            idle < self._patience(patience) or (persistent and self._worth_the_time(at_first_s))
        ):
            playing = self._playing(members)
            if not playing:
                return False
            try:
                gained = [self._turn(name, members, depth) for name in playing]
            except LimitReached:
                return False  # no time to state a model
            idle = 0 if any(gained) else idle + 1
        return True

    def _playing(self, members: tuple[str, ...]) -> list[str]:
        """The members of the next round."""
        both = [name for name in self.clocks if name in members]
        if "annealing" in members and self.incumbent.verdict is Verdict.CLASS:
            return ["annealing"]  # windows search only the class, and in it nothing is cheaper
        if len(both) < 2 or self.incumbent.context.control.deadline_s is None:
            return both
        fewer, other = sorted(both, key=lambda name: self.clocks[name].spent_s)
        total = sum(clock.spent_s for clock in self.clocks.values())
        owed = self.clocks[fewer].spent_s < _LEAST_SHARE * total
        return [fewer if owed or self.clocks[fewer].rate >= self.clocks[other].rate else other]

    def _turn(self, name: str, members: tuple[str, ...], depth: float) -> bool:
        """One turn of a member; whether another one may gain something."""
        incumbent, clock = self.incumbent, self.clocks[name]
        control, maker = incumbent.context.control, incumbent.crediting[0]
        # Merging is made first: from then on annealing puts its schedules into the pool.
        merging = engine_at(MEMBERS["merging"], incumbent) if name == "annealing" and "merging" in members else None
        options = {"rounds": _WINDOWS, "depth": depth} if name == "windows" else {"rounds": _RUNS}
        began_s = time.monotonic()
        gained = [engine_at(MEMBERS[name], incumbent).turn(control, maker, **options)]
        if merging is not None:
            gained.append(merging.turn(control, maker, merging=incumbent.verdict is not Verdict.CLASS))
        took_s = max(time.monotonic() - began_s, 1e-3)
        clock.spent_s += took_s
        # Infinite for a first schedule: that is worth any time.
        clock.rate = sum(turn.cost for turn in gained) / took_s
        return any(turn.more for turn in gained)

    def _patience(self, patience: int) -> int:
        return min(patience, _PATIENCE_BEYOND) if self.incumbent.verdict is Verdict.CLASS else patience

    def _worth_the_time(self, at_first_s: float) -> bool:
        """Whether to go on after idle rounds: there is a time limit, and a cheaper schedule may exist."""
        remaining = self.incumbent.context.control.remaining_s()
        if remaining is None or not math.isfinite(remaining):
            return False
        open_still = self.incumbent.verdict is not Verdict.CLASS or bool(crowded_stages(self.incumbent).cuts)
        return open_still or remaining > _ENOUGH * at_first_s
