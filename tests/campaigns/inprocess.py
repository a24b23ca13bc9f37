"""Runs commands of remat in this process, in an empty folder, and says what is wrong with how they ended."""

import contextlib
import io
import os
import re
import sys
import tempfile
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from cli_process import Done

from campaigns.engine import Failure
from remat_cli.cli.main import run
from remat_cli.errors import ExitCode

MOST_CPU_S = 10.0
"""No small damaged file may take longer; untuned, a hundred times what whole files take."""
_DEFECT = re.compile(r"internal error: (\w+ at [\w.]+:\d+)")


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """An empty folder, which is the current one while inside."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="campaign-") as made:
        os.chdir(made)
        try:
            yield Path(made)
        finally:
            os.chdir(before)


@contextlib.contextmanager
def timed(what: str) -> Iterator[None]:
    """A Failure if what is inside takes too long."""
    before_s = time.process_time()
    yield
    if (took_s := time.process_time() - before_s) > MOST_CPU_S:
        raise Failure(f"{what}: slow", f"{took_s:.1f} s")


def remat(*arguments: str) -> Done:
    """Run a command; a defect of remat, or control characters in its words, are a Failure."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    before = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), timed(arguments[0]):
            code = int(run(list(arguments)))
    finally:
        sys.stdin = before
    done = Done(code, *(stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err)))
    if code == ExitCode.DEFECT or code not in set(ExitCode):
        found = _DEFECT.search(done.err)
        raise Failure(f"{arguments[0]}: exit {code}" + (f": {found[1]}" if found else ""), done.err)
    if "Traceback" in done.err:
        raise Failure(f"{arguments[0]}: traceback", done.err)
    if code not in (ExitCode.OK, ExitCode.NO) and not done.err and not done.out:
        raise Failure(f"{arguments[0]}: exit {code} without a word", done.out)
    clean(f"{arguments[0]}: stderr", done.err)
    clean(f"{arguments[0]}: stdout", done.out)
    return done


def clean(what: str, text: str) -> None:
    """A Failure if a terminal would obey ``text``, or show it as other lines."""
    found = sorted({c for c in text if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Zl", "Zp")})
    if found:
        raise Failure(f"{what}: control characters", f"{found} in {text[:2000]!r}")
