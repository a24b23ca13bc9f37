"""``offload``: keep, compute again, or copy to the host, by whatever takes least time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar

from remat_cli.control import Control, Progress
from remat_cli.errors import Interrupted, LimitReached, StrategyMismatch, Worded
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.kernels import compiling
from remat_cli.plan.host import Host
from remat_cli.plan.model import Copies, Scope
from remat_cli.strategies.base import Bound, Context, Found, Needs, NotFound, Schedule, Strategy, Task
from remat_cli.strategies.engine import pursue
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.tolerances import SAME_COST

_RECOMPUTING = (0.3, 15.0)
_RELAXING = (0.25, 30.0)
_PROVING = (0.5, 60.0)
_WALKING, _WALKING_ON = (0.2, 10.0), (0.8, 60.0)
"""The share of the time left for each part, and its most seconds; walks have little before the first proof, whose
solutions they start from later. Untuned."""
_HEAT = ((1e-2, 1e-5), (3e-3, 1e-5), (1e-3, 1e-6))
"""First and last temperatures of walks, in shares of C0. Untuned."""
_SLICE, _MOST_MOVES = 4_000_000, 40_000
"""Moves of a walk times the steps of its sequence, and most moves, in the first round: half a second. Untuned."""
_LONGER = 8
"""Each round of walks has twice the moves of the one before, up to so many times those of the first. On ResNet-50 at
40% of its peak with 25 GB/s, one walk of 60,000 moves ended at +6.5%, several of 8,500 at +6.9%."""


@dataclass(frozen=True, slots=True)
class Offload(Strategy):
    """Searches for the plan that takes least time with copies to host memory and back, and bounds the time.

    It starts from the best plan that only recomputes, from one that only copies, and from a solution of the crossing
    MILP, so that it is no worse than either of the first two. Annealing improves them. The bound holds for every plan
    in document order with any copies.

    Attributes:
        recompute: Whether nodes may be computed again.
        copy: Whether values may be copied. The bound is for all plans, with any copies, all the same.
    """

    recompute: bool = field(default=True, metadata={"help": "whether nodes may be computed again"})
    copy: bool = field(default=True, metadata={"help": "whether values may be copied to the host"})

    name: ClassVar[str] = "offload"
    summary: ClassVar[str] = "keep, recompute or copy to the host, by time; needs a host"
    reference: ClassVar[str] = ""
    uses_solver: ClassVar[bool] = True
    copies: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs.HOST

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Open, bound, walk and prove until the gap is reached."""
        if task.host is None:
            raise StrategyMismatch(
                "offload needs a host to copy to",
                hint=Worded('give a host, such as Host.of("25GB/s")', "add --host-bandwidth, such as 25GB/s"),
            )
        graph = task.graph
        if task.budget_bytes is None or no_remat_peak(graph) <= task.budget_bytes:
            bound = Bound(graph.total_cost, Scope.ANY_ORDER, Copies.ANY)
            schedule = Schedule(tuple(range(len(graph.nodes))))
            return Found(schedule, (bound,), maker="keep-all", time=graph.total_cost)
        return _Search(task, task.budget_bytes, task.host, context, self).run()


class _Search:
    """One search: the best schedule so far, and the bound."""

    def __init__(self, task: Task, budget_bytes: int, host: Host, context: Context, allowed: Offload) -> None:
        # Numba and numpy are loaded only for a search.
        from remat_cli.strategies.copying.bounding import Bounding
        from remat_cli.strategies.copying.steps import Timed, Walker

        self.task, self.context = task, context
        self.recompute, self.copy = allowed.recompute, allowed.copy
        self.graph, self.budget_bytes = task.graph, budget_bytes
        self.walker = Walker(task.graph, budget_bytes - task.graph.fixed_memory, host, context.seed)
        self.bounding = Bounding(task.graph, budget_bytes, host)
        for bound in () if task.known is None else task.known.bounds:
            if bound.copies is Copies.ANY and bound.scope.contains(Scope.DOCUMENT_ORDER) and math.isfinite(bound.cost):
                self.bounding.cost = max(self.bounding.cost, bound.cost)
        self.starts: list[Timed] = []
        self.drafts: list[Timed] = []
        self.best: Timed | None = None
        self.lowest: Timed | None = None
        self._alone: Found | None = None
        self.bounds = [Bound(task.graph.total_cost, Scope.ANY_ORDER, Copies.ANY)]

    def run(self) -> Found | NotFound:
        """Search until the gap is reached, or the time is over."""
        control = self.context.control
        compiling.warm(("copying",))
        if self.recompute:
            self.report("recomputing alone")
            self._recompute_alone()
        self.report("waiting for compiled loops")
        if not compiling.wait("copying", control):
            return self._alone or NotFound("stopped before the search could begin")
        self._open()
        if not self._done():
            self.report("bounding the time")
            self.bounding.relax(self.context, control.part(*_RELAXING))
            self._round()
        rounds = 0
        while not self._done() and not self.bounding.impossible:
            before = math.inf if self.best is None else self.best.time
            self.report("annealing")
            self._walk(control.part(*(_WALKING_ON if rounds else _WALKING)), min(2**rounds, _LONGER))
            if self._done():
                break
            if rounds == 0 or control.deadline_s is None:  # a second attempt in less time would find no more
                self.report("proving")
                self.bounding.solve(self.context, control.part(*_PROVING))
                self._round()
            rounds += 1
            gained = self.best is not None and self.best.time < before * (1 - self.context.gap)
            if control.deadline_s is None and rounds >= 2 and not gained:
                break
        return self._answer()

    def _open(self) -> None:
        """The openers: what only recomputes, what only copies."""
        from remat_cli.strategies.copying.openers import idle_first

        known = () if self.task.known is None else self.task.known.schedules
        for schedule in known:
            self._take_schedule(schedule)
        if self._alone is not None:
            self._take_schedule(self._alone.schedule)
        if not self.copy:
            return
        self.report("copying alone")
        start = idle_first(self.graph, self.walker)
        if start is not None:
            self.take(start)
            for heat in _HEAT:
                start = self.walker.anneal(start, _moves(start.steps), heat, computing=False)
                self.take(start)

    def _recompute_alone(self) -> None:
        """The plan without copies that the stages of ``auto`` find in their share of the time."""
        from remat_cli.strategies.pipeline import AUTO

        control = self.context.control.part(*_RECOMPUTING)
        alone = Task(self.graph, self.budget_bytes)
        context = replace(self.context, control=control, publish=lambda found: None, write_model=None)
        incumbent = Incumbent.of(alone, context)
        with suppress(LimitReached, Interrupted):  # what was found until then counts
            pursue(AUTO, incumbent)
        if incumbent.computes is not None:
            schedule = Schedule(incumbent.computes)
            self._alone = Found(schedule, tuple(self.bounds), exhausted=False, used_solver=True, time=incumbent.cost)
            self.context.publish(self._alone)

    def _take_schedule(self, schedule: Schedule) -> None:
        from remat_cli.strategies.copying.steps import steps_of

        if not self._allowed(schedule):
            return
        timed = self.walker.timed(steps_of(self.graph, schedule))
        if timed is not None:
            self.take(timed)

    def _allowed(self, schedule: Schedule) -> bool:
        """Whether the schedule does only what the strategy may do."""
        once = len(schedule.computes) == len(self.graph.nodes)
        return (self.copy or schedule.copying is None) and (self.recompute or once)

    def _round(self) -> None:
        """The last solutions of the crossing MILP as starts."""
        from remat_cli.strategies.copying.openers import rounded

        for stated, values in self.bounding.solutions:
            timed = self.walker.timed(rounded(stated, values, len(self.graph.nodes)))
            if timed is not None and self._allowed(timed.schedule):
                self.take(timed)
                self.drafts.append(timed)

    def _walk(self, control: Control, longer: int) -> None:
        """Anneal from the starts in turn, with falling temperatures, while it helps and there is time.

        Args:
            control: Its clock.
            longer: How many times the moves of the first round each walk has.
        """
        limited = control.deadline_s is not None
        starts = dict.fromkeys([*self.drafts, *self.starts])
        self.drafts = []
        for heat in _HEAT:
            for start in [*starts, self.best] if starts else [self.lowest]:
                if start is None or control.stopping() or self._done():
                    continue
                for _ in range(3 if limited else 2):
                    moves = longer * _moves(start.steps)
                    start = self.walker.anneal(start, moves, heat, copying=self.copy, computing=self.recompute)
                    self.take(start)
                    if control.stopping():
                        break

    def take(self, timed: object, *, tidied: bool = False) -> None:
        """Consider a sequence: a start for walks, and the best one if it fits and takes less time.

        Args:
            timed: The sequence.
            tidied: Whether it has fewer copies than the best one, and so replaces it in the same time.
        """
        from remat_cli.strategies.copying.steps import Timed

        assert isinstance(timed, Timed)
        if not math.isfinite(timed.time):  # the link is too slow for numbers
            return
        if self.lowest is None or timed.excess_bytes < self.lowest.excess_bytes:
            self.lowest = timed
        if timed not in self.starts:
            self.starts = sorted([*self.starts, timed], key=lambda t: (t.excess_bytes, t.time))[:2]
        same = tidied and self.best is not None and timed.time <= self.best.time
        if timed.excess_bytes == 0 and (self.best is None or timed.time < self.best.time or same):
            self.best = timed
            self.context.publish(self._found(exhausted=False))

    def _done(self) -> bool:
        """Whether the gap is reached, or the search has to stop."""
        if self.context.control.stopping():
            return True
        if self.best is None:
            return False
        bound = max(self.bounding.cost, self.graph.total_cost)
        return self.best.time - bound <= max(self.context.gap, SAME_COST) * self.best.time

    def report(self, activity: str) -> None:
        """Report progress to the user."""
        cost = None if self.best is None else self.best.time
        self.context.control.report(Progress(activity, cost, self.bounding.cost, None))

    def _found(self, *, exhausted: bool) -> Found:
        assert self.best is not None
        best, bounds = self.best, [*self.bounds]
        if not self.bounding.impossible and self.bounding.cost > self.graph.total_cost:
            bounds.append(self.bounding.bound)
        return Found(best.schedule, tuple(bounds), exhausted=exhausted, used_solver=True, time=best.time)

    def _answer(self) -> Found | NotFound:
        if self.best is not None:
            self.take(self.walker.tidied(self.best, self.context.control.out_of_time), tidied=True)
            return self._found(exhausted=not self.context.control.stopping())
        if self.bounding.impossible:
            return NotFound("no schedule in document order fits, with any copies", Scope.DOCUMENT_ORDER)
        return NotFound("no schedule with copies within the budget was found")


def _moves(steps: Sequence[int]) -> int:
    """Moves of a walk."""
    return min(_MOST_MOVES, max(2000, _SLICE // max(1, len(steps))))
