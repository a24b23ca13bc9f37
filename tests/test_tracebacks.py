"""Errors of remat in a script of a user: the user's lines, one line of ours, and what users raised themselves."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import remat_cli.api as remat

BEGIN = """
import pathlib, remat_cli as remat
chain = remat.build_graph("unit-chain{n=17}")

def problem(*given):
    raise ValueError("a problem of the user")

def asked():
"""


def shown(tmp_path: Path, line: str, **environment: str) -> str:
    """The end of standard error of a script whose function runs ``line``."""
    script = tmp_path / "script.py"
    script.write_text(f"{BEGIN}    {line}\n\nasked()\n", encoding="utf-8")
    (tmp_path / "model.py").write_text(
        "def build():\n    raise ValueError('a problem of the user')\n", encoding="utf-8"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "REMAT_DEBUG": "", **environment},
    )
    assert done.returncode == 1
    return done.stderr


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ('remat.solve(chain, "2B")', "Infeasible: no plan fits a budget of 2 bytes"),
        ('remat.solve(chain, "2")', 'UsageError: "2" has no unit'),
        ("remat.solve_curve(chain, [[]])", "UsageError: budgets is list"),
        ('remat.load_graph("missing.json")', "InputError: missing.json: there is no such file"),
        ("remat.check({})", "InputError: <plan>"),
        ('remat.compare(chain, "60%", "nonsense")', "UsageError: there is no strategy"),
        ('remat.build_graph("vgg61")', "UsageError: there is no architecture"),
        ("remat.fit(None, None, 8)", "UsageError: budget is 8"),
    ],
)
def test_an_error_shows_the_users_lines_and_one_of_ours(tmp_path: Path, line: str, error: str) -> None:
    told = shown(tmp_path, line)
    assert told.count("Traceback") == 1
    places = [part for part in told.splitlines() if part.lstrip().startswith('File "')]
    assert len(places) == 3, told
    assert [f"{tmp_path}" in place for place in places] == [True, True, False]
    assert f"    {line}\n" in told
    assert f"remat_cli.errors.{error}" in told
    assert "noqa" not in told


def test_a_whole_traceback_is_shown_for_debugging(tmp_path: Path) -> None:
    assert shown(tmp_path, 'remat.solve(chain, "2B")', REMAT_DEBUG="1").count('File "') > 5


def test_an_exception_of_the_user_stays_the_cause(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    told = shown(tmp_path, 'remat.export_torch("model.py:build")')
    assert "model.py:2 in build" in told
    assert told.count("Traceback") == 2
    first, second = told.split("The above exception was the direct cause of the following exception:")
    assert first.rstrip().endswith("ValueError: a problem of the user")
    assert "raise ValueError('a problem of the user')" in first
    assert [text.count('File "') for text in (first, second)] == [1, 3]
    assert "CaptureFailed: build() failed at model.py:2" in second


def test_nothing_is_chained_to_an_infeasible_fit(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    told = shown(tmp_path, 'import torch; remat.fit(torch.nn.Linear(4, 4), torch.ones(2, 4), "1%", cache="")')
    assert "remat_cli.errors.Infeasible: no plan fits a budget of 2 bytes" in told
    assert (told.count("Traceback"), told.count('File "')) == (1, 3)


def test_other_exceptions_of_users_are_left_alone(tmp_path: Path) -> None:
    told = shown(tmp_path, 'remat.max_batch(problem, "1GB")')
    assert told.rstrip().endswith("ValueError: a problem of the user")
    assert 'raise ValueError("a problem of the user")' in told


def test_every_function_for_users_is_a_door() -> None:
    """And is found where it says that it is, so that it can be pickled."""
    functions = [getattr(remat, name) for name in remat.__all__ if inspect.isfunction(getattr(remat, name))]
    assert len(functions) > 25
    for function in functions:
        assert function.__code__.co_name == "guarded", function
        assert getattr(sys.modules[function.__module__], function.__name__) is function
