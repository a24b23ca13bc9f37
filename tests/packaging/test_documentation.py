import re
from pathlib import Path

import pytest

from remat_cli.cli.main import _COMMANDS
from remat_cli.errors import ExitCode

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", _COMMANDS)
def test_the_readme_shows_every_command(name):
    assert re.search(rf"\bremat {name}\b", README)


@pytest.mark.parametrize("code", ExitCode)
def test_the_readme_lists_every_exit_code(code):
    """As a row of a table or the head of a list item."""
    assert re.search(rf"^\W*{int(code)}\b", README, re.MULTILINE)


def test_the_readme_names_the_two_commands_for_those_who_look_around():
    assert "make demo" in README
    assert "make test" in README
