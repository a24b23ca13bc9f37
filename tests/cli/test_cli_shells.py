"""Completion in real shells, with a terminal and the tab key."""

import fcntl
import os
import pty
import re
import select
import shutil
import subprocess
import termios
import time
from pathlib import Path

import pytest
from cli_process import TOY, program
from click.shell_completion import ShellComplete

from remat_cli.cli.main import cli

ROOT = Path(__file__).parents[2]
_ESCAPES = re.compile(r"\x1b(\[[0-9;?>=]*[A-Za-z]|\][^\x07]*\x07|[()=>][A-Z0-9]?)|[\x00\r\x07]")
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'eval "$(remat completion bash)"'),
    "zsh": (
        ["zsh", "-f", "-i"],
        'autoload -Uz compinit && compinit -u -D && eval "$(remat completion zsh)"',
    ),
    "fish": (["fish", "--no-config", "-i"], "remat completion fish | source"),
}


EACH = [pytest.param(shell, marks=[] if shell == "bash" else pytest.mark.system) for shell in SHELLS]


@pytest.fixture
def settings(tmp_path):
    """An environment in which ``remat`` is this one, and the shells know nothing of this machine's settings."""
    path = f"{program(tmp_path / 'bin').parent}:/usr/local/bin:/usr/bin:/bin"
    kept = {"PATH": path, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    return {**kept, "TERM": "xterm", "LANG": "C.UTF-8", "PS1": "$ ", "XDG_CONFIG_HOME": str(tmp_path)}


class Terminal:
    """A shell on a terminal of its own."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path):
        assert shutil.which(command[0]), f"the tests need {command[0]}: make system"
        self._end, other = pty.openpty()
        self._process = subprocess.Popen(
            command,
            stdin=other,
            stdout=other,
            stderr=other,
            env=environment,
            cwd=folder,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # its own, as for a shell in a window
        )
        os.close(other)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def until(self, pattern: str, seconds: float = 40.0) -> str:
        """Wait until ``pattern`` is on the screen; all that was shown since the last call."""
        end = time.monotonic() + seconds
        raw = ""
        while not re.search(pattern, self.shown):
            assert time.monotonic() < end, f"{pattern} is not in {self.shown!r}"
            if select.select([self._end], [], [], 0.2)[0]:
                raw += os.read(self._end, 65536).decode(errors="replace")
                self.shown = _ESCAPES.sub("", raw)
        seen, self.shown = self.shown, ""
        return seen

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._end)


@pytest.mark.parametrize("shell", EACH)
def test_the_tab_key_completes(shell, settings, tmp_path):
    command, setup = SHELLS[shell]
    terminal = Terminal(command, settings, tmp_path)
    try:
        terminal.type(f"{setup}; echo rea''dy\n")
        assert "rror" not in terminal.until(r"(?m)^ready")
        terminal.type("remat explai\t")
        terminal.until("explain")
        terminal.type("--he\t\n")
        terminal.until("Usage: remat explain ")
    finally:
        terminal.close()


LINES = {
    "export zoo:unit-cha\t -o x.json": ("unit-chain", "wrote x.json"),
    "export 'zoo:unit-cha\t -o x.json": ("unit-chain'", "wrote x.json"),
    "strategies --format=js\t": ("=json", '"strategies":'),
    "check mis\t": ("missing.json", "error: missing.json:1"),
}
"""What is typed after ``remat``, with the tab key; what that completes, and what the command then prints."""


@pytest.mark.parametrize("before", ["", "A=b ", "true | "])
@pytest.mark.parametrize("line", LINES)
def test_bash_completes_words_with_its_word_breaks(line, before, settings, tmp_path):
    (tmp_path / "missing.json").write_text("none")
    terminal = Terminal(SHELLS["bash"][0], settings, tmp_path)
    (typed, _, rest), (completed, printed) = line.partition("\t"), LINES[line]
    try:
        terminal.type(f"{SHELLS['bash'][1]}; echo rea''dy\n")
        terminal.until(r"(?m)^ready")
        terminal.type(f"{before}remat {typed}\t")
        terminal.until(completed)
        terminal.type(f"{rest}\n")
        terminal.until(re.escape(printed))
    finally:
        terminal.close()


@pytest.mark.parametrize("shell", EACH)
def test_the_script_is_one_that_the_shell_takes(shell, settings, tmp_path):
    program = SHELLS[shell][0][0]
    script = subprocess.run(
        ["remat", "completion", shell], env=settings, capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout
    path = tmp_path / f"completion.{shell}"
    path.write_text(script, encoding="utf-8")
    done = subprocess.run([program, "-n", str(path)], env=settings, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.system
def test_fish_offers_commands_with_their_summaries(settings, tmp_path):
    line = "remat completion fish | source; complete -C 'remat so'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", line], env=settings, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert [offer.split("\t")[0] for offer in done.stdout.splitlines()] == ["solve", "solvers"]
    assert "Find the cheapest plan" in done.stdout


def _offered(words: list[str], incomplete: str) -> list[str]:
    shell = ShellComplete(cli, {}, "remat", "_REMAT_COMPLETE")
    return [item.value for item in shell.get_completions(words, incomplete)]


def test_architectures_and_nodes_are_completed(remat):
    assert "zoo:resnet152" in _offered(["export"], "zoo:res")
    assert not any(name.startswith("zoo:vgg") for name in _offered(["export"], "zoo:res"))
    remat("solve", TOY, "-b", "80%", "-q", "-o", "toy.plan.json")
    assert _offered(["explain", "toy.plan.json"], "conv") == ["conv1", "conv2"]
    assert _offered(["explain", "missing.json"], "conv") == []
