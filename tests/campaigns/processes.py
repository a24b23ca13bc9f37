"""Commands of remat in processes of their own, to which anything may happen; and what they must not leave behind."""

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from campaigns.engine import Failure
from campaigns.inprocess import clean
from campaigns.judge import Wrong, judged
from remat_cli import build_graph
from remat_cli.errors import ExitCode
from remat_cli.graph.io import dump_document, graph_to_document

GONE_WITHIN_S = 15.0
"""Helpers and temporary folders of a killed command may be there for some seconds; untuned."""
ENDS_WITHIN_S = 60.0
"""A command that takes longer hangs; untuned, ten times what commands of the campaigns take, for busy machines."""
OLD = "old content\n"
_TAG = "CAMPAIGN_CASE"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended; a negative code is the signal that killed it."""

    code: int
    out: str
    err: str
    seconds: float
    signalled: bool = False
    """Whether it was still running when it was to be signalled."""


@dataclass(slots=True)
class Scene:
    """A folder with a temporary folder, in which commands run; all their processes carry a tag."""

    folder: Path
    temporary: Path
    tag: str = field(default_factory=lambda: uuid.uuid4().hex)

    def start(
        self, *arguments: str, prefix: Sequence[str] = (), stdout: int | IO[Any] = subprocess.PIPE, **environment: str
    ) -> subprocess.Popen[str]:
        """Start a command. It leads a session of its own, as a terminal's foreground job leads a group."""
        plain = {name: value for name, value in os.environ.items() if not name.startswith("REMAT_")}
        return subprocess.Popen(
            [*prefix, sys.executable, "-m", "remat_cli", *arguments],
            cwd=self.folder,
            env={**plain, "TMPDIR": str(self.temporary), _TAG: self.tag, **environment},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )

    def run(
        self,
        *arguments: str,
        prefix: Sequence[str] = (),
        stdout: int | IO[Any] = subprocess.PIPE,
        trouble: Callable[[subprocess.Popen[str]], bool] | None = None,
        patience_s: float = ENDS_WITHIN_S,
        **environment: str,
    ) -> Ended:
        """Run a command to its end; ``trouble`` may happen to it on the way, and says whether it did.

        Raises:
            Failure: If it does not end.
        """
        began_s = time.monotonic()
        process = self.start(*arguments, prefix=prefix, stdout=stdout, **environment)
        signalled = trouble(process) if trouble is not None else False
        try:
            out, err = process.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            stack = "\n".join(_command(child) for child in self.alive())
            self.kill_all()
            out, err = process.communicate()
            raise Failure(f"{arguments[0]}: does not end", f"{arguments}\n{stack}\n{err}") from None
        return Ended(process.returncode, out or "", err, time.monotonic() - began_s, signalled)

    def alive(self) -> list[psutil.Process]:
        """Processes of commands of this scene that still run."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(_TAG) == self.tag and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def kill_all(self) -> None:
        """Kill them."""
        for process in self.alive():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def check_gone(self, what: str, *, killed: bool = False) -> bool:
        """A Failure if a process or a temporary file is left.

        After SIGKILL (``killed``) a folder of remat may be left, which the next start removes; whether one is.
        """
        end_s = time.monotonic() + GONE_WITHIN_S
        while (alive := self.alive()) or any(self.temporary.iterdir()):
            if time.monotonic() > end_s:
                break
            time.sleep(0.05)
        if alive:
            names = [_command(process) for process in alive]
            self.kill_all()
            raise Failure(f"{what}: orphans", "\n".join(names))
        left = sorted(path.name for path in self.temporary.iterdir())
        if not all(killed and name.startswith("remat-") for name in left):
            raise Failure(f"{what}: temporary files left", f"{left}")
        if parts := [str(path) for path in self.folder.rglob("*.part")]:
            raise Failure(f"{what}: half a file left", f"{parts}")
        return bool(left)


def _command(process: psutil.Process) -> str:
    try:
        return f"{process.pid}: {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return f"{process.pid}: ended"


@functools.cache
def chain(n: int) -> str:
    """The document of a unit training chain of ``n`` nodes."""
    return dump_document(graph_to_document(build_graph(f"unit-chain{{n={n}}}")))


@contextlib.contextmanager
def scene() -> Iterator[Scene]:
    """An empty folder for commands, which is taken away with all that still runs in it."""
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    made = Scene(folder / "here", folder / "temporary")
    made.folder.mkdir()
    made.temporary.mkdir()
    try:
        yield made
    finally:
        made.kill_all()
        shutil.rmtree(folder, ignore_errors=True)


def check_words(what: str, ended: Ended, *, killed: Sequence[int] = ()) -> None:
    """A Failure if the exit code is not documented and no signal of ``killed``, or there is a traceback."""
    if "Traceback" in ended.err and "remat_cli" in ended.err:  # Python's own start can be interrupted, too
        raise Failure(f"{what}: traceback", f"exit {ended.code}\n{ended.err[-3000:]}")
    documented = set(ExitCode) - {ExitCode.DEFECT}
    if ended.code not in documented and -ended.code not in killed:
        raise Failure(f"{what}: exit {ended.code}", ended.err[-3000:])
    clean(f"{what}: stderr", ended.err)
    if ended.code in (ExitCode.USAGE, ExitCode.SOLVER, ExitCode.LIMIT, ExitCode.INTERRUPTED) and not ended.err:
        raise Failure(f"{what}: exit {ended.code} without a word", "")


def check_target(what: str, ended: Ended, target: Path, *, old: bool, killed: bool) -> bool:
    """A Failure if the file of ``-o`` is neither the ``old`` one nor a new one that is whole; says whether it is new.

    A signal that ``killed`` the command may have come after the file was written and before the end.
    """
    text = target.read_text(encoding="utf-8", errors="replace") if target.exists() else None
    new = text is not None and text != OLD
    if text is None and old:
        raise Failure(f"{what}: old file lost", f"exit {ended.code}\n{ended.err}")
    data = check_whole(what, target, str(text)) if new else None
    partial = data is not None and data.get("interrupted") is True  # a comparison says so, and has the rows until then
    if new and not partial and ended.code not in (ExitCode.OK, ExitCode.NO) and not killed:
        raise Failure(f"{what}: exit {ended.code} and a new file", ended.err)
    if not new and ended.code == ExitCode.OK:
        raise Failure(f"{what}: exit 0 without a new file", f"{ended.out}\n{ended.err}")
    return new


def check_whole(what: str, target: Path, text: str) -> dict[str, Any] | None:
    """A Failure if a document is not whole, or a plan is wrong; its data if it is JSON."""
    try:
        if not text.endswith("\n"):
            raise ValueError("no newline at the end")
        if target.suffix != ".json":
            return None
        data: dict[str, Any] = json.loads(text)
        if data.get("schema") == "remat-plan/1":
            judged(data)
    except (ValueError, Wrong) as error:
        raise Failure(f"{what}: half or wrong file", f"{error}\n...{text[-500:]}") from error
    return data


def send(process: subprocess.Popen[str], number: signal.Signals, *, group: bool) -> bool:
    """Send a signal to a process, or to its group as a terminal does; says whether it still ran."""
    if process.poll() is not None:
        return False
    with contextlib.suppress(ProcessLookupError):
        if group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
    return True
