"""The solvers by name (the table to extend, besides the entry points ``remat.solvers``), and a check that one works."""

from dataclasses import dataclass

import numpy as np

from remat_cli.control import Control
from remat_cli.errors import RematError, SolverUnavailable
from remat_cli.mip import LinearModel
from remat_cli.registry import Registry
from remat_cli.solvers.base import Request, Solver, Termination
from remat_cli.spec import build, split_spec
from remat_cli.tolerances import SAME_OBJECTIVE

SOLVERS: Registry[Solver] = Registry(
    kind="solver",
    table={
        "highs": "remat_cli.solvers.highs:Highs",
        "cbc": "remat_cli.solvers.cbc:Cbc",
        "glpk": "remat_cli.solvers.glpk:Glpk",
        "gurobi": "remat_cli.solvers.gurobi:Gurobi",
    },
    group="remat.solvers",
)

DEFAULT_SOLVER = "highs"
"""The solver of a command that does not name one."""


def solver_from_spec(text: str) -> Solver:
    """The solver that ``text`` names, options included: ``cbc{path=/opt/cbc}``.

    Raises:
        UsageError: If the name or an option is unknown, or a value is bad.
    """
    name, options = split_spec(text)
    return build(SOLVERS.load(name), name, options)


def usable_solver(text: str) -> Solver:
    """The solver that ``text`` names, if it can be used here; the default one is only looked at when it is needed.

    A command calls this before it solves anything: whether a graph needs a solver must not decide whether a missing one
    is an error.

    Raises:
        UsageError: As from :func:`solver_from_spec`.
        SolverUnavailable: If it is not installed; the hint says how to install it.
    """
    solver = solver_from_spec(text)
    if text != DEFAULT_SOLVER:
        availability = solver.availability()
        if not availability.available:
            raise SolverUnavailable(availability.problem, hint=availability.hint)
    return solver


TIME_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """The result of a self-check.

    Attributes:
        available: Whether it is installed.
        licence: In a few words.
        solved: Whether it solved the test problem correctly.
        message: What went wrong and how to fix it; empty if nothing did.
    """

    available: bool
    licence: str
    solved: bool
    message: str


def known_problem() -> tuple[LinearModel, float]:
    """A small problem with its optimum: a knapsack, a fractional relaxation, a continuous and a free column.

    Minimise 10 - 5a - 4b - 3c + d with 2a + 3b + c <= 5, 4a + b + 2c <= 11, 3a + 4b + 2c <= 8, a, b, c binary, and
    d free with d >= a - 1/2 and d >= -1.5. Its optimum is a = b = 1, c = 0, d = 1/2.
    """
    rows = [[2.0, 3.0, 1.0, 0.0], [4.0, 1.0, 2.0, 0.0], [3.0, 4.0, 2.0, 0.0], [-1.0, 0.0, 0.0, 1.0]]
    model = LinearModel(
        cost=np.array([-5.0, -4.0, -3.0, 1.0]),
        lower=np.array([0.0, 0.0, 0.0, -1.5]),
        upper=np.array([1.0, 1.0, 1.0, np.inf]),
        integer=np.array([True, True, True, False]),
        starts=np.arange(0, 17, 4),
        indices=np.tile(np.arange(4), 4),
        values=np.array(rows).ravel(),
        row_lower=np.array([-np.inf, -np.inf, -np.inf, -0.5]),
        row_upper=np.array([5.0, 11.0, 8.0, np.inf]),
        offset=10.0,
    )
    return model, 1.5


def check_solver(solver: Solver) -> SelfCheck:
    """Solve the test problem with ``solver``; failures are reported, not raised."""
    available = solver.availability()
    if not available.available:
        message = f"{available.problem} ({available.hint})" if available.hint else available.problem
        return SelfCheck(False, available.licence, False, message)
    model, optimum = known_problem()
    licence = available.licence
    try:
        licence = solver.check_licence()
        answer = solver.solve(Request(model, Control.within(TIME_LIMIT_S), gap=0.0, threads=1))
    except RematError as error:
        message = f"{error.message} ({error.hint})" if error.hint else error.message
    else:
        objective = answer.objective
        right = (
            answer.termination is Termination.OPTIMAL
            and objective is not None
            and abs(objective - optimum) < SAME_OBJECTIVE
        )
        summary = f"{answer.termination}, objective {objective}"
        message = "" if right else f"the test problem has the optimum {optimum}, but the answer was: {summary}"
    return SelfCheck(True, licence, not message, message)
