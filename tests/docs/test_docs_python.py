"""The Python interface: its examples run, it names what it says, and it loads nothing before it is used."""

import doctest
import importlib
import inspect
import subprocess
import sys
from typing import Any

import pytest
from docs_pages import DOCS, blocks

import remat_cli as remat
import remat_cli.api
from remat_cli.control import Control
from remat_cli.solvers.registry import solver_from_spec
from remat_cli.strategies.base import Context, Found, NotFound, Task
from remat_cli.strategies.registry import strategy_from_spec

MODULES = [
    "remat_cli",
    "remat_cli.api.checking",
    "remat_cli.api.documents",
    "remat_cli.api.importing",
    "remat_cli.api.showing",
    "remat_cli.api.solving",
]
FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for test in _Finder(exclude_empty=True).find(importlib.import_module(name)):
        runner.run(test)
    result = runner.summarize(verbose=False)
    assert result.attempted > 0
    assert result.failed == 0


class _Finder(doctest.DocTestFinder):
    """Finds the examples of functions behind decorators, too."""

    def _from_module(self, module, object):
        return super()._from_module(module, inspect.unwrap(object))


def test_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(str(DOCS / "python.md"), module_relative=False, optionflags=FLAGS)
    assert result.attempted > 5
    assert result.failed == 0


@pytest.mark.parametrize(
    "name", ["check", "compare", "describe", "diff", "explain", "import_model", "load_graph", "load_plan", "solve"]
)
def test_every_function_has_an_example(name):
    assert ">>> import remat_cli as remat\n" in getattr(remat, name).__doc__


def test_the_strategy_that_is_shown_works(tmp_path, monkeypatch):
    """The first example of docs/extending.md: as it stands, and against the strategy that does the same."""
    code = next(block.text for block in blocks(DOCS / "extending.md") if block.language == "python")
    (tmp_path / "shown_once.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    once = importlib.import_module("shown_once").Once()
    context = Context(Control.within(None), solver_from_spec("highs"))
    graph = remat.build_graph("unit-chain{n=17}")  # its no-remat peak is 10 bytes
    for budget in (None, 10):
        found = once.solve(Task(graph, budget), context)
        assert isinstance(found, Found)
        assert found.schedule == strategy_from_spec("keep-all").solve(Task(graph, budget), context).schedule
    assert isinstance(once.solve(Task(graph, 9), context), NotFound)


def test_the_importer_that_is_shown_works():
    """It is in docs/extending.md; what it cannot read is refused as in any document."""
    [code] = [block.text for block in blocks(DOCS / "extending.md") if "def read_lines" in block.text]
    shown: dict[str, Any] = {}
    exec(compile(code, "extending.md", "exec"), shown)
    graph = shown["read_lines"]("a,2.5,10,\nb,1,20,a", "two.csv")
    assert [(node.id, node.cost, node.outputs) for node in graph.nodes] == [("a", 2.5, (10,)), ("b", 1.0, (20,))]
    assert graph.nodes[1].inputs == (0,)
    with pytest.raises(remat.RematError, match=r"two\.csv.*nowhere"):
        shown["read_lines"]("a,2.5,10,nowhere", "two.csv")


def test_the_top_names_what_the_rooms_have():
    assert set(remat_cli.api.__all__) <= set(remat.__all__)
    for name in remat.__all__:
        assert getattr(remat, name) is not None
        assert name in dir(remat)
    assert remat.solve is remat_cli.api.solve
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        remat.nonsense  # noqa: B018 - reading it is the test


def test_importing_the_top_loads_nothing():
    code = "import sys, remat_cli; print([m for m in sys.modules if m.startswith('remat_cli.') or m == 'numpy'])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "['remat_cli.version']"


def test_budgets_are_written_in_three_ways():
    graph = remat.build_graph("unit-chain{n=17}")  # its no-remat peak is 10 bytes
    plan = remat.solve(graph, "60%").plan
    assert [remat.check(plan, budget).ok for budget in ("6B", "60%", 6, 5, "59%", "5B")] == [True] * 3 + [False] * 3
    assert remat.check(plan).budget_bytes == 6


def test_texts_are_returned_in_a_notebook_too(monkeypatch):
    """There rich shows what it is given, if it is let, and writes nothing."""
    plan = remat.solve(remat.build_graph("unit-chain{n=9}"), None).plan
    told = remat.describe(plan)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert remat.describe(plan) == told


def test_a_budget_that_means_nothing_is_refused():
    plan = remat.solve(remat.build_graph("unit-chain{n=9}"), None).plan
    with pytest.raises(remat.RematError, match="16G"):
        remat.check(plan, "16G")
