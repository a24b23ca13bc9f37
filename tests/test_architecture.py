"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import remat_cli
from remat_cli.cli.main import _COMMANDS
from remat_cli.errors import RematError
from remat_cli.frontends.torch.architectures import TORCH_ARCHITECTURES
from remat_cli.solvers.registry import SOLVERS
from remat_cli.strategies.registry import STRATEGIES
from remat_cli.zoo.registry import ARCHITECTURES

PACKAGE = Path(remat_cli.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
TREES = {str(path.relative_to(PACKAGE)): ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}

MOST_LINES = 400
MOST_FUNCTION_LINES = 60
LONG_MODULES: dict[str, str] = {}
"""Modules that may be longer, each with the reason."""
LONG_FUNCTIONS: dict[str, str] = {}
"""Functions that may be longer, as ``module:function``, each with the reason."""


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


@pytest.mark.parametrize("module", TREES)
def test_modules_and_functions_stay_short(module):
    lines = (PACKAGE / module).read_text(encoding="utf-8").count("\n")
    assert lines <= MOST_LINES or LONG_MODULES.get(module), f"{module} has {lines} lines"
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            name = f"{module}:{node.name}"
            assert length <= MOST_FUNCTION_LINES or LONG_FUNCTIONS.get(name), f"{name} has {length} lines"


@pytest.mark.parametrize("module", [m for m in TREES if not m.startswith("cli/")])
def test_only_the_command_line_prints(module):
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print", f"{module}:{node.lineno} prints"


def test_errors_live_in_one_module():
    """Every exception for users is in ``errors``; others have a private name or never leave their room."""
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and module != "errors.py":
                bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
                known = {cls.__name__ for cls in _subclasses(RematError)} | {"RematError"}
                assert not bases & known, f"{module}: {node.name} belongs into errors.py"


def _subclasses(cls: type) -> set[type]:
    return {cls, *(found for child in cls.__subclasses__() for found in _subclasses(child))}


def test_reasons_are_given_for_what_exists():
    for module, reason in LONG_MODULES.items():
        assert module in TREES
        assert len(reason) > 10
    for name, reason in LONG_FUNCTIONS.items():
        assert name.partition(":")[0] in TREES
        assert len(reason) > 10


@pytest.mark.parametrize("module", TREES)
def test_silenced_checks_say_why(module):
    for number, line in enumerate((PACKAGE / module).read_text(encoding="utf-8").splitlines(), start=1):
        for mark in ("# type: ignore", "# noqa"):
            _, found, rest = line.partition(mark)
            if found:
                said = rest.partition("]")[2] if mark == "# type: ignore" else rest.partition(" - ")[2]
                assert said.strip(" #-"), f"{module}:{number} silences a check without a reason"
