"""The interface between remat and a MIP solver: requests, outcomes and logs.

A solver is a frozen dataclass whose fields are its options. It takes a :class:`Request` and returns an
:class:`Outcome`. How the run ended (:class:`Termination`) is separate from its results (``values``, ``bound``), because
a run that reached its time limit may have a solution.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from remat_cli.control import Control
from remat_cli.errors import UsageError, Worded
from remat_cli.mip import Floats, LinearModel
from remat_cli.tolerances import GAP

KEPT_LINES = 40
"""The number of last lines in an outcome."""


class Termination(StrEnum):
    """How a solver's run ended."""

    OPTIMAL = "optimal"
    """Proven optimal, within the requested gap."""
    INFEASIBLE = "infeasible"
    UNBOUNDED = "unbounded"
    INFEASIBLE_OR_UNBOUNDED = "infeasible or unbounded"
    TIME_LIMIT = "time limit"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped"
    """Ended early for another reason (an iteration or memory limit); see the log."""


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a solver can be used here, with its version, path and licence.

    Attributes:
        version: Version, or None if it is not available.
        path: A binary or a package folder.
        licence: In a few words.
        problem: Why it cannot be used; empty if it can.
        hint: How to install it.
        optional: Whether it is missing because nobody has asked for it: its extra is not installed, and no path is set.
    """

    version: str | None = None
    path: str | None = None
    licence: str = ""
    problem: str = ""
    hint: str = ""
    optional: bool = False

    @property
    def available(self) -> bool:
        """Whether it can be used."""
        return not self.problem


@dataclass(frozen=True, slots=True)
class SolverProgress:
    """Progress of a run. ``values`` is a new solution, or None if the solver reports progress without one."""

    objective: float | None
    bound: float | None
    values: Floats | None = None
    nodes: int | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """The task for a solver.

    Attributes:
        model: The model to minimise.
        control: Deadline and interruption; the solver stops soon after ``control.stopping()``.
        gap: Relative gap, (objective - bound) / |objective|, at which to stop.
        threads: Threads to use; None for the solver's own choice.
        seed: Random seed, if the solver has one.
        start: float64[n], a starting solution; a solver without warm starts ignores it and says so in its log.
        on_progress: Called with progress during the run, from any thread; must be quick.
        log_path: File for the solver's log, written during the run; None for none.
    """

    model: LinearModel
    control: Control = field(default_factory=Control)
    gap: float = GAP
    threads: int | None = None
    seed: int = 0
    start: Floats | None = None
    on_progress: Callable[[SolverProgress], None] | None = None
    log_path: Path | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run.

    Attributes:
        termination: How the run ended.
        values: float64[n], the best solution; None if there is none.
        objective: Its objective, the model's offset included.
        bound: Proven lower bound on the objective; None if there is none.
        wall_s: Seconds the run took.
        nodes: Branch-and-bound nodes, if known.
        log: Last lines of the solver's log.
    """

    termination: Termination
    values: Floats | None = None
    objective: float | None = None
    bound: float | None = None
    wall_s: float = 0.0
    nodes: int | None = None
    log: str = ""


class Solver(ABC):
    """A MIP solver. Subclasses are frozen dataclasses; their fields are options, as in ``cbc{path=/opt/cbc}``."""

    name: ClassVar[str]
    title: ClassVar[str]
    warm_start: ClassVar[bool]
    """Whether ``Request.start`` is used."""

    @abstractmethod
    def availability(self) -> Availability:
        """Whether this solver can be used here. It neither takes a licence nor solves anything."""

    def check_licence(self) -> str:
        """The extent of the licence, in a few words. Unlike :meth:`availability`, it may take the licence for a moment.

        Raises:
            SolverUnavailable: If there is no valid licence.
        """
        return self.availability().licence

    @abstractmethod
    def solve(self, request: Request) -> Outcome:
        """Minimise the model.

        Raises:
            SolverUnavailable: If it is not installed.
            SolverFailed: If it crashed or its answer is meaningless; the message ends with the last lines of its log.
            LicenceLimit: If its licence does not cover this model.
        """


@dataclass(frozen=True, slots=True)
class Package:
    """A Python package that is installed, but not imported.

    Attributes:
        version: Its version; ``unknown`` if its installation does not have one.
        path: Its folder, if it has one.
    """

    version: str
    path: str | None


def installed_package(name: str) -> Package | None:
    """The package ``name``, or None if it cannot be imported here."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # an import hook refuses this package, or left a broken module
        return None
    if spec is None:
        return None
    try:
        number = version(name)
    except PackageNotFoundError:
        number = "unknown"
    return Package(number, str(Path(spec.origin).parent) if spec.origin else None)


class SolverLog:
    """Collects the log of one run. Use it as a context manager.

    Args:
        path: File to append to, so that the runs of one command follow each other; None for no file.

    Raises:
        UsageError: If the file cannot be opened.
    """

    def __init__(self, path: Path | None) -> None:
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._partial = ""
        try:
            self._stream = None if path is None else path.open("a", encoding="utf-8", newline="\n")
        except OSError as error:
            raise UsageError(
                f"{path}: the solver's log cannot be written: {error.strerror or error}",
                hint=Worded("choose another file as solver_log", "choose another file with --solver-log"),
            ) from None

    def write(self, text: str) -> list[str]:
        """Append ``text``, whole lines or not, and return the lines that it completes."""
        if self._stream is not None and not self._stream.closed:
            self._stream.write(text)
            self._stream.flush()
        *lines, self._partial = (self._partial + text).split("\n")
        lines = [line.rstrip("\r") for line in lines]
        self._lines.extend(line for line in lines if line.strip())
        return lines

    def note(self, text: str) -> None:
        """Add a remark of remat's own."""
        self.write(f"remat: {text}\n" if not self._partial else f"\nremat: {text}\n")

    def text(self) -> str:
        """The last lines."""
        return "\n".join([*self._lines, self._partial]).strip()

    def __enter__(self) -> Self:
        """Return the log itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        """Close the file. Later output of an abandoned solver is dropped."""
        if self._stream is not None:
            self._stream.close()
