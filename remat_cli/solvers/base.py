"""The contract between remat and a MIP solver.

A solver is a frozen dataclass whose fields are its options. It is handed a :class:`Request` and returns an
:class:`Outcome`. How the run ended (:class:`Termination`) and what it has in hand (``values``, ``bound``) are
separate: a run that met its time limit may well carry a solution.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from remat_cli.control import Control
from remat_cli.mip import Floats, LinearModel
from remat_cli.tolerances import GAP


class Termination(StrEnum):
    """How a solver's run ended."""

    OPTIMAL = "optimal"
    """Proven optimal, within the gap asked for."""
    INFEASIBLE = "infeasible"
    UNBOUNDED = "unbounded"
    INFEASIBLE_OR_UNBOUNDED = "infeasible or unbounded"
    TIME_LIMIT = "time limit"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped"
    """Ended early for another reason (an iteration or memory limit); see the log."""


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a solver can be used here, and what there is to know about it.

    Attributes:
        version: Version, or None if it is not available.
        path: Where it lives: a binary or a package folder.
        licence: In a few words.
        problem: Why it cannot be used; empty when it can.
        hint: How to install it.
    """

    version: str | None = None
    path: str | None = None
    licence: str = ""
    problem: str = ""
    hint: str = ""

    @property
    def available(self) -> bool:
        """Whether it can be used."""
        return not self.problem


@dataclass(frozen=True, slots=True)
class SolverProgress:
    """A solution found on the way. ``values`` is None where a solver reports progress without a solution."""

    objective: float | None
    bound: float | None
    values: Floats | None = None
    nodes: int | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What a solver is asked to do.

    Attributes:
        model: What to minimise.
        control: Deadline and interruption; the solver stops soon after ``control.stopping()``.
        gap: Relative gap, (objective - bound) / |objective|, at which to stop.
        threads: Threads to use; None for the solver's own choice.
        seed: Random seed, where the solver has one.
        start: float64[n], a starting solution; a solver without warm starts ignores it and says so in its log.
        on_progress: Called with news during the run, from any thread; must be quick.
        log_path: File that gets the solver's log as it is written; None for none.
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
    """What a solver answers.

    Attributes:
        termination: How the run ended.
        values: float64[n], the best solution; None if there is none.
        objective: Its objective, the model's offset included.
        bound: Proven lower bound on the objective; None if there is none.
        wall_s: Seconds the run took.
        nodes: Branch-and-bound nodes, where known.
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
        """Whether this solver can be used here. Takes no licence and solves nothing."""

    def check_licence(self) -> str:
        """What the licence covers, in a few words; may take it for a moment, unlike :meth:`availability`.

        Raises:
            SolverUnavailable: If there is no valid licence.
        """
        return self.availability().licence

    @abstractmethod
    def solve(self, request: Request) -> Outcome:
        """Minimise the model.

        Raises:
            SolverUnavailable: If it is not installed.
            SolverFailed: If it crashed or its answer makes no sense; the message ends with its last words.
            LicenceLimit: If its licence does not cover this model.
        """


@dataclass(frozen=True, slots=True)
class Package:
    """A Python package that is installed, but not imported.

    Attributes:
        version: Its version; ``unknown`` if it was installed without saying.
        path: Its folder, where it has one.
    """

    version: str
    path: str | None


def installed_package(name: str) -> Package | None:
    """The package ``name``, or None if it cannot be imported here."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # something in the way of imports refuses this one, or left half a module
        return None
    if spec is None:
        return None
    try:
        number = version(name)
    except PackageNotFoundError:
        number = "unknown"
    return Package(number, str(Path(spec.origin).parent) if spec.origin else None)
