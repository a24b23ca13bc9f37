"""HiGHS, embedded through highspy: the default solver.

The arrays are passed directly; no file is written. ``run()`` works in a thread of its own, so that Ctrl-C and the
deadline reach it through its interrupt callbacks, and the best solution is kept.
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from remat_cli.errors import SolverUnavailable, UsageError
from remat_cli.mip import Floats, LinearModel
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
from remat_cli.tolerances import ABSOLUTE_GAP, FEASIBILITY, FEASIBILITY_LEAST, SAME_OBJECTIVE

_HINT = "pip install highspy"
_FEASIBLE = 2  # kSolutionStatusFeasible
_ENDINGS = {
    "kOptimal": Termination.OPTIMAL,
    "kModelEmpty": Termination.OPTIMAL,
    "kInfeasible": Termination.INFEASIBLE,
    "kUnbounded": Termination.UNBOUNDED,
    "kUnboundedOrInfeasible": Termination.INFEASIBLE_OR_UNBOUNDED,
    "kTimeLimit": Termination.TIME_LIMIT,
    "kIterationLimit": Termination.STOPPED,
    "kSolutionLimit": Termination.STOPPED,
    "kMemoryLimit": Termination.STOPPED,
    "kHighsInterrupt": Termination.INTERRUPTED,
    "kInterrupt": Termination.INTERRUPTED,
    "kUnknown": Termination.STOPPED,
}


@dataclass(frozen=True, slots=True)
class Highs(Solver):
    """HiGHS.

    Attributes:
        presolve: Whether to presolve.
        tolerance: How far a row, a bound or integrality may be violated. HiGHS's own 1e-6 is 16 kB of a 16 GB budget.
    """

    name: ClassVar[str] = "highs"
    title: ClassVar[str] = "HiGHS"
    warm_start: ClassVar[bool] = True

    presolve: str = field(
        default="choose", metadata={"choices": ("choose", "on", "off"), "help": "whether to presolve"}
    )
    tolerance: float = field(
        default=FEASIBILITY,
        metadata={
            "help": "largest violation of a row or of integrality, 1e-10 to 1e-3; below 1e-8 it may cut off optima"
        },
    )

    def __post_init__(self) -> None:
        """Check the options."""
        if not FEASIBILITY_LEAST <= self.tolerance <= 1e-3:
            raise UsageError(f"highs{{tolerance}}: {self.tolerance} is not between 1e-10 and 1e-3")

    def availability(self) -> Availability:
        """Whether highspy is installed."""
        package = installed_package("highspy")
        if package is None:
            return Availability(problem="highspy is not installed", hint=_HINT)
        return Availability(version=package.version, path=package.path, licence="MIT")

    def solve(self, request: Request) -> Outcome:
        """Minimise the model; see :meth:`remat_cli.solvers.base.Solver.solve`."""
        highspy = _import()

        def solve(scaled: Request) -> Outcome:
            with SolverLog(scaled.log_path) as log:
                run = _Run(self, scaled, highspy, log)
                first = run.outcome()
                if not run.misled:
                    return first
                log.note("HiGHS counts its start with an objective that it does not have, so it runs again without it")
                return _joined(first, _Run(self, replace(scaled, start=None), highspy, log).outcome())

        return solve_around(request, solve)


def _import() -> Any:
    try:
        import highspy  # 0.4 s; only a run pays for it
    except ImportError as error:
        if shortage(error):
            raise
        raise SolverUnavailable(f"HiGHS cannot be used: {error}", hint=_HINT) from None
    return highspy


def _silent(highspy: Any) -> Any:
    """A HiGHS that prints nothing, neither in a command nor in a script.

    Its constructor enables callbacks, and the first that does so in a process prints a banner to standard output
    (highspy 1.16) unless an option forbids it: before the caller can set one.
    """

    class Silent(highspy.Highs):  # type: ignore[misc]  # mypy does not follow highspy
        def enableCallbacks(self) -> None:  # noqa: N802 - the name is highspy's
            self.setOptionValue("log_to_console", False)
            super().enableCallbacks()

    return Silent()


def _joined(misled: Outcome, again: Outcome) -> Outcome:
    """The answer of the second run, with the values of the first if they are better."""
    wall_s = misled.wall_s + again.wall_s
    if misled.objective is None or (again.objective is not None and again.objective <= misled.objective):
        return replace(again, wall_s=wall_s)
    return replace(again, values=misled.values, objective=misled.objective, wall_s=wall_s)


class _Run(EmbeddedRun):
    """One run of HiGHS."""

    def __init__(self, solver: Highs, request: Request, highspy: Any, log: SolverLog) -> None:
        super().__init__(solver, request, log)
        self.options = solver
        self.highspy = highspy
        self.misled = False

    def outcome(self) -> Outcome:
        highs = _silent(self.highspy)
        self.log.note(f"HiGHS {highs.version()} (git hash {highs.githash()})")
        self._set_options(highs)
        self._subscribe(highs)
        self._require(highs.passModel(_highs_lp(self.highspy, self.request.model)), "refuses the model")
        if self.request.start is not None:
            start = self.highspy.HighsSolution()
            start.col_value = self.request.start.tolist()
            if highs.setSolution(start) == self.highspy.HighsStatus.kError:
                self.log.note("HiGHS refuses the start; it is ignored")
        return self.waited(lambda: self._solve(highs), lambda: self._silence(highs))

    def _set_options(self, highs: Any) -> None:
        request, solver = self.request, self.options
        remaining_s = request.control.remaining_s()
        options: dict[str, Any] = {
            "output_flag": True,  # the log goes to the logging callback, see _silent
            "presolve": solver.presolve,
            "mip_rel_gap": request.gap,
            "mip_abs_gap": ABSOLUTE_GAP,
            "mip_feasibility_tolerance": solver.tolerance,
            "primal_feasibility_tolerance": solver.tolerance,
            "random_seed": request.seed % (2**31 - 1),
        }
        if remaining_s is not None:
            options["time_limit"] = remaining_s
        if request.threads is not None:
            options["threads"] = request.threads
        for name, value in options.items():
            self._require(highs.setOptionValue(name, value), f"refuses the option {name}={value}")

    def _require(self, status: Any, what: str) -> None:
        if status == self.highspy.HighsStatus.kError:
            raise failed(self.solver, what, self.log.text())

    def _subscribe(self, highs: Any) -> None:
        highs.cbLogging += lambda event: self.log.write(event.message)
        highs.cbMipImprovingSolution += self._on_solution
        highs.cbMipLogging += self._on_news
        for channel in (highs.cbMipInterrupt, highs.cbSimplexInterrupt, highs.cbIpmInterrupt):
            channel.subscribe(self._on_interrupt)

    def _silence(self, highs: Any) -> None:
        """Switch callbacks off only by their flags, which is safe while HiGHS runs."""
        kinds = self.highspy.cb.HighsCallbackType
        for kind in (kinds.kCallbackLogging, kinds.kCallbackMipImprovingSolution, kinds.kCallbackMipLogging):
            highs.stopCallback(kind)
        for kind in (kinds.kCallbackMipInterrupt, kinds.kCallbackSimplexInterrupt, kinds.kCallbackIpmInterrupt):
            highs.stopCallback(kind)

    def _on_interrupt(self, event: Any) -> None:
        if self.stop.is_set():
            event.data_in.user_interrupt = True

    def _on_solution(self, event: Any) -> None:
        self.best = np.array(event.data_out.mip_solution, dtype=np.float64)
        self._on_news(event, self.best)

    def _on_news(self, event: Any, values: Floats | None = None) -> None:
        data = event.data_out
        self.bound = _finite(data.mip_dual_bound)
        self.nodes = int(data.mip_node_count)
        self.report(values, self.nodes)

    def _solve(self, highs: Any) -> Outcome:
        """All calls of HiGHS, in the solver's own thread."""
        try:
            if highs.run() == self.highspy.HighsStatus.kError:
                status = highs.modelStatusToString(highs.getModelStatus())
                raise failed(self.solver, f"failed ({status})", self.log.text())
            return self._read(highs)
        finally:
            highs.clearCallbacks()
            # HiGHS keeps one scheduler per calling thread, with the number of threads of its first run.
            self.highspy.Highs.resetGlobalScheduler(False)

    def _read(self, highs: Any) -> Outcome:
        status = highs.getModelStatus().name
        info = highs.getInfo()
        termination = _ENDINGS.get(status)
        if termination is None:
            raise failed(self.solver, f"failed ({highs.modelStatusToString(highs.getModelStatus())})", self.log.text())
        if termination is Termination.INTERRUPTED:
            termination = stop_reason(self.request.control)
        values = None
        if info.primal_solution_status == _FEASIBLE or termination is Termination.OPTIMAL:
            values = np.array(highs.getSolution().col_value, dtype=np.float64)
        elif self.best is not None:
            values = self.best
        if termination in {Termination.INFEASIBLE, Termination.UNBOUNDED, Termination.INFEASIBLE_OR_UNBOUNDED}:
            return self.answer(termination, None, None)
        if self.request.model.integer.any():
            self.nodes = int(info.mip_node_count)
            self.misled = self._is_misled(values, float(info.objective_function_value))
            return self.answer(termination, values, _finite(info.mip_dual_bound))
        optimal = termination is Termination.OPTIMAL
        duals = np.array(highs.getSolution().row_dual, dtype=np.float64) if optimal else None
        return self.answer(termination, values, float(info.objective_function_value) if optimal else None, duals)

    def _is_misled(self, values: Floats | None, claimed: float) -> bool:
        """Whether the objective that HiGHS claims is not that of its own solution.

        HiGHS 1.16.0 maps a start into the presolved model, where its objective may come out too low. It then cuts off
        everything that costs more, the optimum too, and calls the start optimal.
        """
        if self.request.start is None or values is None:
            return False
        true = self.request.model.objective(values)
        return abs(claimed - true) > SAME_OBJECTIVE * max(1.0, abs(true))


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _highs_lp(highspy: Any, model: LinearModel) -> Any:
    """The model in HiGHS's own form."""
    kinds = highspy.HighsVarType
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = model.columns, model.rows
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = model.cost, model.lower, model.upper
    lp.row_lower_, lp.row_upper_ = model.row_lower, model.row_upper
    lp.offset_ = model.offset
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_, lp.a_matrix_.index_ = model.starts, model.indices
    lp.a_matrix_.value_ = model.values
    if model.integer.any():
        lp.integrality_ = [kinds.kInteger if integer else kinds.kContinuous for integer in model.integer.tolist()]
    return lp
