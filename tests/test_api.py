"""The names that a notebook uses are what they say, and importing the package loads none of what they need."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import remat_cli.api as remat


def test_load_solve_check(tmp_path: Path) -> None:
    graph = remat.build_graph("unit-chain{n=17}")
    solved = remat.solve(graph, "60%", remat.SolveOptions(strategy="optimal"))
    assert isinstance(solved, remat.Solved)
    assert remat.check(solved.plan).ok
    assert isinstance(remat.check(solved.plan), remat.Report)
    assert callable(remat.load_graph)
    assert callable(remat.load_plan)


def test_every_name_is_there_and_nothing_else() -> None:
    for name in remat.__all__:
        assert getattr(remat, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        remat.nonsense  # noqa: B018 - reading it is the test


def test_the_import_is_light() -> None:
    code = "import sys, remat_cli.api; print([m for m in ('numpy', 'pyomo', 'click', 'rich') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_type_checkers_see_what_there_is() -> None:
    """The imports for type checkers and the table that fetches at run time name the same things in the same places."""
    tree = ast.parse(Path(str(remat.__file__)).read_text(encoding="utf-8"))
    [branch] = [part for part in tree.body if isinstance(part, ast.If)]
    seen = {}
    for part in branch.body:
        assert isinstance(part, ast.ImportFrom)
        for name in part.names:
            assert name.asname == name.name  # so that it is there for others too
            seen[name.name] = part.module
    assert seen == remat._HOME


def test_saved_documents_have_the_format_of_their_suffix(tmp_path):
    graph = remat.build_graph("unit-chain{n=5}")
    plan = remat.solve(graph, "90%").plan
    for suffix, begin in (("yaml", "schema: remat-"), ("json", "{"), ("old", "{")):
        remat.save_graph(graph, tmp_path / f"g.{suffix}")
        remat.save_plan(plan, tmp_path / "new" / f"p.{suffix}")
        for path in (tmp_path / f"g.{suffix}", tmp_path / "new" / f"p.{suffix}"):
            assert path.read_text(encoding="utf-8").startswith(begin)
        assert remat.load_graph(tmp_path / f"g.{suffix}") == graph
        assert remat.load_plan(tmp_path / "new" / f"p.{suffix}").statements == plan.statements
