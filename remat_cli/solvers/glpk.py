"""GLPK, two ways: in a worker process through swiglpk, or with the system's ``glpsol``.

Either way, GLPK runs outside this process, so a crash or a hang costs only one answer. The two ways differ: the worker
sees Ctrl-C and the deadline in GLPK's callback, and returns its best solution and bound. ``glpsol`` writes its solution
only at the end or at its own time limit; Ctrl-C ends it without a solution. GLPK uses one thread and takes neither a
seed nor a start.
"""

import json
import os
import re
import shutil
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from remat_cli.errors import SolverUnavailable, UsageError
from remat_cli.extras import install_command
from remat_cli.mip import Floats, LinearModel
from remat_cli.solvers.base import (
    Availability,
    Outcome,
    Request,
    Solver,
    SolverLog,
    SolverProgress,
    Termination,
    installed_package,
)
from remat_cli.solvers.checked import failed, outcome, solve_around, stop_reason
from remat_cli.solvers.modelfile import write_model
from remat_cli.solvers.process import ProcessEnd, program_availability, run_process, temporary_folder
from remat_cli.tolerances import GLPK_BOUND_DIGITS, INTEGRAL_WITHIN

_WORKER = Path(__file__).with_name("glpk_worker.py")
_NUMBER = r"([-+]?\d\S*|-inf|\+inf)"
_PROGRESS = re.compile(
    rf"^\+\s*\d+:\s+(?:mip =|>>>>>)\s+(?:{_NUMBER}|not found yet) [><]=\s+(?:{_NUMBER}|tree is empty)"
)


@dataclass(frozen=True, slots=True)
class Glpk(Solver):
    """GLPK.

    Attributes:
        via: ``swiglpk`` (a worker process), ``glpsol`` (the binary), or ``auto``: the first of them that is installed.
        path: The glpsol binary; by default REMAT_GLPSOL, then ``glpsol`` on PATH.
        cuts: Whether to generate MIR and clique cuts. (Cover cuts abort GLPK 5.0 when presolve removes every column.)
    """

    name: ClassVar[str] = "glpk"
    title: ClassVar[str] = "GLPK"
    warm_start: ClassVar[bool] = False

    via: str = field(
        default="auto", metadata={"choices": ("auto", "swiglpk", "glpsol"), "help": "which way to run GLPK"}
    )
    path: str | None = field(
        default=None, metadata={"help": "the glpsol binary; default: $REMAT_GLPSOL, glpsol on PATH"}
    )
    cuts: bool = field(default=True, metadata={"help": "generate MIR and clique cuts"})

    def __post_init__(self) -> None:
        """Check the options."""
        if self.path is not None and self.via == "swiglpk":
            raise UsageError(
                "glpk{path} names a glpsol binary, but via=swiglpk does not run one", hint="leave one of them out"
            )

    def availability(self) -> Availability:
        """Whether the requested way is installed; ``path`` says which one it is."""
        try:
            way = self._way()
        except SolverUnavailable as error:
            optional = not (self.path or os.environ.get("REMAT_GLPSOL"))
            return Availability(problem=error.message, hint=error.hint, optional=optional)
        if way == "swiglpk":
            package = installed_package("swiglpk")
            assert package is not None  # or there would not be this way
            return Availability(version=f"swiglpk {package.version}", path=package.path, licence="GPL-3.0")
        says = r"GLPSOL.*?(\d+\.\d+)"
        return program_availability(way, "--version", version=says, title="glpsol", licence="GPL-3.0", hint=_hint())

    def _way(self) -> str:
        """``swiglpk``, or the path of glpsol.

        Raises:
            SolverUnavailable: If the requested way is missing, or, for ``auto``, both.
        """
        if self.path is None and self.via in {"auto", "swiglpk"}:
            if installed_package("swiglpk") is not None:
                return "swiglpk"
            if self.via == "swiglpk":
                raise SolverUnavailable("swiglpk is not installed", hint=install_command("glpk"))
        asked = self.path or os.environ.get("REMAT_GLPSOL") or "glpsol"
        binary = shutil.which(asked)
        if binary is None:
            missing = "GLPK is not installed" if self.via == "auto" else "glpsol is not installed"
            raise SolverUnavailable(missing if asked == "glpsol" else f"{asked} is not a program", hint=_hint())
        return str(Path(binary).absolute())

    def solve(self, request: Request) -> Outcome:
        """Minimise the model; see :meth:`remat_cli.solvers.base.Solver.solve`."""
        way = self._way()
        return solve_around(request, lambda scaled: self._run(way, scaled))

    def _run(self, way: str, request: Request) -> Outcome:
        started_s = time.monotonic()
        watch = _Watch(request)
        with SolverLog(request.log_path) as log, temporary_folder() as folder:
            write_model(_for_glpk(request.model), folder / "model.mps", named=False)
            if request.start is not None:
                log.note("GLPK takes no start; it is ignored")
            worker = way == "swiglpk"
            arguments = _worker_arguments(self, request) if worker else _glpsol_arguments(self, way, request)
            end = run_process(arguments, request.control, log, folder=folder, on_line=watch.line, disposable=True)
            read = _read_worker if worker else _read_glpsol
            answer = read(self, request, end, watch, folder, log.text())
            return outcome(self, request, **answer._asdict(), started_s=started_s, log=log.text())


def _hint() -> str:
    return f"{install_command('glpk')} (swiglpk), or apt-get install glpk-utils (glpsol)"


def _for_glpk(model: LinearModel) -> LinearModel:
    """The same model in a form that GLPK reads correctly.

    The offset becomes a fixed last column, because GLPK reads the constant of an MPS file with the opposite sign.
    Bounds of integer columns become whole numbers, because it refuses others.
    """
    lower = np.where(model.integer, np.ceil(model.lower - INTEGRAL_WITHIN), model.lower)
    upper = np.where(model.integer, np.floor(model.upper + INTEGRAL_WITHIN), model.upper)
    if not model.offset:
        return replace(model, lower=lower, upper=upper)
    return replace(
        model,
        cost=np.append(model.cost, model.offset),
        lower=np.append(lower, 1.0),
        upper=np.append(upper, 1.0),
        integer=np.append(model.integer, False),
        offset=0.0,
        column_names=(),
    )


class _Watch:
    """Bound and progress from GLPK's log; both ways print the same lines."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.bound: float | None = None
        self.words: set[str] = set()

    def line(self, line: str) -> None:
        """Process one line of the log."""
        if line.isupper():
            self.words.add(line.strip())
        match = _PROGRESS.match(line)
        if match is None:
            return
        best = float(match[1]) if match[1] else None
        bound = float(match[2]) if match[2] else best  # "tree is empty": the best is the optimum
        if bound is not None and np.isfinite(bound):
            self.bound = bound - GLPK_BOUND_DIGITS * abs(bound)
        if self._request.on_progress is not None:
            self._request.on_progress(SolverProgress(best, self.bound))

    def said(self, words: str) -> bool:
        """Whether GLPK printed a verdict that contains ``words``."""
        return any(words in line for line in self.words)


class _Answer(NamedTuple):
    """How a run ended; ``duals`` are those of a solved linear model."""

    termination: Termination
    values: Floats | None = None
    bound: float | None = None
    duals: Floats | None = None


def _gap_bound(request: Request, values: Floats, bound: float | None) -> float:
    """The bound of a run that stopped at the gap, (objective - bound) / |objective|, or reached the optimum."""
    objective = request.model.objective(values)
    implied = objective - request.gap * abs(objective)
    return implied if bound is None else max(implied, bound)


# The worker ------------------------------------------------------------------------------------------------------


def _worker_arguments(solver: Glpk, request: Request) -> list[str]:
    # -P keeps the worker's own folder, with its process.py and registry.py, out of the way of other modules.
    arguments = [sys.executable, "-P", str(_WORKER), "model.mps", "result.json", "--gap", repr(float(request.gap))]
    remaining_s = request.control.remaining_s()
    if remaining_s is not None:
        arguments += ["--time-limit", f"{max(0.05, remaining_s):.3f}"]
    return [*arguments, *(["--cuts"] if solver.cuts else [])]


def _read_worker(solver: Glpk, request: Request, end: ProcessEnd, watch: _Watch, folder: Path, log: str) -> _Answer:
    """How the worker ended, with its solution and bound."""
    if end.crashed:
        raise failed(solver, end.text(), log)
    try:
        answer = json.loads((folder / "result.json").read_text(encoding="ascii"))
    except FileNotFoundError:
        if end.told_to_stop:
            return _Answer(stop_reason(request.control), bound=watch.bound)
        raise failed(solver, "wrote no result", log) from None
    ending, bound = answer["ending"], answer["bound"]
    values = None if answer["values"] is None else np.array(answer["values"][: request.model.columns])
    if ending == "gap" and values is not None:
        return _Answer(Termination.OPTIMAL, values, _gap_bound(request, values, bound))
    if ending == "stopped":
        return _Answer(stop_reason(request.control), values, bound)
    if ending == "failed":
        raise failed(solver, f"failed ({answer['message']})", log)
    if ending == "optimal" and values is not None:
        bound = request.model.objective(values)
    return _Answer(Termination(ending), values, bound, _duals(request, answer["duals"]))


# glpsol ----------------------------------------------------------------------------------------------------------


def _glpsol_arguments(solver: Glpk, binary: str, request: Request) -> list[str]:
    arguments = [binary, "--freemps", "model.mps", "--write", "solution.txt", "--mipgap", repr(float(request.gap))]
    remaining_s = request.control.remaining_s()
    if remaining_s is not None:
        # Whole seconds only; within half a second of the deadline, which process.LATE_S allows for.
        arguments += ["--tmlim", str(max(1, round(remaining_s)))]
    return [*arguments, *(["--mir", "--clique"] if solver.cuts else [])]


def _read_glpsol(solver: Glpk, request: Request, end: ProcessEnd, watch: _Watch, folder: Path, log: str) -> _Answer:
    """How glpsol ended, from its solution file and its output."""
    bound = watch.bound if request.model.integer.any() else None
    try:
        lines = (folder / "solution.txt").read_text(encoding="ascii", errors="replace").splitlines()
    except FileNotFoundError:
        if end.told_to_stop:
            return _Answer(stop_reason(request.control), bound=bound)
        raise failed(solver, end.text() if end.crashed else "wrote no solution file", log) from None
    if end.crashed:
        raise failed(solver, end.text(), log)
    status, columns, duals = _parse_solution(solver, lines, log)
    if watch.said("NO PRIMAL FEASIBLE") or watch.said("NO INTEGER FEASIBLE") or status == "n":
        return _Answer(Termination.INFEASIBLE)
    if watch.said("NO DUAL FEASIBLE") or watch.said("UNBOUNDED"):
        return _Answer(Termination.INFEASIBLE_OR_UNBOUNDED)
    solution = {i: value for i, value in columns if i < request.model.columns}
    values = np.array([solution.get(i, np.nan) for i in range(request.model.columns)])
    if status == "o":
        bound = _gap_bound(replace(request, gap=0.0), values, None)
        return _Answer(Termination.OPTIMAL, values, bound, _duals(request, duals))
    if status == "f" and watch.said("GAP TOLERANCE REACHED"):
        return _Answer(Termination.OPTIMAL, values, _gap_bound(request, values, bound))
    if watch.said("TIME LIMIT EXCEEDED"):
        return _Answer(Termination.TIME_LIMIT, values if status == "f" else None, bound)
    if status == "f":
        return _Answer(Termination.STOPPED, values, bound)
    raise failed(solver, f'ended with the status "{status}"', log)


def _parse_solution(solver: Glpk, lines: list[str], log: str) -> tuple[str, list[tuple[int, float]], list[float]]:
    """Status, column values and, of a linear model, duals of the rows of glpsol's plain-text solution.

    The status is ``o`` (optimal), ``f`` (feasible), ``n`` (no solution exists) or ``u`` (undefined); for a linear
    model it is made from the two letters, primal and dual, that the file has.
    """
    status = ""
    columns: list[tuple[int, float]] = []
    duals: list[float] = []
    try:
        for line in lines:
            match line.split():
                case ["s", "mip", _, _, letter, *_]:
                    status = letter
                case ["s", "bas", _, _, primal, dual, *_]:
                    # Without integer columns only an optimum counts as a solution: primal and dual feasible.
                    status = "o" if primal == dual == "f" else "n" if primal == "n" else "u"
                case ["i", _, _, _, dual]:
                    duals.append(float(dual))
                case ["j", number, *rest] if rest:
                    columns.append((int(number) - 1, float(rest[-1] if len(rest) == 1 else rest[1])))
    except ValueError:
        raise failed(solver, "wrote a solution file that cannot be read", log) from None
    if not status:
        raise failed(solver, "wrote a solution file that cannot be read", log)
    return status, columns, duals


def _duals(request: Request, found: list[float] | None) -> Floats | None:
    """The duals of the model's rows, of which GLPK counts the objective as the first."""
    linear = found and not request.model.integer.any()
    return np.array(found[-request.model.rows :]) if found and linear else None
