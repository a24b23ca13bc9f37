"""Deadline, cancellation and progress of a run, in one object that everything slow consults; and how runs end.

A command makes one :class:`Control` when it starts. Everything that may take long consults it: strategies and
solvers stop soon after :meth:`Control.stopping` becomes true and return the best they have. What they have found
so far they publish, so that nothing is lost if they do not stop in time.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from remat_cli.errors import Interrupted, LimitReached, Worded

_LOOK_EVERY = 4096
"""Items between two checks of the clock: a few milliseconds where a row of a model is stated."""

Item = TypeVar("Item")


MORE_TIME = Worded(
    "give more time: time_limit_s",
    "give more time with --time-limit",
    fit="give more time: options=remat.SolveOptions(time_limit_s=300)",
)


class Outcome(StrEnum):
    """How a search ended."""

    FINISHED = "finished"
    TIME_LIMIT = "time limit"
    INTERRUPTED = "interrupted"
    SOLVER_FAILED = "solver failed"
    """Its best schedule until then stands."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a search ended; as text it is what documents say: ``time limit``, ``solver failed: out of memory``.

    Attributes:
        outcome: How.
        message: The last words of a solver that failed; may be empty.
    """

    outcome: Outcome
    message: str = ""

    def __str__(self) -> str:
        """See the class."""
        return f"{self.outcome}: {self.message}" if self.message else self.outcome.value


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a search stands; None for what is not known.

    Attributes:
        activity: What is being done, in a few words: ``building the model``, ``HiGHS``.
        cost: Cost of the best plan so far, in the graph's cost unit.
        bound: Best proven lower bound on the cost, in the same unit.
        nodes: Branch-and-bound nodes (or steps of a search) so far.
    """

    activity: str
    cost: float | None = None
    bound: float | None = None
    nodes: int | None = None

    @property
    def gap(self) -> float | None:
        """(cost - bound) / cost, or None when either is unknown."""
        if self.cost is None or self.bound is None:
            return None
        return max(0.0, (self.cost - self.bound) / self.cost) if self.cost > 0 else 0.0


class _StopFlag(threading.Event):
    """Set by whoever holds it, or as soon as something else stops. It is there to be polled, not to be waited for."""

    def __init__(self, stopped: Callable[[], bool]) -> None:
        super().__init__()
        self._stopped = stopped

    def is_set(self) -> bool:
        """Whether it is set."""
        return super().is_set() or self._stopped()


@dataclass(slots=True)
class Control:
    """Deadline, interruption flag and progress channel of one command.

    Attributes:
        deadline_s: Point of ``time.monotonic()`` at which everything has to stop; None for no limit.
        cancelled: Set at the first Ctrl-C.
        listener: Called with every :class:`Progress`, from any thread; must be quick.
    """

    deadline_s: float | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    listener: Callable[[Progress], None] | None = None

    @classmethod
    def within(cls, time_limit_s: float | None, *, started_s: float | None = None) -> Control:
        """A control that stops ``time_limit_s`` seconds after ``started_s`` (default: now)."""
        if time_limit_s is None:
            return cls()
        return cls(deadline_s=(time.monotonic() if started_s is None else started_s) + time_limit_s)

    def remaining_s(self) -> float | None:
        """Seconds left, never negative; None without a deadline."""
        return None if self.deadline_s is None else max(0.0, self.deadline_s - time.monotonic())

    def part(self, share: float = 1.0, most_s: float = math.inf) -> Control:
        """A control for one step: it stops no later than this one, and shares its flag and its listener.

        Args:
            share: Of the time left, if there is a limit.
            most_s: Seconds at most, also without a limit.
        """
        remaining = self.remaining_s()
        seconds = most_s if remaining is None else min(most_s, share * remaining)
        if math.isinf(seconds):
            return self
        return replace(self, deadline_s=time.monotonic() + seconds)

    def stoppable(self, *, timed: bool = True, when: Callable[[], bool] = lambda: False) -> Control:
        """A control for one run that can be stopped by itself: it stops with this one, and when its flag is set.

        Args:
            when: Stops it, too; it is called often, so it must be quick.
            timed: Whether the run sees the deadline. A strategy that sees one divides it among its steps, which makes
                each too short to close a gap that the same step would close in a little more time. A run that does
                not see it is stopped there just the same, as if it were interrupted.
        """
        stopped = self.cancelled.is_set if timed else self.stopping
        flag = _StopFlag(lambda: stopped() or when())
        return replace(self, cancelled=flag, deadline_s=self.deadline_s if timed else None)

    def stopped_by(self) -> Outcome:
        """What ends a search that stops before it is at its end: Ctrl-C, or else the clock."""
        return Outcome.INTERRUPTED if self.cancelled.is_set() else Outcome.TIME_LIMIT

    def out_of_time(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline_s is not None and time.monotonic() >= self.deadline_s

    def stopping(self) -> bool:
        """Whether work should stop: interrupted, or out of time."""
        return self.cancelled.is_set() or self.out_of_time()

    def check(self) -> None:
        """Raise when work should stop, for stretches that have nothing to return.

        Raises:
            Interrupted: After the first Ctrl-C.
            LimitReached: After the deadline.
        """
        if self.cancelled.is_set():
            raise Interrupted("interrupted before a plan was found")
        if self.out_of_time():
            raise LimitReached("the time limit came before any plan", hint=MORE_TIME)

    def watched(self, items: Iterable[Item]) -> Iterator[Item]:
        """``items``, with a check every few thousand.

        Raises:
            LimitReached, Interrupted: As :meth:`check`.
        """
        self.check()
        for count, item in enumerate(items):
            if count % _LOOK_EVERY == 0:
                self.check()
            yield item

    def report(self, progress: Progress) -> None:
        """Hand ``progress`` to the listener, if there is one."""
        if self.listener is not None:
            self.listener(progress)
