"""Runs of an embedded solver in a thread, so that it can be stopped, and abandoned if it does not stop."""

import atexit
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from remat_cli.control import Control
from remat_cli.mip import Floats
from remat_cli.running import in_thread
from remat_cli.solvers.base import Outcome, Request, Solver, SolverLog, SolverProgress, Termination
from remat_cli.solvers.checked import outcome, stop_reason

T = TypeVar("T")

POLL_S = 0.05
LATE_S = 0.5
"""Seconds past the deadline in which a solver with its own time limit may stop by itself. Untuned."""
GRACE_S = 2.0
"""Seconds in which a solver that was told to stop must do so, before it is abandoned. Untuned."""
_EXIT_GRACE_S = 5.0

_abandoned: list[tuple[threading.Event, Callable[[], None]]] = []


class Call(Generic[T]):
    """One call of ``work`` in a thread of its own.

    Args:
        work: Solves and returns the result.
        interrupt: Asks the solver to stop; called from the waiting thread, perhaps several times.
        silence: Keeps an abandoned solver from calling back into Python.
    """

    def __init__(self, work: Callable[[], T], interrupt: Callable[[], None], silence: Callable[[], None]) -> None:
        self._work = work
        self._interrupt = interrupt
        self._silence = silence

    def wait(self, control: Control) -> T | None:
        """Start the work and wait for it, until the control says stop and the grace is over.

        Returns:
            The result, or None if the solver did not stop and was abandoned.

        Raises:
            Exception: Whatever ``work`` raises.
        """
        self._done, result = in_thread(self._work, "remat-solver")
        try:
            self._watch(control)
        except BaseException:  # KeyboardInterrupt, if nothing turns Ctrl-C into control.cancelled
            self._stop()
            raise
        return result.result() if self._done.is_set() else None

    def _watch(self, control: Control) -> None:
        while not self._done.wait(POLL_S):
            late = control.deadline_s is not None and time.monotonic() >= control.deadline_s + LATE_S
            if control.cancelled.is_set() or late:
                self._stop()
                return

    def _stop(self) -> None:
        end_s = time.monotonic() + GRACE_S
        while time.monotonic() < end_s:
            self._interrupt()
            if self._done.wait(POLL_S):
                return
        _abandoned.append((self._done, self._silence))


class EmbeddedRun:
    """One run of an embedded solver: what its callbacks have found so far, and how it ended.

    Attributes:
        stop: Set when the solver should stop.
        best: Its best solution.
        bound: Its bound.
        nodes: Branch-and-bound nodes.
    """

    def __init__(self, solver: Solver, request: Request, log: SolverLog) -> None:
        self.solver, self.request, self.log = solver, request, log
        self.started_s = time.monotonic()
        self.stop = threading.Event()
        self.best: Floats | None = None
        self.bound: float | None = None
        self.nodes: int | None = None

    def waited(self, work: Callable[[], Outcome], silence: Callable[[], None]) -> Outcome:
        """The outcome of ``work``, made in a thread; the best found so far if the solver does not stop when told."""
        result = Call(work, self.stop.set, silence).wait(self.request.control)
        if result is not None:
            return result
        title = self.solver.title
        self.log.note(f"{title} did not stop when told to; it was abandoned, and its best solution so far is used")
        return self.answer(stop_reason(self.request.control), self.best, self.bound)

    def report(self, values: Floats | None, nodes: int) -> None:
        """Report progress; ``values`` is a new solution."""
        if self.request.on_progress is not None:
            objective = None if self.best is None else self.request.model.objective(self.best)
            self.request.on_progress(SolverProgress(objective, self.bound, values, nodes))

    def answer(
        self, termination: Termination, values: Floats | None, bound: float | None, duals: Floats | None = None
    ) -> Outcome:
        """The checked outcome."""
        return outcome(
            self.solver,
            self.request,
            termination,
            values=values,
            bound=bound,
            started_s=self.started_s,
            duals=duals,
            nodes=self.nodes,
            log=self.log.text(),
        )


@atexit.register
def _await_abandoned() -> None:
    """Wait briefly for abandoned solvers, because a thread that enters a dying interpreter aborts the process."""
    end_s = time.monotonic() + _EXIT_GRACE_S
    for done, silence in _abandoned:
        if not done.wait(max(0.0, end_s - time.monotonic())):
            silence()
