"""Numeric module constants: their list, read from the source, and imports with one of them replaced.

A constant is replaced in the source before its module runs. So every use has the new value: what is computed from it in
the module, default arguments, and names that other modules import.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from benchmarks.machine import ROOT

ROOMS = ("strategies", "kernels", "milp")
OFF, HALVED, DOUBLED = "off", "halved", "doubled"
VARIANTS = (OFF, HALVED, DOUBLED)


@dataclass(frozen=True, slots=True)
class Constant:
    """A number that a module assigns to a name in capitals, or a number in a tuple of such.

    Attributes:
        module: The module.
        name: The name.
        place: Where the number is: positions in nested tuples, from the outermost; empty for a plain number.
        value: The number.
    """

    module: str
    name: str
    place: tuple[int, ...]
    value: float

    @property
    def label(self) -> str:
        """``remat_cli.strategies.engine._UNDISTURBED_S``, with ``[1]`` for each position in a tuple."""
        return f"{self.module}.{self.name}{''.join(f'[{k}]' for k in self.place)}"

    def variant(self, how: str) -> float | None:
        """The number off (0), halved or doubled; None if that changes nothing, or is the same as off."""
        if how == OFF:
            return type(self.value)(0)
        new = self.value * 2 if how == DOUBLED else self.value // 2 if isinstance(self.value, int) else self.value / 2
        return None if new in (self.value, 0) else new


def constants() -> list[Constant]:
    """All constants of the rooms that search, but zeros, by module and line."""
    found = []
    for room in ROOMS:
        for path in sorted((ROOT / "remat_cli" / room).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for name, node in _assigned(ast.parse(path.read_text(encoding="utf-8"))):
                found += [Constant(module, name, place, value) for place, _, value in _numbers(node, ()) if value]
    return found


def patch(label: str, value: float) -> None:
    """From now on, the module of a constant is imported with another value.

    Raises:
        ValueError: If there is no such constant, or its module was imported already.
    """
    chosen = next((constant for constant in constants() if constant.label == label), None)
    if chosen is None:
        raise ValueError(f"there is no constant {label}")
    if chosen.module in sys.modules:
        raise ValueError(f"{chosen.module} was imported already")
    sys.meta_path.insert(0, _Finder(chosen, value))


class _Finder(MetaPathFinder):
    """Finds the module of one constant."""

    def __init__(self, constant: Constant, value: float) -> None:
        self.constant, self.value = constant, value

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module, with a loader that replaces the constant; None for every other module."""
        if name != self.constant.module:
            return None
        file = ROOT.joinpath(*name.split(".")).with_suffix(".py")
        return importlib.util.spec_from_file_location(
            name, file, loader=_PatchedLoader(file, self.constant, self.value)
        )


class _PatchedLoader(Loader):
    """Runs the source of a module with one number replaced."""

    def __init__(self, file: Path, constant: Constant, value: float) -> None:
        self.file, self.constant, self.value = file, constant, value

    def exec_module(self, module: ModuleType) -> None:
        """Run it."""
        tree = ast.parse(self.file.read_text(encoding="utf-8"))
        for name, node in _assigned(tree):
            for place, number, _ in _numbers(node, ()):
                if (name, place) == (self.constant.name, self.constant.place):
                    _replace(tree, number, ast.copy_location(ast.Constant(self.value), number))
        exec(compile(ast.fix_missing_locations(tree), str(self.file), "exec"), module.__dict__)


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names in capitals that a module assigns, with their expressions; ``A, B = 1, 2`` is two."""
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets = [statement.target]
        for target in targets:
            value = statement.value  # type: ignore[attr-defined] - an assignment
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts, strict=True))
            for one, expression in pairs:
                if isinstance(one, ast.Name) and one.id.isupper():
                    yield one.id, expression


def _numbers(node: ast.expr, place: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ast.expr, float]]:
    """The numbers of an expression that is a number or a tuple of such, each with its place, its node and its value."""
    if isinstance(node, ast.Tuple):
        for k, element in enumerate(node.elts):
            yield from _numbers(element, (*place, k))
        return
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return
    if type(value) in (int, float):
        yield place, node, value


def _replace(tree: ast.Module, old: ast.expr, new: ast.expr) -> None:
    for parent in ast.walk(tree):
        for field, child in ast.iter_fields(parent):
            if child is old:
                setattr(parent, field, new)
            elif isinstance(child, list) and old in child:
                child[child.index(old)] = new
