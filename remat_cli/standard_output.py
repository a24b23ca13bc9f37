"""Standard output, reserved for what a command itself prints.

A document on standard output is worth nothing with one foreign line in it, and libraries print there without being
asked: solvers a banner, frameworks warnings, a user's model whatever it prints. So :func:`claim` takes file
descriptor 1 from C code and from child processes, and :func:`redirected` takes ``sys.stdout`` from Python code.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

_own: TextIO | Any = None
"""The stream of the running command; None if no command runs."""
_claimed = False
"""Whether file descriptor 1 is no longer standard output."""


def stdout() -> TextIO | Any:
    """Standard output, for what remat itself prints: ``sys.stdout`` where no command runs, as in a script.

    It may be None there.
    """
    return sys.stdout if _own is None else _own


def claim() -> None:
    """Make standard output and standard error of this process safe to print to, and standard output ours alone.

    What others write to file descriptor 1 goes to standard error from now on. A stream that is closed, as by ``>&-``,
    is replaced by one that leads nowhere, and a character that a stream cannot encode is escaped.
    """
    global _claimed
    # Where a descriptor is closed, the next file to be opened would take its number, and get what others print.
    while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(spare, True)
    os.close(spare)
    sys.stdout, sys.stderr = _safe(sys.stdout, os.dup(1)), _safe(sys.stderr, 2)
    os.dup2(2, 1)
    _claimed = True


def _safe(stream: TextIO | None, descriptor: int) -> TextIO:
    """A stream to ``descriptor`` in place of one that may be closed, or raw (PYTHONUNBUFFERED)."""
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    stream.flush()
    with contextlib.suppress(OSError):  # the other end may have left it so that a write takes only a part
        os.set_blocking(descriptor, True)
    return os.fdopen(
        descriptor, "w", buffering=1, encoding=stream.encoding, errors="backslashreplace", closefd=descriptor > 2
    )


@contextmanager
def redirected(*, quiet: bool = False) -> Iterator[None]:
    """While inside, a command runs: what others print on standard output goes to standard error."""
    global _own
    before, _own = _own, stdout()
    try:
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
            if quiet and _claimed:
                os.dup2(nowhere.fileno(), 1)
            with contextlib.redirect_stdout(nowhere if quiet else sys.stderr):
                yield
    finally:
        _own = before
