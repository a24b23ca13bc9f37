"""COIN-OR CBC, run as a binary: the system's, or the one in PuLP.

CBC's traps (seen on 2.10.3): ``sec`` counts CPU time unless ``timeMode elapsed``; an interrupted run says "Stopped on
iterations"; a run without a solution writes the relaxation's values into the solution file; the file has eight
digits (the binary one has all); "Lower bound" has three decimals; the exit status is always 0.
"""

import os
import re
import shutil
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from remat_cli.errors import SolverUnavailable
from remat_cli.mip import Floats, LinearModel
from remat_cli.solvers.base import Availability, Outcome, Request, Solver, SolverLog, SolverProgress, Termination
from remat_cli.solvers.checked import failed, outcome, solve_around, stop_reason
from remat_cli.solvers.modelfile import write_model
from remat_cli.solvers.process import ProcessEnd, program_availability, run_process, temporary_folder
from remat_cli.tolerances import CBC_BOUND_DIGITS, CBC_GAP_DIGITS, CBC_INCREMENT

_HINT = "pip install 'pulp<4', which carries CBC, or apt-get install coinor-cbc"
_NUMBER = r"([-+]?[\d.]+(?:e[-+]?\d+)?|[-+]?inf)"
_FIRST_LINE = re.compile(rf"\s*(.+?)\s+-\s+objective value\s+{_NUMBER}", re.IGNORECASE)
_PROGRESS = re.compile(rf"Cbc0010I After (\d+) nodes.*?, {_NUMBER} best solution, best possible {_NUMBER}")
_SOLUTION = re.compile(rf"Cbc\d+I Integer solution of {_NUMBER} found")
_PARTIAL = re.compile(rf"Cbc0005I Partial search - best objective {_NUMBER} \(best possible {_NUMBER}\)")
_ROOT = re.compile(rf"Continuous objective value is {_NUMBER}")
_GAP = re.compile(rf"Cbc0011I Exiting as integer gap of {_NUMBER} ")
_LOWER = re.compile(rf"Lower bound:\s+{_NUMBER}")
_NODES = re.compile(r"Enumerated nodes:\s+(\d+)")
_NONE_YET = 1e40
"""The value that CBC prints for "no solution yet"."""


@dataclass(frozen=True, slots=True)
class Cbc(Solver):
    """CBC.

    Attributes:
        path: The binary; by default REMAT_CBC, then ``cbc`` on PATH, then the one in PuLP.
    """

    name: ClassVar[str] = "cbc"
    title: ClassVar[str] = "CBC"
    warm_start: ClassVar[bool] = True

    path: str | None = field(
        default=None, metadata={"help": "the binary; default: $REMAT_CBC, cbc on PATH, the one in PuLP"}
    )

    def availability(self) -> Availability:
        """Whether a CBC binary is found and prints its version."""
        try:
            binary = find_cbc(self.path)
        except SolverUnavailable as error:
            return Availability(problem=error.message, hint=error.hint)
        says = r"Version:\s*(\S+)"
        return program_availability(binary, "-stop", version=says, title="CBC", licence="EPL-2.0", hint=_HINT)

    def solve(self, request: Request) -> Outcome:
        """Minimise the model; see :meth:`remat_cli.solvers.base.Solver.solve`."""
        binary = find_cbc(self.path)
        return solve_around(request, lambda scaled: self._run(binary, scaled))

    def _run(self, binary: str, request: Request) -> Outcome:
        started_s = time.monotonic()
        watch = _Watch(request)
        with SolverLog(request.log_path) as log, temporary_folder() as folder:
            write_model(request.model, folder / "model.mps", named=False)
            if request.start is not None:
                _write_start(request.model, request.start, folder / "start.txt")
            end = run_process(
                _arguments(binary, request),
                request.control,
                log,
                folder=folder,
                on_line=watch.line,
                terminal=True,
                disposable=True,
            )
            termination, values = _read_answer(self, request, end, watch, folder, log.text())
            bound = watch.final_bound(termination, values)
            linear = termination is Termination.OPTIMAL and not request.model.integer.any()
            return outcome(
                self,
                request,
                termination,
                values=values,
                bound=bound,
                started_s=started_s,
                duals=_saved(request.model, folder).duals if linear else None,
                nodes=watch.nodes,
                log=log.text(),
            )


def find_cbc(path: str | None) -> str:
    """The binary to run: ``path``, else $REMAT_CBC, else ``cbc`` on PATH, else the one in PuLP.

    Raises:
        SolverUnavailable: If the requested binary is missing, or if there is none at all.
    """
    for asked, source in ((path, "cbc{path}"), (os.environ.get("REMAT_CBC"), "REMAT_CBC")):
        if asked:
            binary = shutil.which(asked)
            if binary is None:
                raise SolverUnavailable(f"{source}: {asked} is not a program", hint=_HINT)
            return str(Path(binary).absolute())
    binary = shutil.which("cbc") or _pulp_cbc()
    if binary is None:
        raise SolverUnavailable("CBC is not installed", hint=_HINT)
    return binary


def _pulp_cbc() -> str | None:
    """The binary in PuLP, made executable if its wheel was unpacked without that permission."""
    try:
        from pulp.apis.coin_api import pulp_cbc_path  # 0.2 s; only if there is no other CBC
    except ImportError:
        return None
    binary = Path(os.path.normpath(pulp_cbc_path))
    if not binary.is_file():
        return None
    if not os.access(binary, os.X_OK):
        try:
            binary.chmod(binary.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        except OSError as error:
            raise SolverUnavailable(
                f"{binary} is not executable: {error.strerror}", hint=f"chmod +x {binary}"
            ) from None
    return str(binary)


def _arguments(binary: str, request: Request) -> list[str]:
    arguments = [binary, "model.mps"]
    if request.start is not None:
        arguments += ["-mipstart", "start.txt"]
    remaining_s = request.control.remaining_s()
    if remaining_s is not None:
        arguments += ["-timeMode", "elapsed", "-sec", f"{max(0.1, remaining_s):.2f}"]
    arguments += ["-ratio", repr(float(request.gap)), "-increment", repr(CBC_INCREMENT)]
    if request.threads is not None and request.threads > 1:
        arguments += ["-threads", str(request.threads)]
    if request.seed:  # 0 would mean the time of day
        seed = str(request.seed % (2**31 - 1))
        arguments += ["-randomSeed", seed, "-randomCbcSeed", seed]
    return [*arguments, "-solve", "-solution", "solution.txt", "-saveSolution", "solution.bin"]


def _write_start(model: LinearModel, start: Floats, path: Path) -> None:
    lines = [f"{i} c{i} {value!r} 0\n" for i, value in enumerate(start.tolist()) if value]
    path.write_text(f"Feasible - objective value {model.objective(start)!r}\n" + "".join(lines), encoding="ascii")


class _Watch:
    """Facts from the log: bound, nodes, and the verdicts that the solution file omits."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._bound: float | None = None
        self._lower: float | None = None
        self._gap: float | None = None
        self._best: float | None = None
        self.nodes: int | None = None
        self.no_solution = False
        self.ambiguous = False
        self.read_errors = False

    def line(self, line: str) -> None:
        """Process one line of the log."""
        lowered = line.lower()
        if "no feasible solution found" in lowered:
            self.no_solution = True
        elif "infeasible or unbounded" in lowered or "infeasible! (or unbounded)" in lowered:
            self.ambiguous = True
        elif "errors on input" in lowered:
            self.read_errors = True
        elif match := _PROGRESS.search(line):
            self.nodes = int(match[1])
            self._best, self._bound = _solution_value(match[2]), _solution_value(match[3])
            self._report()
        elif match := _SOLUTION.search(line):
            self._best = _solution_value(match[1])
            self._report()
        elif match := _PARTIAL.search(line):
            self._bound = _solution_value(match[2])
        elif match := _ROOT.search(line):
            self._bound = float(match[1])
        elif match := _GAP.search(line):
            self._gap = float(match[1])
        elif match := _LOWER.search(line):
            self._lower = float(match[1])
        elif match := _NODES.search(line):
            self.nodes = int(match[1])

    def _report(self) -> None:
        if self._request.on_progress is not None:
            self._request.on_progress(SolverProgress(self._best, self._bound, None, self.nodes))

    def final_bound(self, termination: Termination, values: Floats | None) -> float | None:
        """A valid lower bound, lowered by the rounding of CBC's output; None if there is none."""
        if not self._request.model.integer.any() and termination is not Termination.OPTIMAL:
            return None
        if termination is Termination.OPTIMAL and values is not None:
            objective = self._request.model.objective(values)
            if self._gap is None and self._lower is None:
                return objective
            if self._gap is not None:  # stopped at the gap; the message has about six digits
                return objective - abs(self._gap) * (1 + CBC_GAP_DIGITS)
        bounds = []
        if self._bound is not None:
            bounds.append(self._bound - CBC_BOUND_DIGITS * abs(self._bound))
        if self._lower is not None:
            # The log has three decimals, so the bound may be rounded up by half a unit of the last one.
            bounds.append(self._lower + (6e-4 if bounds else -6e-4))
        return min(bounds) if bounds else None


def _solution_value(text: str) -> float | None:
    value = float(text)
    return value if abs(value) < _NONE_YET else None


def _read_answer(
    solver: Cbc, request: Request, end: ProcessEnd, watch: _Watch, folder: Path, log: str
) -> tuple[Termination, Floats | None]:
    """How the run ended, and its solution if it has one."""
    if end.crashed:
        raise failed(solver, end.text(), log)
    if watch.read_errors:
        raise failed(solver, "cannot read the model", log)
    try:
        lines = (folder / "solution.txt").read_text(encoding="ascii", errors="replace").splitlines()
    except FileNotFoundError:
        lines = []
    match = _FIRST_LINE.match(lines[0]) if lines else None
    if match is None:
        if end.told_to_stop:
            return stop_reason(request.control), None
        raise failed(solver, "wrote no solution file" if not lines else f'answers "{lines[0][:80]}"', log)
    status = match[1].lower()
    termination = _termination(request, status, end, watch)
    if termination is None:
        raise failed(solver, f'answers "{match[1]}"', log)
    if termination is Termination.OPTIMAL:
        return termination, _values(solver, request.model, lines, folder, log)
    stopped = {Termination.TIME_LIMIT, Termination.INTERRUPTED, Termination.STOPPED}
    # Without a solution CBC writes the relaxation's values.
    nothing = watch.no_solution or "no integer solution" in status or not request.model.integer.any()
    if termination in stopped and not nothing:
        return termination, _values(solver, request.model, lines, folder, log)
    return termination, None


def _termination(request: Request, status: str, end: ProcessEnd, watch: _Watch) -> Termination | None:
    """The meaning of the first words of a solution file; None for an unexpected one."""
    if status.startswith("optimal"):
        return Termination.OPTIMAL
    if status.startswith(("infeasible", "integer infeasible")):
        return Termination.INFEASIBLE_OR_UNBOUNDED if watch.ambiguous else Termination.INFEASIBLE
    if status.startswith("unbounded"):
        # With integer columns, CBC means the relaxation.
        integer = bool(request.model.integer.any())
        return Termination.INFEASIBLE_OR_UNBOUNDED if integer else Termination.UNBOUNDED
    if status.startswith("stopped"):
        if end.told_to_stop or request.control.cancelled.is_set():
            return stop_reason(request.control)
        return Termination.TIME_LIMIT if "time" in status else Termination.STOPPED
    return None


def _values(solver: Cbc, model: LinearModel, lines: list[str], folder: Path, log: str) -> Floats:
    """Column values: all digits from the binary file, or eight from the text file, where a missing column is zero."""
    saved = _saved(model, folder)
    if saved.values is not None:
        return saved.values
    x = np.zeros(model.columns)
    for line in lines[1:]:
        fields = line.replace("**", " ").split()  # ** marks a value that CBC finds infeasible
        try:
            x[int(fields[1].removeprefix("c"))] = float(fields[2])
        except (IndexError, ValueError):
            raise failed(solver, f'wrote "{line[:80]}" into its solution file', log) from None
    return x


class _Saved(NamedTuple):
    """What the binary solution file has: the rows' duals and the columns' values; None where there is none to read."""

    duals: Floats | None = None
    values: Floats | None = None


def _saved(model: LinearModel, folder: Path) -> _Saved:
    binary = folder / "solution.bin"
    # Two counts, the objective, then activities and duals of the rows, then values and reduced costs of the columns.
    if not binary.is_file() or binary.stat().st_size != 16 + 16 * (model.rows + model.columns):
        return _Saved()
    data = binary.read_bytes()
    if tuple(np.frombuffer(data, dtype=np.int32, count=2)) != (model.rows, model.columns):
        return _Saved()
    numbers = np.frombuffer(data, dtype=np.float64, offset=16)
    return _Saved(numbers[model.rows : 2 * model.rows], numbers[2 * model.rows :][: model.columns].copy())
