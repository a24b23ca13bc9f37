"""Gurobi, embedded through gurobipy.

The package comes with a licence for 2,000 variables and 2,000 constraints; with another licence in the usual places
(GRB_LICENSE_FILE, ~/gurobi.lic) there is no such limit. Whether a licence is valid shows only when an environment
starts, so :meth:`Gurobi.availability` does not say; :func:`check_licence` does.
"""

import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from remat_cli.errors import LicenceLimit, SolverUnavailable, UsageError, Worded
from remat_cli.extras import install_command
from remat_cli.mip import Floats, Ints, LinearModel
from remat_cli.running import shortage
from remat_cli.solvers.base import (
    Availability,
    Outcome,
    Request,
    Solver,
    SolverLog,
    Termination,
    installed_package,
)
from remat_cli.solvers.checked import failed, solve_around, stop_reason
from remat_cli.solvers.worker import EmbeddedRun
from remat_cli.tolerances import ABSOLUTE_GAP, FEASIBILITY, GUROBI_LEAST

_LICENCE_HINT = Worded(
    'set GRB_LICENSE_FILE to a valid licence, or choose another solver, such as solver="highs"',
    "set GRB_LICENSE_FILE to a valid licence, or choose another solver with --solver",
)
_NO_SCIPY = "gurobipy takes matrices in SciPy's form, and scipy is not installed"
_RESTRICTED = "restricted (2,000 variables, 2,000 constraints) unless there is a licence file"
_SIZE_LIMIT_EXCEEDED = 10010
_LICENCE_ERRORS = frozenset({10009, 10022, 10023, 10024, 10030, 10032})
"""No licence; licence file not found; token server and network licensing errors; licence expired or of another host."""
_INFINITE = 1e99
_ENDINGS = {
    2: Termination.OPTIMAL,
    3: Termination.INFEASIBLE,
    4: Termination.INFEASIBLE_OR_UNBOUNDED,
    5: Termination.UNBOUNDED,
    9: Termination.TIME_LIMIT,
    11: Termination.INTERRUPTED,
    # Iteration, node, solution, work and memory limits, and answers below Gurobi's own standards.
    **dict.fromkeys((7, 8, 10, 13, 15, 16, 17), Termination.STOPPED),
}


@dataclass(frozen=True, slots=True)
class Gurobi(Solver):
    """Gurobi.

    Attributes:
        tolerance: How far a row or integrality may be violated.
    """

    name: ClassVar[str] = "gurobi"
    title: ClassVar[str] = "Gurobi"
    warm_start: ClassVar[bool] = True

    tolerance: float = field(
        default=FEASIBILITY, metadata={"help": "largest violation of a row or of integrality, 1e-9 to 1e-2"}
    )

    def __post_init__(self) -> None:
        """Check the options."""
        if not GUROBI_LEAST <= self.tolerance <= 1e-2:
            raise UsageError(f"gurobi{{tolerance}}: {self.tolerance} is not between 1e-9 and 1e-2")

    def availability(self) -> Availability:
        """Whether gurobipy is installed; takes no licence."""
        package = installed_package("gurobipy")
        if package is None:
            return Availability(problem="gurobipy is not installed", hint=install_command("gurobi"), optional=True)
        if installed_package("scipy") is None:
            return Availability(problem=_NO_SCIPY, hint=install_command("gurobi"))
        file = os.environ.get("GRB_LICENSE_FILE")
        return Availability(
            version=package.version, path=package.path, licence=f"commercial, from {file}" if file else _RESTRICTED
        )

    def check_licence(self) -> str:
        """The extent of the licence; takes it for a moment. See :func:`check_licence`."""
        return check_licence()

    def solve(self, request: Request) -> Outcome:
        """Minimise the model; see :meth:`remat_cli.solvers.base.Solver.solve`."""
        gurobi = _import()

        def solve(scaled: Request) -> Outcome:
            with SolverLog(scaled.log_path) as log, _licence_errors(gurobi), _environment(gurobi) as environment:
                return _Run(self, scaled, gurobi, log).outcome(environment)

        return solve_around(request, solve)


def check_licence() -> str:
    """Start an environment, which takes a licence for a moment, and say in a few words which one it was.

    Raises:
        SolverUnavailable: If gurobipy is missing or no licence is valid.
    """
    gurobi = _import()
    with _licence_errors(gurobi), _environment(gurobi) as environment, gurobi.Model(env=environment) as model:
        # The size limit shows only when a model beyond it is solved.
        model.addMVar(2001)
        try:
            model.optimize()
        except gurobi.GurobiError as error:
            if error.errno != _SIZE_LIMIT_EXCEEDED:
                raise
            kind = "restricted to 2,000 variables and 2,000 constraints"
        else:
            kind = "without a size limit"
        expires = str(model.LicenseExpiration)
    if len(expires) == 8:
        return f"{kind}, until {expires[:4]}-{expires[4:6]}-{expires[6:]}"
    return kind


def _import() -> Any:
    try:
        import gurobipy  # only a run pays for it
        import scipy.sparse  # noqa: F401 - see _one_sided
    except ImportError as error:
        if shortage(error):
            raise
        raise SolverUnavailable(f"Gurobi cannot be used: {error}", hint=install_command("gurobi")) from None
    return gurobipy


@contextmanager
def _licence_errors(gurobi: Any) -> Iterator[None]:
    """Turn Gurobi's errors into remat's."""
    try:
        yield
    except gurobi.GurobiError as error:
        if error.errno == _SIZE_LIMIT_EXCEEDED:
            raise LicenceLimit(
                "Gurobi's licence covers models of up to 2,000 variables and 2,000 constraints, and this one is larger",
                hint=Worded(
                    'set GRB_LICENSE_FILE to a full licence, or choose another solver, such as solver="highs"',
                    "set GRB_LICENSE_FILE to a full licence, or choose another solver with --solver",
                ),
            ) from None
        if error.errno in _LICENCE_ERRORS:
            raise SolverUnavailable(f"Gurobi has no valid licence: {error}", hint=_LICENCE_HINT) from None
        raise failed(Gurobi(), f"failed (error {error.errno}: {error})", "") from None


@contextmanager
def _environment(gurobi: Any) -> Iterator[Any]:
    with gurobi.Env(empty=True) as environment:
        environment.setParam("OutputFlag", 0)  # before the start, which would print the licence
        environment.start()
        yield environment


class _Run(EmbeddedRun):
    """One run of Gurobi."""

    def __init__(self, solver: Gurobi, request: Request, gurobi: Any, log: SolverLog) -> None:
        super().__init__(solver, request, log)
        self.options = solver
        self.gurobi = gurobi
        self.silent = threading.Event()
        self.columns: list[Any] = []
        self.row_of = np.array([], dtype=np.int64)
        self.ctrl_c = _CtrlC()

    def outcome(self, environment: Any) -> Outcome:
        model = self._model(environment)
        return self.waited(lambda: self._solve(model), self.silent.set)

    def _model(self, environment: Any) -> Any:
        given, request = self.request.model, self.request
        model = self.gurobi.Model(env=environment)
        for name, value in self._parameters().items():
            model.setParam(name, value)
        kinds = np.where(given.integer, self.gurobi.GRB.INTEGER, self.gurobi.GRB.CONTINUOUS)
        x = model.addMVar(given.columns, lb=given.lower, ub=given.upper, obj=given.cost, vtype=kinds)
        model.ObjCon = given.offset
        matrix, senses, sides, self.row_of = _one_sided(given)
        if len(sides):
            model.addMConstr(matrix, x, senses, sides)
        if request.start is not None:
            x.Start = request.start
        model.update()
        self.columns = model.getVars()
        return model

    def _parameters(self) -> dict[str, Any]:
        request, solver = self.request, self.options
        parameters: dict[str, Any] = {
            "LogToConsole": 0,
            "OutputFlag": 1,  # the log goes to the message callback
            "MIPGap": request.gap,
            "MIPGapAbs": ABSOLUTE_GAP,
            "FeasibilityTol": solver.tolerance,
            "IntFeasTol": solver.tolerance,
            "Seed": request.seed % 2_000_000_000,
        }
        remaining_s = request.control.remaining_s()
        if remaining_s is not None:
            parameters["TimeLimit"] = remaining_s
        if request.threads is not None:
            parameters["Threads"] = request.threads
        return parameters

    def _solve(self, model: Any) -> Outcome:
        """Runs in the solver's own thread."""
        model.optimize(self._on_event)
        try:
            return self._read(model)
        finally:
            model.dispose()

    def _on_event(self, model: Any, where: int) -> None:
        self.ctrl_c.keep()
        codes = self.gurobi.GRB.Callback
        if self.stop.is_set():
            model.terminate()
        if self.silent.is_set():
            return
        if where == codes.MESSAGE:
            self.log.write(model.cbGet(codes.MSG_STRING))
        elif where == codes.MIPSOL:
            self.best = np.array(model.cbGetSolution(self.columns), dtype=np.float64)
            self._news(model.cbGet(codes.MIPSOL_OBJBND), model.cbGet(codes.MIPSOL_NODCNT), self.best)
        elif where == codes.MIP:
            self._news(model.cbGet(codes.MIP_OBJBND), model.cbGet(codes.MIP_NODCNT), None)

    def _news(self, bound: float, nodes: float, values: Floats | None) -> None:
        news = _finite(bound)
        if values is None and news == self.bound:
            return  # the MIP callback comes many times a second
        self.bound = news
        self.report(values, int(nodes))

    def _read(self, model: Any) -> Outcome:
        termination = _ENDINGS.get(model.Status)
        integer = bool(self.request.model.integer.any())
        if termination is None:
            raise failed(self.solver, f"ended with the status {model.Status}", self.log.text())
        if termination is Termination.INTERRUPTED:
            if not self.stop.is_set():
                self.request.control.cancelled.set()  # a Ctrl-C before the first callback
            termination = stop_reason(self.request.control)
        if termination is Termination.UNBOUNDED and integer:
            termination = Termination.INFEASIBLE_OR_UNBOUNDED  # Gurobi has a ray, not necessarily a solution
        optimal = termination is Termination.OPTIMAL
        # A linear model that is not optimal has values too, feasible or not.
        values = np.array(model.X) if model.SolCount > 0 and (integer or optimal) else None
        bound = _finite(model.ObjBound) if integer else model.ObjVal if optimal else None
        duals: Floats | None = None
        if optimal and not integer:
            duals = np.bincount(self.row_of, weights=model.Pi, minlength=self.request.model.rows).astype(np.float64)
        self.nodes = int(model.NodeCount) if integer else None
        return self.answer(termination, values, bound, duals)


class _CtrlC:
    """Restores remat's SIGINT handler, because Gurobi installs its own, which prints to standard output.

    Python's signal module works only in the main thread, but Gurobi's callbacks run in another thread.
    """

    def __init__(self) -> None:
        self._get, self._set = ctypes.pythonapi.PyOS_getsig, ctypes.pythonapi.PyOS_setsig
        self._get.argtypes, self._get.restype = [ctypes.c_int], ctypes.c_void_p
        self._set.argtypes, self._set.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
        self._ours = self._get(signal.SIGINT)

    def keep(self) -> None:
        """Restore the handler from before the run, if another has replaced it."""
        if self._get(signal.SIGINT) != self._ours:
            self._set(signal.SIGINT, self._ours)


def _finite(bound: float) -> float | None:
    return bound if abs(bound) < _INFINITE else None


def _one_sided(model: LinearModel) -> tuple[Any, Any, Floats, Ints]:
    """``(matrix, senses, right-hand sides, row of each)``: two-sided rows become two, rows without sides vanish."""
    from scipy.sparse import csr_matrix  # gurobipy takes its matrices in this form only

    matrix = csr_matrix((model.values, model.indices, model.starts), shape=(model.rows, model.columns))
    equal = model.row_lower == model.row_upper
    below = np.flatnonzero(~equal & (model.row_upper != np.inf))
    above = np.flatnonzero(~equal & (model.row_lower != -np.inf))
    same = np.flatnonzero(equal)
    senses = np.array(["="] * len(same) + ["<"] * len(below) + [">"] * len(above))
    sides = np.concatenate([model.row_upper[same], model.row_upper[below], model.row_lower[above]])
    row_of = np.concatenate([same, below, above])
    return matrix[row_of], senses, sides, row_of
