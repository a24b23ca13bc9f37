"""Tolerances stand in one file, and keep their places in the chain that it tells."""

import ast
from pathlib import Path

import remat_cli
from remat_cli import tolerances

ROOT = Path(remat_cli.__file__).parent
ROOMS = ("milp", "solvers", "strategies", "planning", "plan")
TINY = 1e-4

STEERING = {
    "strategies/annealing/engines.py": {1e-6, 1e-5},  # a temperature, and overheads to reckon with at least
    "strategies/openers/cover_bounds.py": {1e-6},  # how far ahead a step aims, and what counts as progress
    "strategies/openers/prices.py": {1e-12},  # a rate to begin with
    "milp/crossing.py": {1e-6},  # share of C0 from which a row is worth adding
    "planning/job.py": {8e-5},  # seconds for a node
    "strategies/copying/annealing.py": {1e-5, 1e-6},  # temperatures
    "strategies/published/dtr.py": {1e-9, 1e-300},  # keeps a quotient finite
    "strategies/published/model_size.py": {30e-6, 13e-6, 1.2e-7},  # seconds
    "strategies/retention/solving.py": {1e-6},  # unit of the objective
}
"""What is no tolerance, by file; kernels (``kernels/``) are compiled and keep theirs."""


def small_literals(path: Path) -> set[float]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and type(node.value) is float and 0 < node.value < TINY
    }


def test_no_room_has_a_tolerance_of_its_own() -> None:
    found = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if literals := small_literals(path):
                found[path.relative_to(ROOT).as_posix()] = literals
    assert found == STEERING


def test_every_tolerance_is_used() -> None:
    names = [name for name in vars(tolerances) if name.isupper()]
    text = "".join(path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py") if path.name != "tolerances.py")
    assert len(names) > 15
    assert [name for name in names if name not in text] == []


def test_the_chain_holds_together() -> None:
    """What is told in the module: each link leaves room for the one before it."""
    t = tolerances
    assert t.FEASIBILITY_LEAST < t.FEASIBILITY < t.START_VIOLATION < t.INTEGRAL_WITHIN < t.GROSS_VIOLATION
    assert t.FEASIBILITY < t.CUTOFF_MARGIN < t.BOUND_MARGIN, "cut-offs spare the best schedule, and margins cover them"
    assert t.ABSOLUTE_GAP <= t.BOUND_MARGIN < t.NOTHING_LEFT
    assert t.ROUNDING < t.CHAIN_ROUNDING < t.SAME_COST
    assert t.SUM_ROUNDING <= t.SAME_COST < t.CLEARLY_ABOVE <= t.BOUND_MARGIN
    assert t.INNER_GAP < t.CUTS_GAP < t.GAP
