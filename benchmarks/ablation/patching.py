"""Numeric module constants: their list, read from the source, and imports with one of them replaced.

A constant is replaced in the source before its module runs. So every use has the new value: what is computed from it in
the module, default arguments, and names that other modules import.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from benchmarks.machine import ROOT

ROOMS = ("strategies", "kernels", "milp")
Place = tuple[str, tuple[int, ...]]
"""Name of a constant, and the place of a number in it."""


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

    def scaled(self, factor: float) -> float:
        """The number times ``factor``."""
        return max(1, round(self.value * factor)) if isinstance(self.value, int) else self.value * factor


def constants() -> list[Constant]:
    """All positive constants of the rooms that search, by module and line; others are marks."""
    found = []
    for room in ROOMS:
        for path in sorted((ROOT / "remat_cli" / room).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for name, node in _assigned(ast.parse(path.read_text(encoding="utf-8"))):
                found += [Constant(module, name, place, value) for place, _, value in _numbers(node, ()) if value > 0]
    return found


def scale(labels: Sequence[str], factor: float) -> None:
    """From now on, modules are imported with some of their constants scaled; whole numbers stay whole, and at least 1.

    Args:
        labels: Beginnings of the names of constants: those, their modules, or packages with a dot at the end.
        factor: The factor.

    Raises:
        ValueError: If a module was imported already.
    """
    chosen = {one for one in constants() if one.label.startswith(tuple(labels))}
    for module in {one.module for one in chosen}:
        if module in sys.modules:
            raise ValueError(f"{module} was imported already")
        sys.meta_path.insert(
            0, _Finder(module, {(o.name, o.place): o.scaled(factor) for o in chosen if o.module == module})
        )


class _Finder(MetaPathFinder):
    """Finds one module."""

    def __init__(self, module: str, values: Mapping[Place, float]) -> None:
        self.module, self.values = module, values

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module, with a loader that replaces constants; None for every other module."""
        if name != self.module:
            return None
        file = ROOT.joinpath(*name.split(".")).with_suffix(".py")
        return importlib.util.spec_from_file_location(name, file, loader=_PatchedLoader(file, self.values))


class _PatchedLoader(Loader):
    """Runs the source of a module with numbers replaced."""

    def __init__(self, file: Path, values: Mapping[Place, float]) -> None:
        self.file, self.values = file, values

    def exec_module(self, module: ModuleType) -> None:
        """Run it."""
        tree = ast.parse(self.file.read_text(encoding="utf-8"))
        numbers = [(name, *number) for name, node in _assigned(tree) for number in _numbers(node, ())]
        for name, place, number, _ in numbers:
            if (name, place) in self.values:
                _replace(tree, number, ast.copy_location(ast.Constant(self.values[name, place]), number))
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
