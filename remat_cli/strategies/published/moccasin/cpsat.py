"""Runs CP-SAT on a model. Imported only in the process of ``worker``."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ortools.sat.python import cp_model

_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits and parameters of a solve.

    Attributes:
        deadline_s: Point of ``time.time()`` at which to stop; None for no limit.
        threads: None for CP-SAT's own choice.
        seed: Random seed.
        gap: Absolute gap between objective and bound at which to stop.
    """

    deadline_s: float | None
    threads: int | None
    seed: int
    gap: float


@dataclass(frozen=True, slots=True)
class Listener:
    """Callbacks of a solve.

    Attributes:
        on_solution: Gets every improving solution, as a function from variables to their values.
        on_bound: Gets every better lower bound on the objective.
        on_log: Gets the lines of the log; None for no log.
        enough: Whether to stop; called regularly from another thread.
    """

    on_solution: Callable[[Callable[[Any], int]], None]
    on_bound: Callable[[float], None]
    on_log: Callable[[str], None] | None
    enough: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class End:
    """The result of a solve.

    Attributes:
        infeasible: Proven: there is no solution.
        bound: Lower bound on the objective; minus infinity if nothing is known, infinity if there is no solution.
    """

    infeasible: bool
    bound: float


def minimise(model: Any, limits: Limits, listener: Listener) -> End:
    """Solve ``model`` until it is solved, the listener has enough, or the time is up.

    Raises:
        ValueError: If CP-SAT rejects the model.
    """
    solver = cp_model.CpSolver()
    _set_up(solver, limits)
    relay = _Relay(listener)
    solver.parameters.log_search_progress = listener.on_log is not None
    solver.log_callback = lambda line: relay.pass_on(lambda: listener.on_log and listener.on_log(line))
    solver.best_bound_callback = relay.bound
    ended = threading.Event()
    threading.Thread(target=_watch, args=(solver, relay, ended), name="remat-cpsat", daemon=True).start()
    try:
        status = solver.solve(model, relay)
    finally:
        ended.set()
    if relay.error is not None:
        raise relay.error
    if status == cp_model.MODEL_INVALID:
        raise ValueError(model.validate().strip() or "the model is invalid")
    if status == cp_model.INFEASIBLE:
        return End(infeasible=True, bound=math.inf)
    bound = solver.best_objective_bound if status == cp_model.OPTIMAL else relay.best_bound
    return End(infeasible=False, bound=bound)


def _set_up(solver: Any, limits: Limits) -> None:
    parameters = solver.parameters
    if limits.deadline_s is not None:
        parameters.max_time_in_seconds = max(0.0, limits.deadline_s - time.time())
    if limits.threads is not None:
        parameters.num_workers = limits.threads
    parameters.random_seed = limits.seed % 2**31
    parameters.absolute_gap_limit = limits.gap
    parameters.catch_sigint_signal = False  # the signal ends the process: all that was found has been told
    parameters.log_to_stdout = False


def _watch(solver: Any, relay: _Relay, ended: threading.Event) -> None:
    """Stop the solver once the listener wants no more, or a callback has failed."""
    while not ended.wait(_POLL_S):
        if relay.error is not None or relay.listener.enough():
            solver.stop_search()  # does nothing before the search has begun, so say it until it ends


class _Relay(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]  # mypy does not follow ortools
    """Calls the listener; an exception is kept for later, because none may pass through the solver's C++."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self.listener = listener
        self.error: BaseException | None = None
        self.best_bound = -math.inf

    def on_solution_callback(self) -> None:
        """Called by CP-SAT with every improving solution."""
        self.pass_on(lambda: self.listener.on_solution(self.value))

    def bound(self, bound: float) -> None:
        """Called by CP-SAT with every better bound."""
        self.best_bound = max(self.best_bound, bound)
        self.pass_on(lambda: self.listener.on_bound(bound))

    def pass_on(self, news: Callable[[], object]) -> None:
        """Call ``news``, and keep the exception that it raises."""
        try:
            news()
        except BaseException as error:  # raised again in the thread that called the solver
            self.error = error
