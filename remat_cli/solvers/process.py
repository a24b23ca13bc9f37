"""Running a solver's binary as a child process that is certain to end.

The child runs in a session of its own, so that the terminal's Ctrl-C reaches only remat, which passes it on once
(POSIX only). When remat should stop, or some time after the deadline, the child's whole process group is interrupted,
then terminated, then killed. If remat itself is killed, a watcher kills the group and removes its folder. The watcher
is a one-line shell script that waits for the end of a pipe.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import re
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from remat_cli.control import Control
from remat_cli.errors import SolverUnavailable, UsageError
from remat_cli.running import critical_section, on_exit, shortage
from remat_cli.solvers.base import Availability, SolverLog

POLL_S = 0.05
LATE_S = 0.75
"""Seconds past the deadline in which a child with its own time limit may stop by itself. It exceeds half a second,
because glpsol's limit is in whole seconds."""
INTERRUPT_GRACE_S = 3.0
"""Seconds in which an interrupted child may write its best solution. Untuned."""
TERMINATE_GRACE_S = 0.5
SAME_INTERRUPT_S = 0.5
"""Seconds between a Ctrl-C that ends a child and the same one in remat, whose handler must have its turn. Untuned."""
_PREFIX, _LOCK = "remat-", ".remat.lock"
_ABANDONED_AFTER_S = 60.0
"""Seconds from the making of a lock until it must be held, if its process lives. Untuned."""
_WATCHER = ("/bin/sh", "-c", 'read -r line; kill -s KILL -- "-$0"; [ -z "$1" ] || rm -rf -- "$1"')


_groups: set[int] = set()
"""Process groups of the running children."""
_folders: set[Path] = set()
"""Temporary folders in use."""


def _leave_nothing() -> None:
    for group in list(_groups):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for folder in list(_folders):
        shutil.rmtree(folder, ignore_errors=True)


on_exit(_leave_nothing)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is removed at the end, even if remat exits before.

    If remat is killed, its watcher removes the folder; without one, the next run that needs a folder does.

    Raises:
        UsageError: If no folder for temporary files can be written.
    """
    try:
        _remove_abandoned(Path(tempfile.gettempdir()))
    except FileNotFoundError as error:
        hint = "make room there, or set TMPDIR to another folder"
        raise UsageError(f"no temporary file can be written: {error.strerror}", hint=hint) from None
    with critical_section():
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        _folders.add(folder)
    try:
        with _locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _folders.discard(folder)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of ``folder``, which the system takes from a process that ends, however it ends."""
    with (folder / _LOCK).open("wb") as stream:
        with contextlib.suppress(OSError):  # a file system without locks: nobody else gets one either
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _remove_abandoned(place: Path) -> None:
    """Remove the folders of processes that were killed: old enough to have a lock, and nobody holds it.

    A process id would not do: another may have got it, and containers that share a folder count them anew.
    """
    for lock in place.glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError), lock.open("rb") as stream:
            status = os.fstat(stream.fileno())
            if status.st_uid == os.geteuid() and time.time() - status.st_mtime > _ABANDONED_AFTER_S:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if somebody does
                shutil.rmtree(lock.parent, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a child ended.

    Attributes:
        exit_code: Its exit status; None if a signal ended it.
        signal: The signal that ended it; None if it exited.
        cancelled: Whether it was told to stop because of ``control.cancelled``.
        late: Whether it was told to stop because it ran past the deadline.
        killed: Whether it had to be killed.
        wall_s: Seconds it ran.
    """

    exit_code: int | None
    signal: int | None
    cancelled: bool
    late: bool
    killed: bool
    wall_s: float

    @property
    def told_to_stop(self) -> bool:
        """Whether remat ended it."""
        return self.cancelled or self.late

    @property
    def crashed(self) -> bool:
        """Whether it ended by a signal that remat did not send, or with a bad exit status."""
        return not self.told_to_stop and self.exit_code != 0

    def text(self) -> str:
        """In words: ``ended by signal 11 (SIGSEGV)``."""
        if self.signal is None:
            return f"ended with status {self.exit_code}"
        with contextlib.suppress(ValueError):
            return f"ended by signal {self.signal} ({signal.Signals(self.signal).name})"
        return f"ended by signal {self.signal}"


def program_availability(
    binary: str, argument: str, *, version: str, title: str, licence: str, hint: str
) -> Availability:
    """Whether ``binary``, called with ``argument``, prints a version as the pattern ``version`` finds it."""
    try:
        answer = subprocess.run(
            [binary, argument], capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        if shortage(error):
            raise
        return Availability(path=binary, problem=f"{binary} does not run: {error}", hint=hint)
    match = re.search(version, answer.stdout)
    if match is None:
        return Availability(path=binary, problem=f"{binary} does not say that it is {title}", hint=hint)
    return Availability(version=match[1], path=binary, licence=licence)


def run_process(
    arguments: Sequence[str],
    control: Control,
    log: SolverLog,
    *,
    folder: Path,
    on_line: Callable[[str], None] | None = None,
    terminal: bool = False,
    disposable: bool = False,
) -> ProcessEnd:
    """Run ``arguments`` until it ends or is ended.

    Args:
        arguments: The binary and its arguments; no shell reads them.
        control: Deadline and interruption.
        log: Gets the output of the child, both streams in one.
        folder: Working directory of the child.
        on_line: Called with every complete line that it prints.
        terminal: Whether it prints to a pseudo-terminal instead of a pipe: into a pipe, a program that does not
            flush prints 4 kB at a time, which is several seconds of CBC.
        disposable: Whether ``folder`` is temporary, so that the watcher removes it if remat is killed; otherwise the
            caller removes it.

    Raises:
        SolverUnavailable: If the binary cannot be started.
    """
    started_s = time.monotonic()
    ours, theirs = _channel(terminal)
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(os.fdopen(ours, "rb", buffering=0))
        with critical_section():  # or remat might end between the two, and leave the child behind
            child = stack.enter_context(_start(arguments, theirs, folder))
            _groups.add(child.pid)
            stack.callback(_groups.discard, child.pid)
            stack.enter_context(_leash(child.pid, folder if disposable else None))
        try:
            return _follow(child, _Output(stream.fileno(), log, on_line), control, log, started_s)
        finally:  # an exception may be on its way, or the child may have left children of its own behind
            _signal_group(child, signal.SIGKILL)


def _start(arguments: Sequence[str], output: int, folder: Path) -> subprocess.Popen[bytes]:
    """Start the child, which prints to ``output``; that end is closed here."""
    try:
        return subprocess.Popen(
            arguments,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        if shortage(error):
            raise
        raise SolverUnavailable(
            f"{arguments[0]} cannot be run: {error.strerror or error}", hint="check the path, or leave it out"
        ) from None
    finally:
        os.close(output)


def _channel(terminal: bool) -> tuple[int, int]:
    """``(our end, the child's end)`` of the channel for the child's output."""
    if terminal:
        with contextlib.suppress(OSError):  # no pseudo-terminals here: a pipe gives the same output, later
            ours, theirs = os.openpty()
            tty.setraw(theirs)  # line ends stay as they are
            return ours, theirs
    return os.pipe()


def _follow(
    child: subprocess.Popen[bytes], output: _Output, control: Control, log: SolverLog, started_s: float
) -> ProcessEnd:
    """Read the child's output until it ends; send stronger and stronger signals once it should end."""
    ladder = _ladder(control)
    state = ""
    with contextlib.closing(output):
        while child.poll() is None:
            output.read(POLL_S)
            state, step = next(ladder)
            if step is not None:
                log.note(f"sends {step.name}")
                _signal_group(child, step)
        output.drain()
    code = child.returncode
    if code == -signal.SIGINT and not state and _cancelled_soon(control):
        state = "cancelled"
    return ProcessEnd(
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        cancelled=state == "cancelled",
        late=state == "late",
        killed=code == -signal.SIGKILL and bool(state),
        wall_s=time.monotonic() - started_s,
    )


def _cancelled_soon(control: Control) -> bool:
    """Whether a Ctrl-C that ended a child is for remat, too: before it has a session of its own, it gets it first."""
    until_s = time.monotonic() + SAME_INTERRUPT_S
    while not control.cancelled.is_set() and time.monotonic() < until_s:
        time.sleep(POLL_S)
    return control.cancelled.is_set()


def _ladder(control: Control) -> Iterator[tuple[str, signal.Signals | None]]:
    """For every poll: why the child should stop (empty if it should not), and the signal that is due now, if any."""
    state = ""
    while not state:
        late = control.deadline_s is not None and time.monotonic() >= control.deadline_s + LATE_S
        state = "cancelled" if control.cancelled.is_set() else "late" if late else ""
        if not state:
            yield "", None
    due_s = time.monotonic()
    for step, grace_s in (
        (signal.SIGINT, INTERRUPT_GRACE_S),
        (signal.SIGTERM, TERMINATE_GRACE_S),
        (signal.SIGKILL, TERMINATE_GRACE_S),
    ):
        yield state, step
        due_s += grace_s
        while time.monotonic() < due_s:
            yield state, None
    while True:
        yield state, None


class _Output:
    """The child's output, read without ever waiting for its end: a grandchild may hold the pipe open."""

    def __init__(self, fd: int, log: SolverLog, on_line: Callable[[str], None] | None) -> None:
        self._fd = fd
        os.set_blocking(self._fd, False)
        self._log = log
        self._on_line = on_line
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._fd, selectors.EVENT_READ)
        self._open = True

    def read(self, timeout_s: float) -> bool:
        """Read the available output, waiting up to ``timeout_s``; returns whether there was any."""
        if not self._open:
            time.sleep(timeout_s)
            return False
        if not self._selector.select(timeout_s):
            return False
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return False
        except OSError:  # EIO: how a pseudo-terminal says that its other end is closed
            data = b""
        if not data:
            self._open = False
        for line in self._log.write(self._decoder.decode(data)):
            if self._on_line is not None:
                self._on_line(line)
        return bool(data)

    def drain(self) -> None:
        """Read the rest of the pipe."""
        while self._open and self.read(0.0):
            pass

    def close(self) -> None:
        """Free the selector; the channel itself is the caller's."""
        self._selector.close()


def _signal_group(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


@contextlib.contextmanager
def _leash(group: int, folder: Path | None) -> Iterator[None]:
    """While open, the process group (and the folder, if any) ends with remat, even if remat is killed."""
    read_end, write_end = os.pipe()  # not inherited: only this process holds the writing end
    try:
        watcher = subprocess.Popen(
            [*_WATCHER, str(group), "" if folder is None else str(folder)],
            stdin=read_end,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    finally:
        os.close(read_end)
    try:
        yield
    finally:
        watcher.kill()
        watcher.wait()
        os.close(write_end)
