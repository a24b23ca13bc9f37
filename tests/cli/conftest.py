"""Running the command line inside the test process, in an empty folder and a plain environment."""

import io
import os
import sys

import pytest
from cli_process import Done

from remat_cli.cli.main import run

_TROUBLESOME = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM", "CI")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch, tmp_path):
    """No options from outside, and files go to the test's own folder."""
    for name in os.environ:
        if name.startswith("REMAT_") or name in _TROUBLESOME:
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def remat(capsys, monkeypatch):
    """``remat("solve", ..., stdin="...")`` runs one command, which has to end with ``code``; what it said."""

    def call(*arguments: str, stdin: str = "", code: int | None = 0) -> Done:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
        ended = run([str(a) for a in arguments])
        said = capsys.readouterr()
        return Done(int(ended), said.out, said.err).expected(code)

    return call
