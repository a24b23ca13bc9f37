"""Annealing, merging and windows by turns, until time or patience is out."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

from remat_cli.errors import LimitReached
from remat_cli.strategies.engine import Engine, Gained, engine_at
from remat_cli.strategies.incumbent import Verdict
from remat_cli.strategies.openers.stage_cuts import stage_cuts_of

MEMBERS = {
    "annealing": "remat_cli.strategies.annealing.engines:Annealing",
    "merging": "remat_cli.strategies.retention.search:Merging",
    "windows": "remat_cli.strategies.retention.search:Windows",
}
"""The engines that can take part. Merging runs right after annealing, whose schedules it combines."""
_REPAIR = "remat_cli.strategies.annealing.repair:Repair"
"""Runs after merging, whose models propose schedules."""
# Halving and doubling these and other constants that steer a search both make the gap larger (benchmark ``ablation``).
_LEAST_SHARE = 0.2
"""Least share of the time for annealing and for windows: a gain rate is known only of an engine that runs."""
_ENOUGH = 0.5
"""Share of the time after which to stop if only schedules outside a class can be cheaper, and bottleneck stages have
nothing left to look into: on G1 at 90% they are found within seconds (benchmark ``targets``)."""
_PATIENCE_BEYOND = 2
"""Idle rounds before the end in that case."""
_ROUNDS = 2
"""Runs of annealing, or windows, in one turn."""


@dataclass(slots=True)
class _Clock:
    """The time of a member, and the time and the gain of its last turn.

    Attributes:
        spent_s: Seconds of all turns.
        last_s: Seconds of the last one.
        gained: By how much the incumbent got cheaper in it; infinite for a first schedule, which is worth any time.
    """

    spent_s: float = 0.0
    last_s: float = 1.0
    gained: float = 0.0

    @property
    def rate(self) -> float:
        """The gain per second of the last turn."""
        return self.gained / self.last_s

    def take(self, gained: float, took_s: float) -> None:
        """Count a turn."""
        self.spent_s += took_s
        self.last_s, self.gained = took_s, gained

    def join(self, other: _Clock) -> None:
        """Count the last turn of ``other`` as part of the last turn."""
        self.spent_s += other.last_s
        self.last_s += other.last_s
        self.gained += other.gained


@dataclass(slots=True)
class RoundRobin(Engine):
    """Lets annealing, with merging after it, and windows take turns.

    Without a time limit each runs in every round, so that the result does not depend on the clock. With one, the member
    with the highest gain per second in its last turn runs next, and each gets a least share of the time.

    Attributes:
        clocks: Those of annealing, which include merging, and of windows.
        merging: That of merging.
    """

    uses_solver: ClassVar[bool] = True

    clocks: dict[str, _Clock] = field(default_factory=lambda: {"annealing": _Clock(), "windows": _Clock()})
    merging: _Clock = field(default_factory=_Clock)

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
            incumbent.merge_news()
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
        # Merging is made first: from then on annealing puts its schedules into the pool.
        merging = engine_at(MEMBERS["merging"], incumbent) if name == "annealing" and "merging" in members else None
        options = {"depth": depth} if name == "windows" else {}
        gained = self._timed(clock, engine_at(MEMBERS[name], incumbent), rounds=_ROUNDS, **options)
        if merging is None or not self._merges(clock):
            return gained.more
        merged = self._timed(self.merging, merging, merging=incumbent.verdict is not Verdict.CLASS)
        clock.join(self.merging)
        repaired = engine_at(_REPAIR, incumbent).turn(
            incumbent.context.control, incumbent.crediting[0], trials=2, patience=1
        )
        return gained.more or merged.more or repaired.more

    def _timed(self, clock: _Clock, engine: Engine, **options: Any) -> Gained:
        """One turn of ``engine``, on ``clock``."""
        incumbent, began_s = self.incumbent, time.monotonic()
        gained = engine.turn(incumbent.context.control, incumbent.crediting[0], **options)
        clock.take(gained.cost, max(time.monotonic() - began_s, 1e-3))
        return gained

    def _merges(self, annealing: _Clock) -> bool:
        """Whether merging follows annealing now. With a time limit, annealing goes on alone while it gains faster."""
        if self.incumbent.context.control.deadline_s is None:
            return True
        owed = self.merging.spent_s + self.merging.last_s < _LEAST_SHARE * annealing.spent_s
        return owed or self.merging.rate >= annealing.rate

    def _patience(self, patience: int) -> int:
        return min(patience, _PATIENCE_BEYOND) if self.incumbent.verdict is Verdict.CLASS else patience

    def _worth_the_time(self, at_first_s: float) -> bool:
        """Whether to go on after idle rounds: there is a time limit, and a cheaper schedule may exist."""
        remaining = self.incumbent.context.control.remaining_s()
        if remaining is None or not math.isfinite(remaining):
            return False
        open_still = self.incumbent.verdict is not Verdict.CLASS or bool(stage_cuts_of(self.incumbent).cuts)
        return open_still or remaining > _ENOUGH * at_first_s
