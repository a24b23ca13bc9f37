"""Long work in a thread of its own, so that deadlines and Ctrl-C take effect even while it is busy in C code.

Also what the machine gives to work: cores, and what an error says has run out.
"""

import contextlib
import errno
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn, TypeVar

from remat_cli.control import Control

T = TypeVar("T")

_POLL_S = 0.05
_LEAVE_WITHIN_S = 5.0
"""Longest wait for a critical section when the process ends: it holds for moments only, unless its thread hangs."""
_SWALLOWED_AFTER_S = 3.0
"""A process that still runs so long after Ctrl-C does so because some code swallowed the KeyboardInterrupt. Untuned."""
_SHORTAGES = {
    "memory": re.compile(r"bad_alloc|cannot allocate memory|failed to map segment|out of memory", re.IGNORECASE),
    "processes or threads": re.compile(r"can't start new thread|cannot create thread|pthread_create", re.IGNORECASE),
}
_critical = threading.Lock()
_exit_hooks: list[Callable[[], None]] = []


def on_exit(exit_hook: Callable[[], None]) -> None:
    """Register ``exit_hook``, which :func:`exit_now` calls; it must be quick and must not raise."""
    _exit_hooks.append(exit_hook)


class Abandoned(Exception):
    """The work did not stop in time; it continues in a thread that ends with the process."""


def in_thread(function: Callable[[], T], name: str) -> tuple[threading.Event, Future[T]]:
    """Call ``function`` in a thread of its own; an event that is set at its end, and its result or error by then.

    Wait for the event in steps, and never by Thread.join: a signal inside that makes Python believe that the thread has
    ended. The thread is a daemon: a solver that ignores its limits must not keep the process alive.
    """
    done, result = threading.Event(), Future[T]()

    def work() -> None:
        try:
            result.set_result(function())
        except BaseException as error:  # the waiting thread raises it again
            result.set_exception(error)
        finally:
            done.set()

    threading.Thread(target=work, name=name, daemon=True).start()
    return done, result


def run(function: Callable[[], T], control: Control, *, grace_s: float) -> T:
    """Run ``function`` in a worker thread and wait for it, with the main thread free for signals.

    Args:
        function: The work; it should end soon after ``control.stopping()`` becomes true.
        control: Its deadline and interruption flag.
        grace_s: Seconds that it gets to end by itself once it should stop.

    Raises:
        Abandoned: If it is still busy after that time.
    """
    done, result = in_thread(function, "remat-work")
    patience_ends_s: float | None = None
    while not done.wait(_POLL_S):
        if control.stopping():
            # Measure by the clock, not by counting polls: a thread busy in C code may delay each poll by a second.
            if patience_ends_s is None:
                patience_ends_s = time.monotonic() + grace_s
            if time.monotonic() >= patience_ends_s:
                raise Abandoned
    return result.result()


@contextmanager
def critical_section() -> Iterator[None]:
    """A critical section of a worker thread, which :func:`exit_now` waits for. Keep it short.

    Example: from the start of a child process until its end is tied to the end of this process.
    """
    with _critical:
        yield


def exit_now(code: int) -> NoReturn:
    """End the process now, even if other threads are busy.

    Python's own shutdown could crash under a solver that did not stop in time, so no cleanup runs.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends anyway
    # Never released, so that no critical section begins any more. The timeout is for a thread that hangs in one.
    _critical.acquire(timeout=_LEAVE_WITHIN_S)
    for exit_hook in _exit_hooks:
        exit_hook()
    os._exit(code)


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """The handler of Ctrl-C in a command: a KeyboardInterrupt that cannot be lost.

    Python raises it between any two steps, also in callbacks of libraries where nothing but a message comes of it.
    """

    def insist() -> None:
        time.sleep(_SWALLOWED_AFTER_S)
        with contextlib.suppress(OSError):
            os.write(2, b"remat: interrupted\n")
        exit_now(128 + number)

    with contextlib.suppress(RuntimeError):  # no more threads
        threading.Thread(target=insist, name="remat-interrupted", daemon=True).start()
    raise KeyboardInterrupt


def usable_cores() -> int:
    """Cores that this process may use: fewer than the machine has where a container or ``taskset`` says so."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def shortage(error: BaseException) -> str:
    """What the system ran out of, if that is why ``error`` was raised: memory, or processes or threads; else empty."""
    cause: BaseException | None = error
    while cause is not None:
        number = cause.errno if isinstance(cause, OSError) else None
        if isinstance(cause, MemoryError) or number == errno.ENOMEM:
            return "memory"
        if isinstance(cause, BlockingIOError) and cause.strerror == os.strerror(
            errno.EAGAIN
        ):  # of fork, not of a stream
            return "processes or threads"
        for what, words in _SHORTAGES.items():
            if isinstance(cause, ImportError | OSError | RuntimeError) and words.search(str(cause)):
                return what
        cause = cause.__cause__ or cause.__context__
    return ""


@contextmanager
def interruptible(control: Control) -> Iterator[None]:
    """While inside, the first Ctrl-C (or SIGTERM) sets ``control.cancelled``; the second raises KeyboardInterrupt.

    Outside the main thread it does nothing, because Python allows no signal handlers there. Signals that the process
    ignores stay ignored, such as Ctrl-C in the background jobs of a shell.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if control.cancelled.is_set():
            raise KeyboardInterrupt
        control.cancelled.set()

    heeded = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) not in {signal.SIG_IGN, None}]
    previous = {number: signal.signal(number, handle) for number in heeded}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
