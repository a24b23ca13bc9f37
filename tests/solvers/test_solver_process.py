import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import script

from remat_cli.control import Control
from remat_cli.errors import SolverUnavailable, UsageError
from remat_cli.solvers import process
from remat_cli.solvers.base import SolverLog
from remat_cli.solvers.process import ProcessEnd, run_process, temporary_folder


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LATE_S", "INTERRUPT_GRACE_S", "TERMINATE_GRACE_S"):
        monkeypatch.setattr(process, name, 0.2)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SolverLog]:
    with SolverLog(tmp_path / "log") as opened:
        yield opened


def cancel_after(seconds: float) -> Control:
    control = Control()
    threading.Timer(seconds, control.cancelled.set).start()
    return control


def alive(pid: int) -> bool:
    """Whether a process is there and not just waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("terminal", [False, True])
def test_output_and_status(tmp_path: Path, log: SolverLog, terminal: bool) -> None:
    lines: list[str] = []
    binary = script(tmp_path / "a program", 'printf "one\\ntwo\\n"; echo "$1" >&2; pwd; printf half; exit 3')
    end = run_process([binary, "a b;c"], Control(), log, folder=tmp_path, on_line=lines.append, terminal=terminal)
    assert (end.exit_code, end.signal, end.crashed, end.told_to_stop) == (3, None, True, False)
    assert end.text() == "ended with status 3"
    assert lines == ["one", "two", "a b;c", str(tmp_path)]
    assert (tmp_path / "log").read_text(encoding="utf-8") == f"one\ntwo\na b;c\n{tmp_path}\nhalf"
    assert log.text().endswith("half")


@pytest.mark.parametrize("terminal", [False, True])
def test_much_output_and_odd_bytes(tmp_path: Path, log: SolverLog, terminal: bool) -> None:
    lines: list[str] = []
    body = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; printf '\\377\\376 odd\\n'"
    end = run_process(
        [script(tmp_path / "talks", body)], Control(), log, folder=tmp_path, on_line=lines.append, terminal=terminal
    )
    assert end.exit_code == 0
    assert len(lines) == 20001
    assert lines[19999] == "line 19999"
    assert lines[-1].endswith(" odd")
    assert len(log.text().splitlines()) <= 41


def test_live_lines_through_a_terminal(tmp_path: Path, log: SolverLog) -> None:
    """A program that leaves flushing to C's stdio: line by line on a terminal."""
    told_s: list[float] = []
    body = "import time; print('now'); time.sleep(0.6)"
    started_s = time.monotonic()
    run_process(
        [sys.executable, "-c", body],
        Control(),
        log,
        folder=tmp_path,
        on_line=lambda line: told_s.append(time.monotonic()),
        terminal=True,
    )
    assert time.monotonic() - told_s[0] > 0.4, told_s[0] - started_s


def test_crash(tmp_path: Path, log: SolverLog) -> None:
    end = run_process([script(tmp_path / "crash", "kill -SEGV $$")], Control(), log, folder=tmp_path)
    assert (end.exit_code, end.signal, end.crashed) == (None, signal.SIGSEGV, True)
    assert end.text() == "ended by signal 11 (SIGSEGV)"


def test_cancel_interrupts(tmp_path: Path, log: SolverLog) -> None:
    body = "trap 'echo saved; exit 0' INT; while :; do sleep 0.05; done"
    end = run_process([script(tmp_path / "polite", body)], cancel_after(0.2), log, folder=tmp_path)
    assert (end.exit_code, end.cancelled, end.late, end.killed, end.crashed) == (0, True, False, False, False)
    assert "sends SIGINT" in log.text()
    assert "saved" in log.text()


def test_a_ctrl_c_that_reaches_the_child_first_is_no_crash(tmp_path: Path, log: SolverLog) -> None:
    binary = script(tmp_path / "early", "kill -INT $$")
    end = run_process([binary], cancel_after(0.2), log, folder=tmp_path)
    assert (end.signal, end.cancelled, end.crashed) == (signal.SIGINT, True, False)
    end = run_process([binary], Control(), log, folder=tmp_path)
    assert (end.signal, end.cancelled, end.crashed) == (signal.SIGINT, False, True)


def test_deadline_terminates_what_ignores_interrupts(tmp_path: Path, log: SolverLog) -> None:
    body = "trap '' INT; while :; do sleep 0.05; done"
    end = run_process([script(tmp_path / "deaf", body)], Control.within(0.1), log, folder=tmp_path)
    assert (end.signal, end.late, end.cancelled, end.killed) == (signal.SIGTERM, True, False, False)


def test_hang_is_killed(tmp_path: Path, log: SolverLog) -> None:
    body = "trap '' INT TERM; while :; do sleep 0.05; done"
    end = run_process([script(tmp_path / "hang", body)], Control.within(0.1), log, folder=tmp_path)
    assert (end.signal, end.late, end.killed, end.crashed) == (signal.SIGKILL, True, True, False)
    assert end.wall_s < 2.5


def test_a_grandchild_with_the_pipe_open_does_not_hold_us(tmp_path: Path, log: SolverLog) -> None:
    started_s = time.monotonic()
    end = run_process([script(tmp_path / "fork", "sleep 5 & echo done")], Control(), log, folder=tmp_path)
    assert end.exit_code == 0
    assert "done" in log.text()
    assert time.monotonic() - started_s < 2.5


def test_a_child_that_closes_its_output_is_waited_for(tmp_path: Path, log: SolverLog) -> None:
    body = "exec >&- 2>&-; sleep 0.4; exit 5"
    end = run_process([script(tmp_path / "mute", body)], Control(), log, folder=tmp_path)
    assert end.exit_code == 5
    assert end.wall_s >= 0.4


def test_an_exception_takes_the_child_along(tmp_path: Path, log: SolverLog) -> None:
    pids: list[int] = []

    def stop(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    body = "trap '' INT TERM; echo $$; while :; do sleep 0.05; done"
    with pytest.raises(KeyboardInterrupt):
        run_process([script(tmp_path / "talks", body)], Control(), log, folder=tmp_path, on_line=stop)
    assert not alive(pids[0])


def test_what_cannot_be_started(tmp_path: Path, log: SolverLog) -> None:
    with pytest.raises(SolverUnavailable, match="No such file"):
        run_process([str(tmp_path / "missing")], Control(), log, folder=tmp_path)
    (tmp_path / "text").write_text("no program", encoding="ascii")
    with pytest.raises(SolverUnavailable, match="Permission denied"):
        run_process([str(tmp_path / "text")], Control(), log, folder=tmp_path)


def test_no_file_is_left_open(tmp_path: Path, log: SolverLog) -> None:
    binary = script(tmp_path / "quick", "exit 0")
    run_process([binary], Control(), log, folder=tmp_path)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count, not paths
    for terminal in (False, True) * 5:
        run_process([binary], Control(), log, folder=tmp_path, terminal=terminal)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - a count, not paths


_PARENT = """
import sys
from pathlib import Path
from remat_cli.control import Control
from remat_cli.solvers.base import SolverLog
from remat_cli.solvers.process import run_process

with SolverLog(None) as log:
    run_process([sys.argv[1]], Control(), log, folder=Path(sys.argv[2]), on_line=lambda line: print(line, flush=True))
"""


def test_a_killed_parent_leaves_no_orphan(tmp_path: Path) -> None:
    binary = script(tmp_path / "orphan", "trap '' INT TERM HUP; echo $$; while :; do sleep 0.05; done")
    arguments = [sys.executable, "-c", _PARENT, binary, str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
        parent.wait()
    end_s = time.monotonic() + 5.0
    while alive(pid) and time.monotonic() < end_s:
        time.sleep(0.02)
    assert not alive(pid)


_LEAVING = """
from remat_cli.running import exit_now
from remat_cli.solvers.process import temporary_folder

with temporary_folder() as folder:
    (folder / "model.mps").write_text("half a mod")
    exit_now(9)
"""


def test_leaving_takes_temporary_folders_along(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _LEAVING], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert done.returncode == 9
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_killed_process_goes_at_the_next_start_and_no_other(tmp_path: Path, monkeypatch) -> None:
    code = """
import signal, sys
from remat_cli.solvers.process import temporary_folder
with temporary_folder() as folder:
    (folder / "model.mps").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""
    monkeypatch.setattr(process.tempfile, "tempdir", str(tmp_path))
    start = [sys.executable, "-c", code]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": {**os.environ, "TMPDIR": str(tmp_path)}}
    with subprocess.Popen(start, **pipes) as living, subprocess.Popen(start, **pipes) as killed:
        held, left = (Path(child.stdout.readline().decode().strip()) for child in (living, killed))
        killed.kill()
        killed.wait()
        (tmp_path / "remat-other").mkdir()  # of another program, or from before there were locks
        with process.temporary_folder():
            assert left.exists()  # it may be so new that it has no lock yet
        for folder in (held, left):
            os.utime(folder / process._LOCK, (0, 0))
        with process.temporary_folder() as ours:
            assert {path.name for path in tmp_path.iterdir()} == {held.name, ours.name, "remat-other"}
        living.stdin.close()
    assert [path.name for path in tmp_path.iterdir()] == ["remat-other"]


def test_words_for_odd_endings() -> None:
    assert ProcessEnd(None, 250, False, False, False, 0.0).text() == "ended by signal 250"


def test_what_a_solver_leaves_in_the_background_ends_with_it(tmp_path: Path, log: SolverLog) -> None:
    binary = script(tmp_path / "parent", "sleep 100 >/dev/null 2>&1 & echo $!")
    lines: list[str] = []
    end = run_process([binary], Control(), log, folder=tmp_path, on_line=lines.append)
    assert end.exit_code == 0
    deadline = time.monotonic() + 10
    while alive(int(lines[0])) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(int(lines[0]))


def test_without_a_folder_for_temporary_files_there_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_usable() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(process.tempfile, "gettempdir", none_usable)
    with pytest.raises(UsageError, match="no temporary file can be written: No usable") as refused, temporary_folder():
        pass
    assert "TMPDIR" in refused.value.hint
