"""Rules of the house that no linter knows. Each names everything that breaks it at once."""

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx
import pytest

import remat_cli
from remat_cli import tolerances
from remat_cli.cli.main import _COMMANDS
from remat_cli.errors import RematError
from remat_cli.frontends.torch.architectures import TORCH_ARCHITECTURES
from remat_cli.solvers.registry import SOLVERS
from remat_cli.strategies.registry import STRATEGIES
from remat_cli.zoo.registry import ARCHITECTURES

PACKAGE = Path(remat_cli.__file__).parent
PATHS = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
TEXTS = {module: path.read_text(encoding="utf-8") for module, path in PATHS.items()}
TREES = {module: ast.parse(text) for module, text in TEXTS.items()}

MOST_LINES = 600
"""A longer module holds more than one idea, but for those of ``LONG_MODULES``; untuned."""
MOST_FUNCTION_LINES = 60
"""More does not fit on a screen; untuned."""
LONG_MODULES: dict[str, str] = {
    "remat_cli.kernels.copying": "timing and moves share one state, and a group of kernels is one module",
}
"""Modules that are longer, each with the reason."""
LONG_FUNCTIONS: dict[str, str] = {
    "remat_cli.api.fitting:fit": "most of it documents the arguments",
    "remat_cli.api.memory:fits": "most of it documents the arguments",
    "remat_cli.api.solving:max_batch": "most of it documents the arguments",
}
"""Functions that are longer, as ``module:function``, each with the reason."""
CIRCLES: dict[frozenset[str], str] = {}
"""Modules that import each other, each circle with the reason."""


def imports(module: str, *, types: bool) -> Iterator[str]:
    """Modules of the package that ``module`` imports anywhere, those for types alone (``TYPE_CHECKING``) if asked."""
    todo: list[ast.AST] = [TREES[module]]
    while todo:
        node = todo.pop()
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            children = [*(node.body if types else ()), *node.orelse]
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno} is a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in TREES else str(node.module) for name in names if node.module in TREES)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in TREES)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "import_module":
            yield from (a.value for a in node.args if isinstance(a, ast.Constant) and a.value in TREES)
        todo.extend(children)


def functions(module: str) -> Iterator[tuple[str, int]]:
    """``module:function`` and its lines."""
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{module}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


@pytest.mark.parametrize("registry", [STRATEGIES, SOLVERS, ARCHITECTURES, TORCH_ARCHITECTURES], ids=lambda r: r.kind)
def test_every_entry_of_a_registry_loads_and_knows_its_name(registry):
    for name, target in registry.table.items():
        loaded = registry.load(name)
        assert loaded.name == name, f"{target} calls itself {loaded.name}"
        assert loaded.__module__ == target.partition(":")[0]
        assert loaded.__doc__


def test_every_command_has_a_module_of_its_name_and_every_module_a_command():
    files = {path.stem for path in (PACKAGE / "cli" / "commands").glob("*.py")} - {"__init__"}
    assert files == {name.replace("-", "_") for name in _COMMANDS}


def test_modules_are_short_or_there_is_a_reason():
    long = {module: text.count("\n") for module, text in TEXTS.items() if text.count("\n") > MOST_LINES}
    assert long.keys() == LONG_MODULES.keys(), f"{long} have more than {MOST_LINES} lines"


def test_functions_are_short_or_there_is_a_reason():
    long = {name: lines for module in TREES for name, lines in functions(module) if lines > MOST_FUNCTION_LINES}
    assert long.keys() == LONG_FUNCTIONS.keys(), f"{long} have more than {MOST_FUNCTION_LINES} lines"


@pytest.mark.parametrize(("types", "excused"), [(False, frozenset()), (True, frozenset(CIRCLES))])
def test_no_modules_import_each_other_in_a_circle(types, excused):
    """Neither at run time, imports inside functions included, nor for types."""
    graph = networkx.DiGraph((module, other) for module in TREES for other in imports(module, types=types))
    found = {frozenset(circle) for circle in networkx.strongly_connected_components(graph) if len(circle) > 1}
    assert found == excused
    assert graph.number_of_edges() > len(TREES), "hardly any import was seen"


def test_a_module_with_an_underscore_is_imported_only_inside_its_folder():
    found = {
        (module, other)
        for module in TREES
        for other in imports(module, types=True)
        if other.rpartition(".")[2].startswith("_") and not module.startswith(other.rpartition(".")[0])
    }
    assert found == set()


def test_errors_live_in_one_module():
    """Every exception for users is in ``errors``; others have a private name or never leave their room."""
    known = {cls.__name__ for cls in _subclasses(RematError)}
    elsewhere = [
        f"{module}:{node.name}"
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and module != "remat_cli.errors"
        if known & {base.id for base in node.bases if isinstance(base, ast.Name)}
    ]
    assert elsewhere == []
    assert len(known) > 5


def _subclasses(cls: type) -> set[type]:
    return {cls, *(found for child in cls.__subclasses__() for found in _subclasses(child))}


def test_silenced_checks_say_why():
    silent = []
    silenced = 0
    for module, text in TEXTS.items():
        for number, line in enumerate(text.splitlines(), start=1):
            for mark, end in (("# type: ignore", "]"), ("# noqa", " - ")):
                _, found, rest = line.partition(mark)
                silenced += bool(found)
                if found and not rest.partition(end)[2].strip(" #-"):
                    silent.append(f"{module}:{number}")
    assert silent == []
    assert silenced


def test_exceptions_give_their_reasons():
    for reasons in (LONG_MODULES, LONG_FUNCTIONS, CIRCLES):
        assert all(len(reason) > 10 for reason in reasons.values())


# Tolerances stand in one file, and keep their places in the chain that it tells


ROOT = Path(remat_cli.__file__).parent
ROOMS = ("milp", "solvers", "strategies", "planning", "plan")
TINY = 1e-4

STEERING = {
    "strategies/annealing/engines.py": {1e-6, 1e-5},  # a temperature, and overheads to reckon with at least
    "strategies/openers/cover_bounds.py": {1e-6},  # how far ahead a step aims, and what counts as progress
    "strategies/openers/prices.py": {1e-12},  # a rate to begin with
    "milp/crossing.py": {1e-6},  # share of C0 from which a row is worth adding
    "planning/job.py": {8e-5},  # seconds for a node
    "strategies/copying/annealing.py": {1e-5, 1e-6},
    "strategies/overlapping/annealing.py": {1e-5, 1e-6},  # temperatures
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
    assert (
        t.FEASIBILITY_LEAST < t.GUROBI_LEAST < t.FEASIBILITY < t.START_VIOLATION < t.INTEGRAL_WITHIN < t.GROSS_VIOLATION
    )
    assert t.FEASIBILITY > 1e-9, "HiGHS computes with an epsilon of its own of 1e-9"
    assert t.FEASIBILITY < t.CUTOFF_MARGIN < t.BOUND_MARGIN, "cut-offs spare the best schedule, and margins cover them"
    assert t.ABSOLUTE_GAP <= t.BOUND_MARGIN < t.NOTHING_LEFT
    assert t.ROUNDING < t.CHAIN_ROUNDING < t.SAME_COST
    assert t.SUM_ROUNDING <= t.SAME_COST < t.CLEARLY_ABOVE <= t.BOUND_MARGIN
    assert t.INNER_GAP < t.CUTS_GAP < t.GAP
