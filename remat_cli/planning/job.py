"""One run of a strategy on one task: within its time, from old plans if there are any, with the best that it found."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from remat_cli.control import Control, Ending, Outcome, Progress
from remat_cli.errors import Interrupted, LimitReached, SolverFailed, StrategyMismatch, UsageError, Worded
from remat_cli.graph.model import Graph
from remat_cli.plan.host import seconds_in
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.refusals import STOPPED
from remat_cli.planning.warm_start import WarmStart
from remat_cli.running import Abandoned, run
from remat_cli.solvers.registry import usable_solver
from remat_cli.strategies.base import Context, Found, Known, NotFound, Strategy, Task
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.ordering.reorder import solve_reordered
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.units import TIME_UNITS

_RESERVE_SHARE = 0.1
_RESERVE_MOST_S = 2.0
"""What is left of the time limit for replaying and writing the plan: a share of it, and seconds at most. Untuned."""
_RESERVE_PER_NODE_S, _RESERVE_LARGEST = 8e-5, 0.3
"""More for large graphs: seconds for every node, and at most this share of the time limit (benchmark ``repeated``)."""
_GRACE_SHARE, _GRACE_S = 0.5, 0.2
"""Seconds that a strategy gets to stop by itself: a share of the reserve, and some more. After them the best published
schedule stands, and what is left of the reserve is for replaying and writing."""


@dataclass(frozen=True, slots=True)
class Job:
    """What all runs of one command share. The budget of each run is not part of it.

    Attributes:
        graph: The graph.
        options: How to solve.
        strategy: The strategy asked for.
        context: What the strategy may use; its control is the clock of the whole command.
        started_s: ``time.monotonic()`` at the start of the command.
        start: The old plan to start from, which the answer mentions; None for none.
        near: Other old plans to start from.
    """

    graph: Graph
    options: SolveOptions
    strategy: Strategy
    context: Context
    started_s: float
    start: WarmStart | None = None
    near: tuple[WarmStart, ...] = ()

    @classmethod
    def of(
        cls,
        graph: Graph,
        options: SolveOptions,
        listener: Callable[[Progress], None] | None,
        near: Sequence[WarmStart] = (),
    ) -> Job:
        """The job that ``options`` describe; ``listener`` receives its progress, from any thread.

        ``near`` are old plans without copies to start from, besides that of ``options``.

        Raises:
            UsageError, SolverUnavailable: If there is no such strategy or solver.
            UsageError, StrategyMismatch: If the plan to start from is for another graph, or not for the strategy.
        """
        started_s = time.monotonic() if options.started_s is None else options.started_s
        strategy = strategy_from_spec(options.strategy)
        if options.host is not None:
            _check_host(graph, strategy, options)
        if graph.overlaps:
            _check_collectives(graph, strategy, options)
        context = Context(
            control=_control(options.time_limit_s, started_s, listener, len(graph.nodes)),
            solver=usable_solver(options.solver),
            gap=options.gap,
            threads=options.threads,
            seed=options.seed,
            write_model=options.write_model,
            solver_log=options.solver_log,
        )
        old = options.start
        start = None if old is None else WarmStart.of(old, graph, strategy, reorder=options.reorder, host=options.host)
        return cls(graph, options, strategy, context, started_s, start, tuple(near))

    @property
    def starts(self) -> tuple[WarmStart, ...]:
        """All old plans to start from."""
        return self.near if self.start is None else (self.start, *self.near)

    def task(self, budget_bytes: int | None) -> Task:
        """The task of finding a plan within a budget, beginning with the old plans if there are any."""
        schedules = tuple(start.found.schedule for start in self.starts)
        known = Known(schedules, searched=False) if schedules else None
        return Task(self.graph, budget_bytes, known, self.options.host)

    def attempt(
        self,
        task: Task,
        *,
        strategy: Strategy | None = None,
        control: Control | None = None,
        witness: Callable[[Found], None] | None = None,
    ) -> tuple[Found | NotFound, Ending]:
        """Run a strategy; returns its answer and how it ended. Without an answer, the best published schedule counts.

        Args:
            task: Graph and budget.
            strategy: The strategy; None for the one asked for.
            control: Its clock; None for that of the command. Only the clock of the command abandons a run.
            witness: Receives every schedule that is published.

        Returns:
            The answer and how the run ended. A run that its own flag stopped ended at its time limit.

        Raises:
            SolverFailed: If the solver fails before there is any schedule.
            StrategyMismatch, SolverUnavailable: From the strategy.
        """
        clock = self.context.control if control is None else control
        published = self._warm_started(task, clock)

        def publish(found: Found) -> None:
            if witness is not None:
                witness(found)
            published.take(found)

        context, failure = replace(self.context, control=clock, publish=publish), None
        try:
            answer = self._run(self.strategy if strategy is None else strategy, task, context)
        except SolverFailed as error:
            if published.best is None:
                raise
            answer, failure = NotFound("the solver failed"), Ending(Outcome.SOLVER_FAILED, error.message)
        answer = self._credited(answer, published)
        finished = isinstance(answer, Found) and answer.exhausted
        return answer, failure or Ending(Outcome.FINISHED if finished else self.context.control.stopped_by())

    def _warm_started(self, task: Task, clock: Control) -> Incumbent:
        """What collects the schedules of a run, with those of the old plans.

        A strategy has an incumbent of its own, which is lost if the strategy is abandoned. This one stays.
        """
        published = Incumbent.empty(task, replace(self.context, control=clock))
        for start in self.starts:
            published.take(start.found)
        return published

    def _run(self, strategy: Strategy, task: Task, context: Context) -> Found | NotFound:
        """The answer of a strategy, which is abandoned if it does not stop soon after its time."""

        def search() -> Found | NotFound:
            if self.options.reorder:
                return solve_reordered(strategy, task, context)
            return strategy.solve(task, context)

        grace_s = _GRACE_S + _GRACE_SHARE * _reserve_s(self.options.time_limit_s)
        try:
            return run(search, self.context.control, grace_s=grace_s)
        except (Abandoned, LimitReached, Interrupted):
            return NotFound(STOPPED)

    def _credited(self, answer: Found | NotFound, published: Incumbent) -> Found | NotFound:
        """An answer, credited to the old plan that it is from; a plan that was published refutes any "no"."""
        if isinstance(answer, NotFound) and published.best is not None:
            answer = published.found(exhausted=False)
        for start in self.starts:
            answer = start.credited(answer) if isinstance(answer, Found) else answer
        return answer


def _check_host(graph: Graph, strategy: Strategy, options: SolveOptions) -> None:
    """Refuse a host where no plan could use it.

    Raises:
        UsageError: If costs are not times, or with ``reorder``.
        StrategyMismatch: If the strategy makes no copies.
    """
    seconds_in(graph.cost_unit)
    if not strategy.copies:
        raise StrategyMismatch(
            f"{strategy.name} copies nothing to a host",
            hint=Worded(
                "take the strategy auto or offload, or leave host out",
                "take --strategy auto or offload, or leave --host-bandwidth out",
            ),
        )
    if options.reorder:
        raise UsageError(
            "with a host, nodes run in the document's order, for which its bounds hold",
            hint=Worded("leave reorder or the host out", "leave --reorder or the host out"),
        )


def _check_collectives(graph: Graph, strategy: Strategy, options: SolveOptions) -> None:
    """Refuse what cannot be planned for a graph with nodes in the communication queue.

    Raises:
        UsageError: If costs are not times, with a host, or with ``reorder``.
        StrategyMismatch: If the strategy does not know such graphs.
    """
    if graph.cost_unit not in TIME_UNITS:
        raise UsageError(
            f"costs are {graph.cost_unit}, and nodes in the communication queue take time beside computations",
            hint="give cost_unit s, ms, us or ns",
        )
    if options.host is not None:
        raise UsageError(
            "copies to a host are not planned for a graph with nodes in the communication queue",
            hint=Worded("leave host out", "leave --host-bandwidth out"),
        )
    if options.reorder:
        raise UsageError(
            "nodes of a graph with a communication queue run in the document's order, for which its bounds hold",
            hint=Worded("leave reorder out", "leave --reorder out"),
        )
    if not strategy.overlaps:
        raise StrategyMismatch(
            f"{strategy.name} adds up costs, and this graph has a communication queue beside computations",
            hint=Worded("take the strategy auto", "take --strategy auto"),
        )


def _control(
    time_limit_s: float | None, started_s: float, listener: Callable[[Progress], None] | None, nodes: int
) -> Control:
    """The control of a solve; its deadline leaves a reserve for replaying and writing the plan."""
    limit_s = None
    if time_limit_s is not None:
        more_s = min(_RESERVE_LARGEST * time_limit_s, nodes * _RESERVE_PER_NODE_S)
        limit_s = time_limit_s - _reserve_s(time_limit_s) - more_s
    return replace(Control.within(limit_s, started_s=started_s), listener=listener)


def _reserve_s(time_limit_s: float | None) -> float:
    """Seconds reserved for replaying and writing the plan."""
    return _RESERVE_MOST_S if time_limit_s is None else min(_RESERVE_SHARE * time_limit_s, _RESERVE_MOST_S)
