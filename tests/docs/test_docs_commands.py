"""Every command of docs/ runs, in order, and prints what the page says."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_process import program, script
from docs_pages import APART, DOCS, PAGES, ROOT, Block, blocks, commands_of, fits

from remat_cli.cli.main import _COMMANDS
from remat_cli.errors import ExitCode

RUN = ("sh", "console")
OTHER = ("text", "yaml", "json", "python", "javascript", "toml", "")
"""Languages of blocks that are no commands; anything else is perhaps a misspelt one."""


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder with the graphs and the examples, where ``remat`` is this one."""
    shutil.copytree(DOCS / "examples", tmp_path / "docs" / "examples")
    (tmp_path / "graphs").symlink_to(ROOT / "graphs")
    binaries = program(tmp_path / "bin").parent
    script(binaries / "python", f'exec {sys.executable} "$@"')
    monkeypatch.setenv("PATH", f"{binaries}:/usr/local/bin:/usr/bin:/bin")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def run(command: str, place: Path, *, stops: bool = True) -> subprocess.CompletedProcess[str]:
    """Run lines of bash, which ends with the first one that fails if it ``stops``."""
    line = ["bash", "-e" if stops else "+e", "-o", "pipefail", "-c", command]
    return subprocess.run(
        line, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *(p for p in PAGES if p not in APART)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_commands_of_a_page_run_and_print_what_it_says(page, place):
    for block in blocks(page):
        assert block.language in RUN + OTHER, f"{page.name} has a block of {block.language}"
        for command, told in commands_of(block) if block.language in RUN else []:
            done = run(command, place, stops=told is None)
            if told is None:
                assert done.returncode == 0, f"{command}\n{done.stdout}"
            else:
                assert fits(done.stdout, told), f"$ {command}\n{done.stdout}"


def test_output_is_compared_line_by_line_and_dots_stand_for_lines():
    assert fits("a\nb\nc\n", "a\n...\nc\n")
    assert fits("a\nc\n", "a\n...\n")
    assert fits("a\n", "a\n...\n")
    assert not fits("a\nb\nc\n", "a\nc\n")
    assert not fits("a\nb\n", "a\n...\nc\n")
    assert not fits("a.c\n", "abc\n")
    assert not fits("b\n", "a\n...\n")
    assert fits("a\nb\n", "...\nb\n")


def test_blocks_fall_into_commands():
    assert commands_of(Block("console", "$ a b\nc\n$ d\n")) == [("a b", "c\n"), ("d", "")]
    assert commands_of(Block("sh", "a\nb\n")) == [("a\nb\n", None)]


def test_a_command_that_fails_is_seen(place):
    assert run("remat check nowhere.json", place).returncode == ExitCode.USAGE
    assert run("false\ntrue", place).returncode != 0


def test_some_page_runs_every_command_that_needs_no_framework():
    told = "\n".join(c for page in PAGES for b in blocks(page) if b.language in RUN for c, _ in commands_of(b))
    for name in set(_COMMANDS) - {"profile", "run", "policy"}:  # these need PyTorch and its minutes
        assert f"remat {name}" in told, f"no page runs remat {name}"
