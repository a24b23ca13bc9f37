"""Processes that need not import the libraries again: forks of this one, with a time limit.

Importing PyTorch and a library of models takes longer than most steps.
"""

import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended.

    Attributes:
        code: Its exit code; negative for a signal; None if it did not end in time.
        out: Its standard output.
        err: Its standard error.
        seconds: How long it took.
    """

    code: int | None
    out: str
    err: str
    seconds: float


def warm() -> None:
    """Import what most steps need, so that their processes have it. Nothing is computed and no thread is started."""
    from benchmarks.models import operators  # noqa: F401, I001 - has to come before torchvision

    import remat_cli.cli.main  # noqa: F401


def command(arguments: Sequence[str], limit_s: float) -> Ended:
    """Run the command line ``remat`` in a process of its own."""

    def work() -> None:
        from remat_cli.cli.main import run

        sys.exit(run(list(arguments)))

    return forked(work, limit_s)


def forked(work: Callable[[], None], limit_s: float) -> Ended:
    """Do ``work`` in a process of its own; after ``limit_s`` seconds, kill it and all that it started."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        started = time.perf_counter()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _be(work, out, err)
        status = _waited(pid, started + limit_s)
        seconds = round(time.perf_counter() - started, 1)
        texts = [path.read_text(encoding="utf-8", errors="replace") if path.is_file() else "" for path in (out, err)]
        return Ended(None if status is None else os.waitstatus_to_exitcode(status), *texts, seconds)


def _be(work: Callable[[], None], out: Path, err: Path) -> None:
    """The life of the new process."""
    code = 70
    try:
        os.setsid()
        for number, path in ((1, out), (2, err)):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(file, number)
        sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
        work()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1
    except BaseException:  # whatever it is, the parent reads it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _waited(pid: int, end: float) -> int | None:
    """The status with which a process ended; None if it had to be killed."""
    while time.perf_counter() < end:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        time.sleep(_POLL_S)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None
