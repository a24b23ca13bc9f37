import os
import pty
import re
import subprocess
import sys
import threading
import time

import pytest
from cli_process import GRAPHS, PATIENCE_S, TOY, environment

from remat_cli.cli import progress
from remat_cli.cli.progress import ProgressLine, showing
from remat_cli.control import Progress

SOLVE = ("solve", TOY, "-b", "80%", "--strategy", "checkmate-ilp")


def test_a_line_has_time_activity_overheads_gap_and_nodes():
    line = ProgressLine(100.0, time.monotonic() - 200)
    line.update(Progress("HiGHS", 125.0, 110.0, 1234567))
    assert line.text() == "3 min 20 s  best +25.0%  bound +10.0%  gap 12.0%  HiGHS  1.235 M nodes"
    assert line.text().index("gap 12.0%") + len("gap 12.0%") < 60, "a narrow terminal shows the gap"


def test_what_is_known_is_not_forgotten_when_a_later_stage_does_not_know_it():
    line = ProgressLine(100.0, time.monotonic())
    line.update(Progress("HiGHS", 125.0, 110.0, 7))
    line.update(Progress("replaying"))
    assert line.text().endswith("best +25.0%  bound +10.0%  gap 12.0%  replaying")


def test_bounds_below_the_cost_of_the_graph_and_rounding_are_no_overhead():
    line = ProgressLine(1e13, time.monotonic())
    line.update(Progress("HiGHS", None, 0.5e13))
    assert line.text().endswith("bound +0%  HiGHS")
    line.update(Progress("HiGHS", None, 1e13 * (1 + 1e-15)))
    assert line.text().endswith("bound +0%  HiGHS")


def test_a_graph_without_cost_shows_costs():
    line = ProgressLine(0.0, time.monotonic())
    line.update(Progress("HiGHS", 0.0, 0.0))
    assert line.text().endswith("best 0  bound 0  gap 0%  HiGHS")


def test_plain_lines_come_at_intervals(capsys, monkeypatch):
    assert progress._PLAIN_EVERY_S == 10.0
    monkeypatch.setattr(progress, "_PLAIN_EVERY_S", 0.01)
    line = ProgressLine(1.0, time.monotonic())
    err = ""
    with showing(line, quiet=False):
        end_s = time.monotonic() + PATIENCE_S
        while err.count("\n") < 3 and time.monotonic() < end_s:
            err += capsys.readouterr().err
    assert err.count("  starting\n") >= 3
    assert "\x1b" not in err
    assert "\r" not in err
    rest = capsys.readouterr().err.count("\n")
    assert rest <= 1  # and they have stopped


def test_no_line_comes_before_the_first_interval(capsys):
    with showing(ProgressLine(1.0, time.monotonic()), quiet=False):
        pass
    assert capsys.readouterr().err == ""


def test_solving_shows_what_it_does(remat, monkeypatch):
    monkeypatch.setattr(progress, "_PLAIN_EVERY_S", 0.0005)  # the model is stated in a few milliseconds
    solved = remat(*SOLVE)
    assert re.search(r"^\d+\.\d+ s  building the model$", solved.err, re.MULTILINE)
    assert "starting" not in solved.out


def test_quiet_is_quiet(remat, monkeypatch):
    monkeypatch.setattr(progress, "_PLAIN_EVERY_S", 0.005)
    assert remat(*SOLVE, "--quiet").err == ""


class Terminal:
    """A pseudo-terminal that a command has for its stderr; ``text`` is what came to it."""

    def __init__(self, *arguments: str, out: bool = False, **variables: str) -> None:
        ours, theirs = pty.openpty()
        code = (
            "from remat_cli.cli import progress; progress._LIVE_AFTER_S = progress._LIVE_EVERY_S = 0.02;"
            "from remat_cli.cli.main import main; main()"
        )
        env = environment(**{"TERM": "xterm", "COLUMNS": "70", **variables})
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=theirs if out else subprocess.DEVNULL,
            stderr=theirs,
            env=env,
        )
        os.close(theirs)
        chunks: list[bytes] = []
        reader = threading.Thread(target=self._read, args=(ours, chunks))
        reader.start()
        self.code = self.process.wait(PATIENCE_S)
        reader.join(PATIENCE_S)
        os.close(ours)
        self.text = b"".join(chunks).decode()

    @staticmethod
    def _read(ours: int, chunks: list[bytes]) -> None:
        try:
            while chunk := os.read(ours, 1 << 16):
                chunks.append(chunk)
        except OSError:  # EIO: nobody writes to it any more
            return


def test_on_a_terminal_one_line_is_drawn_again_and_again():
    larger = str(GRAPHS / "linear32.json")  # which takes long enough for some lines
    terminal = Terminal("solve", larger, "-b", "90%", "--strategy", "checkmate-ilp", "--gap", "0.5")
    assert terminal.code == 0
    drawn = re.findall(r"\d\.\d\d s  building the model", terminal.text)
    assert len(set(drawn)) > 3
    assert "\n" not in terminal.text[: terminal.text.rindex("building")]  # always the same line
    assert terminal.text.index("\x1b[?25l") < terminal.text.index("building")  # the cursor is hidden ...
    assert terminal.text.rindex("\x1b[?25h") > terminal.text.rindex("building")  # ... and comes back
    assert terminal.text.rstrip("\r").endswith("\x1b[2Kwrote linear32.plan.json\r\n")  # and nothing is left of it


@pytest.mark.parametrize(("arguments", "variables"), [((*SOLVE, "-q"), {}), (("check", "none.json", "-q"), {})])
def test_nothing_is_drawn_when_quiet(arguments, variables):
    terminal = Terminal(*arguments, **variables)
    assert "building" not in terminal.text
    assert "\x1b[?25l" not in terminal.text


@pytest.mark.parametrize(
    ("arguments", "variables"), [(SOLVE, {"NO_COLOR": "1"}), ((*SOLVE, "--color", "never"), {})], ids=["env", "option"]
)
def test_without_colour_the_line_is_drawn_but_neither_coloured_nor_dim(arguments, variables):
    terminal = Terminal(*arguments, **variables)
    assert "building the model" in terminal.text
    assert not re.search(r"\x1b\[[0-9;]*m", terminal.text)
    assert "\x1b[2m" in Terminal(*SOLVE).text


def test_a_dumb_terminal_gets_plain_lines_only():
    terminal = Terminal(*SOLVE, TERM="dumb")
    assert terminal.code == 0
    assert "\x1b" not in terminal.text


def test_colour_on_a_terminal_unless_told_otherwise():
    assert "\x1b[" in Terminal("show", TOY, out=True).text
    assert "\x1b[" not in Terminal("show", TOY, out=True, NO_COLOR="1").text
    assert "\x1b[" not in Terminal("show", TOY, "--color", "never", out=True).text
    assert "\x1b[" not in Terminal("show", TOY, out=True, TERM="dumb").text
    assert "\x1b[" in Terminal("show", TOY, "--color", "always", out=True, NO_COLOR="1").text
    assert "\x1b[" in Terminal("show", "none.json").text  # the word "error"
    assert "\x1b[" not in Terminal("show", "none.json", NO_COLOR="1").text
    assert "\x1b[" not in Terminal("show", "none.json", "--color", "never").text
