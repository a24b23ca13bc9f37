"""Measures repeated times with their spread, and fresh processes with their time and peak memory.

Processes are started by :mod:`benchmarks.launch`, so their peak memory is their own. Run as a program, this module
calls one function, for :func:`call`.
"""

import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT

CHILD_LIMIT_S = 300.0
_LAUNCHER = Path(__file__).with_name("launch.py")


class BenchmarkError(Exception):
    """A benchmark could not be run; the message names the step, and ends with the output of its process."""


class MissingInput(BenchmarkError):
    """A benchmark needs an input that is not part of the project; the message says which, and how to give it."""


def rounded(value: float) -> float:
    """Four significant digits: more than any time here is accurate to."""
    return float(f"{value:.4g}")


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, minimum, maximum and number of ``values``."""
    return {
        "max": rounded(max(values)),
        "median": rounded(statistics.median(values)),
        "min": rounded(min(values)),
        "runs": len(values),
    }


def median(measured: Any) -> float | None:
    """The number to compare: the median of a spread, or the number itself; None for None."""
    return measured["median"] if isinstance(measured, Mapping) else measured


def together(runs: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """The spread of every key over ``runs``, which all have the same keys."""
    return {key: spread([run[key] for run in runs]) for key in runs[0]}


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds that ``work`` takes, and its result. Existing garbage is collected first."""
    gc.collect()
    started_s = time.perf_counter()
    result = work()
    return time.perf_counter() - started_s, result


def repeated(work: Callable[[], Any], times: int, *, enough_s: float = 1e9, collect: bool = True) -> list[float]:
    """Seconds of up to ``times`` runs of ``work`` in this process; none starts after ``enough_s`` seconds in total.

    Python's cycle collector is on during the runs, as it is for users, unless ``collect`` is false.
    """
    seconds: list[float] = []
    if not collect:
        gc.disable()
    try:
        while not seconds or (len(seconds) < times and sum(seconds) < enough_s):
            seconds.append(timed(work)[0])
    finally:
        gc.enable()
    return seconds


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that has ended.

    Attributes:
        wall_s: Seconds from start to end.
        peak_bytes: Its largest resident memory; None if it was killed.
        code: Exit status, negative for a signal.
        out: Its standard output.
        err: Its standard error.
        killed: Whether it was killed at the limit.
    """

    wall_s: float
    peak_bytes: int | None
    code: int
    out: str
    err: str
    killed: bool

    def problem(self) -> str:
        """What went wrong, in a few words; empty if nothing did."""
        if self.killed:
            return f"no end after {self.wall_s:.0f} s"
        last = (self.err.strip() or self.out.strip()).splitlines()[-1:]
        return "" if self.code == 0 else f"exit status {self.code}: {' '.join(last)}"


def run_process(
    arguments: Sequence[str],
    *,
    limit_s: float = CHILD_LIMIT_S,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> Ended:
    """Run a program to its end, or kill it and its child processes after ``limit_s`` seconds.

    Its environment has ``variables`` besides those of this process.

    Raises:
        BenchmarkError: If it cannot be started.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("REMAT_")}
    environment |= variables or {}
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        tempfile.TemporaryDirectory(prefix="remat-bench-") as name,
    ):
        answer = Path(name) / "answer"
        launcher = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_LAUNCHER), str(answer), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=folder or ROOT,
            env=environment,
            start_new_session=True,
        )
        killed = False
        try:
            launcher.wait(limit_s)
        except subprocess.TimeoutExpired:
            killed = True
        finally:
            if launcher.returncode is None:
                os.killpg(launcher.pid, signal.SIGKILL)
                launcher.wait()
        texts = [_read(stream) for stream in (out, err)]
        if killed:
            return Ended(limit_s, None, -signal.SIGKILL, texts[0], texts[1], killed=True)
        if launcher.returncode:
            raise BenchmarkError(f"{arguments[0]} cannot be started: {texts[1].strip()}")
        wall_s, code, used = answer.read_text(encoding="ascii").split()
    return Ended(float(wall_s), peak_bytes(int(used)), int(code), texts[0], texts[1], killed=False)


def succeeded(ended: Ended, what: str) -> Ended:
    """``ended`` itself.

    Raises:
        BenchmarkError: If it did not end well.
    """
    if ended.problem():
        raise BenchmarkError(f"{what}: {ended.problem()}")
    return ended


@dataclass(frozen=True, slots=True)
class Called:
    """The result of a function in a process of its own: values and peak memory (with child processes), or a problem."""

    values: Any
    peak_bytes: int | None
    problem: str = ""


def call(
    function: str, *, limit_s: float = CHILD_LIMIT_S, variables: Mapping[str, str] | None = None, **arguments: Any
) -> Called:
    """Call ``benchmarks.module:function`` with keyword ``arguments`` (plain data) in a fresh process.

    It returns plain data. Peak memory is that of the process and of the largest process that it started.
    """
    with tempfile.TemporaryDirectory(prefix="remat-bench-") as name:
        answer = Path(name) / "answer.json"
        command = [sys.executable, "-m", "benchmarks.measure", function, json.dumps(arguments), str(answer)]
        ended = run_process(command, limit_s=limit_s, variables=variables)
        if ended.problem():
            return Called(None, ended.peak_bytes, ended.problem())
        told = json.loads(answer.read_text(encoding="utf-8"))
    return Called(told["values"], told["peak_bytes"])


def call_or_fail(function: str, **arguments: Any) -> Called:
    """As :func:`call`, for functions that must not fail.

    Raises:
        BenchmarkError: If it fails.
    """
    called = call(function, **arguments)
    if called.problem:
        raise BenchmarkError(f"{function}: {called.problem}")
    return called


def peak_bytes(ru_maxrss: int) -> int:
    """``ru_maxrss`` in bytes: it is in KiB, but on macOS in bytes."""
    return ru_maxrss if sys.platform == "darwin" else ru_maxrss * 1024


def largest(called: Iterable[Called]) -> int:
    """The largest peak memory of several calls, none of which failed."""
    return max(c.peak_bytes for c in called if c.peak_bytes is not None)


def _read(stream: Any) -> str:
    stream.seek(0)
    return stream.read().decode("utf-8", errors="replace")


def _answer(function: str, arguments: str, answer: str) -> None:
    """Call ``module:function`` with ``arguments``, and write its values and the peak memory to the file ``answer``."""
    import resource

    module, _, name = function.partition(":")
    values = getattr(import_module(module), name)(**json.loads(arguments))
    used = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    Path(answer).write_text(json.dumps({"peak_bytes": peak_bytes(used), "values": values}), encoding="utf-8")


if __name__ == "__main__":
    from remat_cli.running import exit_now

    _answer(*sys.argv[1:])
    # Leave as the command does: a solver that still runs could crash Python's normal exit.
    exit_now(0)
