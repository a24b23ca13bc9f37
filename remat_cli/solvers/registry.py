"""The solvers by name: the one table to extend, besides the entry-point group ``remat.solvers``."""

from remat_cli.errors import SolverUnavailable
from remat_cli.registry import Registry
from remat_cli.solvers.base import Solver
from remat_cli.spec import build, split_spec

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
