"""What a strategy has published while it runs: the answer, if the strategy does not come to an end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from remat_cli.strategies.base import Context, Found, Task
from remat_cli.strategies.incumbent import Incumbent


class Published(Protocol):
    """Collects schedules."""

    def take(self, found: Found) -> bool:
        """Consider a schedule with its bounds; whether it is within the budget."""

    def best(self) -> Found | None:
        """The best one so far; None for none."""


@dataclass(slots=True)
class ByCost:
    """The cheapest schedule, and the strongest bounds of all."""

    incumbent: Incumbent

    def take(self, found: Found) -> bool:
        """Replay and compare it."""
        return self.incumbent.take(found)

    def best(self) -> Found | None:
        """The incumbent."""
        return None if self.incumbent.computes is None else self.incumbent.found(exhausted=False)


@dataclass(slots=True)
class ByTime:
    """The schedule that takes least time, for tasks with a host; what publishes it has timed it."""

    found: Found | None = None

    def take(self, found: Found) -> bool:
        """Compare its time; later bounds are the stronger ones."""
        if found.time is None:
            raise ValueError("a schedule for a host was published without its time")
        if self.found is None or self.found.time is None or found.time <= self.found.time:
            self.found = replace(found, exhausted=False)
        else:
            self.found = replace(self.found, bounds=found.bounds)
        return True

    def best(self) -> Found | None:
        """The quickest one."""
        return self.found


def published_for(task: Task, context: Context) -> Published:
    """What collects the schedules that a strategy publishes for ``task``."""
    return ByTime() if task.host is not None else ByCost(Incumbent.empty(task, context))


def quicker(answer: Found, published: Found) -> Found:
    """Of an answer with a host and what was published before the one that takes less time, with the answer's bounds."""
    if published.time is None or answer.time is None or published.time >= answer.time:
        return answer
    return replace(published, bounds=answer.bounds, exhausted=answer.exhausted, used_solver=answer.used_solver)
