"""Running something long so that its deadline and Ctrl-C hold, whatever it is busy with."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Generic, NoReturn, TypeVar

from remat_cli.control import Control

T = TypeVar("T")

_POLL_S = 0.05


_LEAVE_WITHIN_S = 5.0
_unbroken = threading.Lock()
_farewells: list[Callable[[], None]] = []


def before_leaving(farewell: Callable[[], None]) -> None:
    """Have ``farewell`` called by :func:`leave`: quick, and without fail."""
    _farewells.append(farewell)


class Abandoned(Exception):
    """The work did not stop in time; it goes on in a thread that ends with the process."""


class _Work(Generic[T]):
    """A function in a thread of its own, and what became of it."""

    def __init__(self, function: Callable[[], T]) -> None:
        self.done = threading.Event()
        self.value: T | None = None
        self.error: BaseException | None = None
        self._function = function

    def __call__(self) -> None:
        try:
            self.value = self._function()
        except BaseException as error:  # handed to the waiting thread as it is
            self.error = error
        finally:
            self.done.set()


def run(function: Callable[[], T], control: Control, *, grace_s: float) -> T:
    """Run ``function`` in a worker thread and wait for it, with the main thread free for signals.

    Args:
        function: The work; expected to end soon after ``control.stopping()`` becomes true.
        control: Its deadline and interruption flag.
        grace_s: Seconds that it gets to end by itself once it should stop.

    Raises:
        Abandoned: If it is still busy after that.
    """
    work = _Work(function)
    # A daemon: a solver that ignores its limits must not keep the process alive.
    threading.Thread(target=work, name="remat-work", daemon=True).start()
    patience_ends_s: float | None = None
    # Never Thread.join: a signal inside it makes Python believe that the thread has ended.
    while not work.done.wait(_POLL_S):
        if control.stopping():
            # By the clock, not by counting turns: a thread busy in C code may hold us up for a second at each.
            if patience_ends_s is None:
                patience_ends_s = time.monotonic() + grace_s
            if time.monotonic() >= patience_ends_s:
                raise Abandoned
    if work.error is not None:
        raise work.error
    return work.value  # type: ignore[return-value]  # set whenever there is no error


@contextmanager
def unbroken() -> Iterator[None]:
    """For a short stretch in a worker thread that :func:`leave` must not cut in two.

    Between the start of another program and the moment when its end is bound to ours, say.
    """
    with _unbroken:
        yield


def leave(code: int) -> NoReturn:
    """End the process now, whatever other threads are busy with.

    Tearing down Python under a solver that did not stop in time could crash, so no cleanup runs.
    """
    # Held to the end, so that nothing begins any more; but nobody who is stuck in there may keep us.
    _unbroken.acquire(timeout=_LEAVE_WITHIN_S)
    for farewell in _farewells:
        farewell()
    os._exit(code)


@contextmanager
def interruptible(control: Control) -> Iterator[None]:
    """While inside, the first Ctrl-C (or SIGTERM) sets ``control.cancelled``; the second raises KeyboardInterrupt.

    Does nothing outside the main thread, where Python allows no signal handlers, and leaves signals alone that the
    process ignores, as a shell's background jobs do with Ctrl-C.
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
