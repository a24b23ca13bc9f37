"""Engines and stages: what is tried on a task, in which order, for how long, and with which result.

An engine takes the incumbent and a clock and improves the schedule or the bound. A stage says when an engine runs, for
how much of the time, and why. A pipeline is a tuple of stages; :func:`pursue` runs it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from time import monotonic
from typing import Any, ClassVar

from remat_cli.control import Control
from remat_cli.errors import Interrupted, LimitReached
from remat_cli.kernels import compiling
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Context, Found, NotFound, StageRecord, Strategy, Task
from remat_cli.strategies.incumbent import Incumbent, Verdict
from remat_cli.strategies.parallel_search import ParallelSearch

_UNDISTURBED_S = 2.0
"""Seconds that a stage has before it is cut short for a postponed one. Untuned."""


@dataclass(frozen=True, slots=True)
class Gained:
    """The gain of one turn of an engine.

    Attributes:
        cost: By how much the incumbent became cheaper, in the graph's cost unit; infinite for a first one.
        bound: By how much the strongest bound rose.
        more: Whether another turn may gain something.
    """

    cost: float
    bound: float
    more: bool


@dataclass(slots=True)
class Engine(ABC):
    """Improves a schedule or a bound. Subclasses keep what they need from turn to turn.

    Attributes:
        incumbent: The incumbent to improve. During a turn its clock is the clock of the turn.
    """

    incumbent: Incumbent

    uses_solver: ClassVar[bool] = False
    """Whether a MIP solver contributes to its results."""

    def turn(self, clock: Control, maker: str = "", goal: Verdict | None = None, **options: Any) -> Gained:
        """One turn, for which ``clock`` is the clock.

        Args:
            clock: Stops the turn.
            maker: Text form of the strategy that is credited with what it finds.
            goal: The verdict at which the turn ends; None for the goal of the search.
            options: Arguments of :meth:`work`.

        Raises:
            LimitReached: If the clock stopped it during preparation, such as while a model was built.
            SolverUnavailable, SolverFailed: From the solver.
        """
        incumbent = self.incumbent
        cost, bound = incumbent.cost, incumbent.bound.cost
        with incumbent.under(clock, maker, uses_solver=self.uses_solver, goal=goal):
            more = self.work(**options)
        return Gained(0.0 if incumbent.cost == cost else cost - incumbent.cost, incumbent.bound.cost - bound, more)

    @abstractmethod
    def work(self, *args: Any, **options: Any) -> bool:
        """Do the work of one turn; whether another turn may gain something. Engines name their own options."""


@dataclass(slots=True)
class Once(Engine):
    """An engine whose result does not depend on the incumbent, so that one turn is enough.

    Attributes:
        done: Whether it had that turn. One that the clock ended is begun again.
    """

    done: bool = False

    def work(self) -> bool:
        """Do the work, unless it is done."""
        if not self.done:
            self.attempt()
            self.done = not self.incumbent.context.control.stopping()
        return False

    @abstractmethod
    def attempt(self) -> None:
        """Do the work."""


@dataclass(frozen=True, slots=True)
class When:
    """A condition of a stage.

    Attributes:
        text: The condition in words, to follow "when"; empty for no condition.
        holds: Whether it holds.
    """

    text: str
    holds: Callable[[Incumbent], bool]

    def __and__(self, other: When) -> When:
        """Both conditions, evaluated in this order."""
        text = ", ".join(text for text in (self.text, other.text) if text)
        return When(text, lambda i: self.holds(i) and other.holds(i))

    def __or__(self, other: When) -> When:
        """One of the conditions or both, evaluated in this order."""
        return When(f"{self.text} or {other.text}", lambda i: self.holds(i) or other.holds(i))


ALWAYS = When("", lambda incumbent: True)


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a pipeline.

    Attributes:
        name: Its name in progress, ``solve -v`` and plans; unique in its pipeline.
        engine: ``module:Class`` of an :class:`Engine`, loaded on its first turn; or a nested pipeline. Stages with the
            same engine share its state.
        why: Its purpose, in a few words.
        options: Arguments for the engine's ``work``.
        when: The condition under which it runs.
        share: Its share of the time left, if there is a time limit.
        most_s: Most seconds.
        unlimited_s: Most seconds without a time limit; None for ``most_s``.
        least_s: It is skipped if fewer seconds are left.
        until: It is skipped once this verdict is reached; None for the goal of the search.
        goal: The verdict at which its turn ends; None for the goal of the search.
        writes_model: Whether it runs at any verdict if a model is to be written.
        kernels: Compiled loops that it needs. Under a time limit it is postponed until they are compiled.
        maker: Text form of the strategy that is credited; empty for the one that was called.
    """

    name: str
    engine: str | tuple[Stage, ...]
    why: str
    options: Mapping[str, Any] = field(default_factory=dict)
    when: When = ALWAYS
    share: float = 1.0
    most_s: float = math.inf
    unlimited_s: float | None = None
    least_s: float = 0.0
    until: Verdict | None = None
    goal: Verdict | None = None
    writes_model: bool = False
    kernels: tuple[compiling.Group, ...] = ()
    maker: str = ""


class Pipelined(Strategy):
    """A strategy that is a pipeline over one incumbent."""

    goal: ClassVar[Verdict] = Verdict.GAP
    """The verdict at which it stops."""

    @abstractmethod
    def pipeline(self) -> tuple[Stage, ...]:
        """Its stages."""

    def second_search(self) -> tuple[Stage, ...]:
        """Stages of a second search, for a second thread; empty for none."""
        return ()

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Run the stages; the incumbent at their end, or why there is none.

        With a time limit and two threads or more, a second search runs beside them. Without a limit it does not: then
        the plan would depend on the clock, and otherwise it does not.
        """
        incumbent, second = Incumbent.of(task, context, goal=self.goal), self.second_search()
        if second and (context.threads or 1) > 1 and context.control.deadline_s is not None:
            ParallelSearch.of(incumbent, task).run(context, partial(pursue, self.pipeline()), partial(pursue, second))
        else:
            pursue(self.pipeline(), incumbent)
        if incumbent.best is not None:
            return incumbent.found(exhausted=incumbent.exhausted())
        objective = incumbent.objective
        if incumbent.verdict is Verdict.IMPOSSIBLE:
            reason = incumbent.certified(objective.nothing_fits)
            least = max(objective.least_peak_bytes or 0, incumbent.least_bytes) or None
            return incumbent.not_found(reason, Scope.DOCUMENT_ORDER, peak_bound_bytes=least)
        if incumbent.refusal is not None:
            return incumbent.refusal
        if incumbent.verdict is Verdict.CLASS:
            return incumbent.not_found(incumbent.certified("no frontier-advancing schedule fits"), Scope.FRONTIER)
        return incumbent.not_found(objective.nothing_found)


def pursue(pipeline: tuple[Stage, ...], incumbent: Incumbent, *, depth: int = 0) -> None:
    """Run the stages of ``pipeline``.

    Args:
        pipeline: The stages.
        incumbent: What they improve.
        depth: Depth in the trace: 1 for a search that is itself a stage of another.

    Raises:
        Interrupted: If it was interrupted while a model was built.
        SolverUnavailable, SolverFailed: From the solver.
    """
    _Pursuit(incumbent, depth).run(pipeline, incumbent.context.control)


@dataclass(slots=True)
class _Pursuit:
    """A running pipeline.

    Attributes:
        incumbent: The incumbent that the stages improve.
        base_depth: Depth of its stages in the trace.
        waiting: Postponed stages, whose kernels were not yet compiled, in order, with the maker to credit.
    """

    incumbent: Incumbent
    base_depth: int = 0
    waiting: list[tuple[Stage, str]] = field(default_factory=list)

    def run(self, pipeline: tuple[Stage, ...], clock: Control, maker: str = "", depth: int = 0) -> None:
        """Run ``pipeline`` until ``clock`` stops or nothing is left to gain."""
        for stage in pipeline:
            self._catch_up(clock, depth)
            if clock.stopping():
                break
            if self._wanted(stage, clock) and not self._postponed(stage, clock, stage.maker or maker):
                self._take(stage, clock, stage.maker or maker, depth)
        # What a proven plan could still gain is not worth waiting for.
        while depth == 0 and self.waiting and not clock.stopping() and not self.incumbent.done():
            stage, credited = self.waiting.pop(0)
            if self._wanted(stage, clock) and self._compiled(stage, clock):
                self._take(stage, clock, credited, depth)

    def _wanted(self, stage: Stage, clock: Control) -> bool:
        until = self.incumbent.goal if stage.until is None else stage.until
        remaining = clock.remaining_s()
        if remaining is not None and remaining < stage.least_s:
            return False
        writing = stage.writes_model and self.incumbent.context.write_model is not None
        return (writing or self.incumbent.verdict < until) and stage.when.holds(self.incumbent)

    def _postponed(self, stage: Stage, clock: Control, maker: str) -> bool:
        """Compile the kernels of ``stage`` in the background; whether the stage must wait for them.

        Without a time limit the search waits instead: the order of stages, and so the plan, is the same on every run.
        """
        if not stage.kernels or all(compiling.ready(group) for group in stage.kernels):
            return False
        compiling.warm(stage.kernels)
        if clock.deadline_s is None:
            return not self._compiled(stage, clock)
        self.waiting.append((stage, maker))
        return True

    def _catch_up(self, clock: Control, depth: int) -> None:
        """Run the postponed stages whose kernels are compiled by now."""
        for entry in list(self.waiting):
            stage, maker = entry
            if clock.stopping() or not all(compiling.ready(group) for group in stage.kernels):
                return
            self.waiting.remove(entry)
            if self._wanted(stage, clock):
                self._take(stage, clock, maker, depth)

    def _compiled(self, stage: Stage, clock: Control) -> bool:
        """Wait for the kernels of ``stage``; False if the clock stopped first."""
        for group in stage.kernels:
            if not compiling.ready(group):
                self.incumbent.report("waiting for compiled loops")
                if not compiling.wait(group, clock):
                    return False
        return True

    def _take(self, stage: Stage, clock: Control, maker: str, depth: int) -> None:
        """Run ``stage``; if it is cut short for postponed stages, run those and then ``stage`` once more."""
        if self._cut_short(stage, clock, maker, depth):
            self._catch_up(clock, depth)
            if self._wanted(stage, clock) and not clock.stopping():
                self._take(stage, clock, maker, depth)

    def _due(self) -> bool:
        """Whether the kernels of the next postponed stage are compiled."""
        return bool(self.waiting) and all(compiling.finished(group) for group in self.waiting[0][0].kernels)

    def _cut_short(self, stage: Stage, clock: Control, maker: str, depth: int) -> bool:
        """Run ``stage`` and record its result; whether it was cut short.

        A solver may work for all the time there is, and stages that were postponed would have found more in less. So a
        stage without kernels of its own is stopped, after some seconds, when one of those can run.
        """
        incumbent, began_s = self.incumbent, monotonic()
        record = StageRecord(stage.name, self.base_depth + depth, incumbent.cost, incumbent.bound.cost)
        incumbent.context.trace.append(record)
        free = clock.deadline_s is None and stage.unlimited_s is not None
        part = clock.part(stage.share, (stage.unlimited_s or 0.0) if free else stage.most_s)
        fired: list[bool] = []

        def due() -> bool:
            if monotonic() - began_s > _UNDISTURBED_S and self._due():
                fired.append(True)
            return bool(fired)

        if self.waiting and not stage.kernels and not isinstance(stage.engine, tuple):
            part = part.stoppable(when=due)
        try:
            if isinstance(stage.engine, tuple):
                self.run(stage.engine, part, maker, depth + 1)
            else:
                engine_at(stage.engine, incumbent).turn(part, maker, stage.goal, **stage.options)
        except LimitReached as limit:
            record.note = limit.message  # the stage had too little time to begin, and others may need less
        except Interrupted:
            if clock.cancelled.is_set():
                raise
        finally:
            record.close(monotonic() - began_s, incumbent.cost, incumbent.bound.cost)
        incumbent.merge_news()
        if fired:
            record.note = "cut short for stages whose loops are compiled now"
        return bool(fired)


def engine_at(target: str, incumbent: Incumbent) -> Engine:
    """The engine at ``module:Class`` that works on ``incumbent``; one for each incumbent, created on first use."""
    if target not in incumbent.engines:
        module, _, name = target.partition(":")
        incumbent.engines[target] = getattr(import_module(module), name)(incumbent)
    engine = incumbent.engines[target]
    assert isinstance(engine, Engine)
    return engine


@dataclass(slots=True)
class CompiledLoops(Engine):
    """Starts the compilation of kernels in a thread; returns at once."""

    def work(self, groups: tuple[compiling.Group, ...]) -> bool:
        """Start compiling ``groups``, in this order."""
        compiling.warm(groups)
        return False
