"""Runs CP-SAT under a :class:`Control`. Imported only once it is known that ortools is there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ortools.sat.python import cp_model

from remat_cli.errors import SolverFailed
from remat_cli.solvers.base import Termination
from remat_cli.solvers.log import SolverLog
from remat_cli.strategies.base import Context

_POLL_S = 0.05
_TERMINATIONS = {
    cp_model.OPTIMAL: Termination.OPTIMAL,
    cp_model.INFEASIBLE: Termination.INFEASIBLE,
    cp_model.FEASIBLE: Termination.STOPPED,
    cp_model.UNKNOWN: Termination.STOPPED,
}


@dataclass(frozen=True, slots=True)
class Listener:
    """Who hears of a run. Solutions come one at a time, bounds and questions from other threads in between.

    Attributes:
        on_solution: Gets every improving solution, as a function from variables to their values.
        on_bound: Gets every better lower bound on the objective.
        enough: Whether to stop; asked every now and then.
    """

    on_solution: Callable[[Callable[[Any], int]], None]
    on_bound: Callable[[float], None]
    enough: Callable[[], bool]


def minimise(model: Any, context: Context, listener: Listener, *, gap: float) -> tuple[Termination, float | None]:
    """Solve ``model`` until it is solved, the listener has enough, or the time is up.

    Args:
        model: A ``CpModel`` with an objective.
        context: Control, threads, seed, and where the log goes.
        listener: Hears of everything on the way.
        gap: Absolute gap between objective and bound at which to stop.

    Returns:
        How it ended, and the best lower bound on the objective; None if nothing is known.

    Raises:
        SolverFailed: If CP-SAT does not take the model.
    """
    solver = cp_model.CpSolver()
    relay = _Relay(listener)
    with SolverLog(context.solver_log) as log:
        _set_up(solver, context, gap)
        solver.log_callback = lambda line: relay.pass_on(lambda: log.write(f"{line}\n"))
        solver.best_bound_callback = relay.bound
        ended = threading.Event()
        watcher = threading.Thread(target=_watch, args=(solver, context, relay, ended), name="remat-cpsat", daemon=True)
        watcher.start()
        try:
            status = solver.solve(model, relay)
        finally:
            ended.set()
    if relay.error is not None:
        raise relay.error
    if status not in _TERMINATIONS:
        raise SolverFailed(f"CP-SAT does not take the model: {model.validate().strip() or solver.status_name(status)}")
    termination = _TERMINATIONS[status]
    known = termination is Termination.OPTIMAL or relay.best_bound is not None
    return termination, float(solver.best_objective_bound) if known else None


def _set_up(solver: Any, context: Context, gap: float) -> None:
    parameters = solver.parameters
    remaining = context.control.remaining_s()
    if remaining is not None:
        parameters.max_time_in_seconds = remaining
    if context.threads is not None:
        parameters.num_workers = context.threads
    parameters.random_seed = context.seed % 2**31
    parameters.absolute_gap_limit = gap
    # Otherwise CP-SAT takes Ctrl-C for itself, and the command never hears of it.
    parameters.catch_sigint_signal = False
    parameters.log_search_progress = context.solver_log is not None
    parameters.log_to_stdout = False


def _watch(solver: Any, context: Context, relay: _Relay, ended: threading.Event) -> None:
    """Stop the solver when it should: it looks at no flag of ours, and its own clock starts after its presolve."""
    while not ended.wait(_POLL_S):
        if context.control.stopping() or relay.error is not None or relay.listener.enough():
            solver.stop_search()  # does nothing before the search has begun, so say it until it ends


class _Relay(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]  # ortools is not followed by mypy
    """Passes news on; an exception that comes of it is kept, as none may pass through the solver's C++."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self.listener = listener
        self.error: BaseException | None = None
        self.best_bound: float | None = None

    def on_solution_callback(self) -> None:
        """Called by CP-SAT with every improving solution."""
        self.pass_on(lambda: self.listener.on_solution(self.value))

    def bound(self, bound: float) -> None:
        """Called by CP-SAT with every better bound."""
        self.best_bound = bound
        self.pass_on(lambda: self.listener.on_bound(bound))

    def pass_on(self, news: Callable[[], object]) -> None:
        """Call ``news``, and keep what it raises."""
        try:
            news()
        except BaseException as error:  # raised again in the thread that called the solver
            self.error = error
