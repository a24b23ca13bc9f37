"""Calls shared with other processes of this machine. If a process dies, only its own call is lost."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_all_start_methods, get_context
from typing import Any

from remat_cli.control import Control

_POLL_S = 0.1


@dataclass(slots=True)
class SharedCalls:
    """A list of calls: other processes take them from its end, the caller takes them from its beginning.

    Attributes:
        pool: The processes.
        function: A function at the top level of a module.
        calls: Arguments of each call; they must be picklable.
        timeout_s: After so many seconds the process of a call is ended.
        jobs: Calls at a time.
        left: Indices of the calls that nobody has taken.
        futures: By index: the calls that a process has taken.
        done: Set once no process is needed any more.
    """

    pool: Any
    function: Callable[..., Any]
    calls: Sequence[tuple[Any, ...]]
    timeout_s: float | None
    jobs: int
    left: deque[int] = field(default_factory=deque)
    futures: dict[int, Any] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)
    _lock: Any = field(default_factory=threading.Lock)
    _starter: threading.Thread | None = None

    def begin(self, after_s: float = 0.0) -> None:
        """Start the processes from a thread after some seconds, so that the caller does not wait for them.

        A process takes about one second to start, so a list that is done sooner needs none.
        """
        self._starter = threading.Thread(target=self._start, args=(after_s,), name="remat-processes", daemon=True)
        self._starter.start()

    def end(self) -> None:
        """End all processes, with the calls that they still run."""
        self.done.set()
        with self._lock:
            self.left.clear()
        if self._starter is not None:  # a pool that is not stopped leaks semaphores, and Python warns of them
            self._starter.join()
            self.pool.stop()
            self.pool.join()

    def _start(self, after_s: float) -> None:
        if self.done.wait(after_s):
            return
        for _ in range(self.jobs):
            self._hand_out()

    def take(self) -> int | None:
        """The first call that nobody has taken, now the caller's own; None if there is none."""
        with self._lock:
            return self.left.popleft() if self.left else None

    def results(self, control: Control) -> dict[int, Any]:
        """Results of the calls in processes, by index; waits until all have ended or ``control`` stops.

        Calls that were lost are missing, see :meth:`lost`.
        """
        while (waiting := self._running()) and not control.stopping():
            wait(waiting, _POLL_S, FIRST_COMPLETED)
        done = {index: future for index, future in self.futures.items() if future.done()}
        return {k: f.result() for k, f in done.items() if not f.cancelled() and f.exception() is None}

    def lost(self) -> dict[int, BaseException]:
        """Errors of the calls in processes, by index: a dead process, a timeout, or the exception of the call."""
        done = {index: future for index, future in self.futures.items() if future.done() and not future.cancelled()}
        return {index: error for index, future in sorted(done.items()) if (error := future.exception()) is not None}

    def _running(self) -> list[Any]:
        with self._lock:
            return [future for future in self.futures.values() if not future.done()]

    def _hand_out(self, _: Any = None) -> None:
        """Give the last call that is left to a process."""
        with self._lock:
            if not self.left:
                return
            index = self.left.pop()
            try:
                future = self.pool.schedule(self.function, self.calls[index], timeout=self.timeout_s)
            except RuntimeError:  # no process could start: the caller makes all calls
                self.left.append(index)
                return
            self.futures[index] = future
        future.add_done_callback(self._hand_out)


@contextmanager
def shared_calls(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], jobs: int, preload: str, timeout_s: float | None
) -> Iterator[SharedCalls]:
    """Share ``calls`` between the caller and other processes, which start with :meth:`SharedCalls.begin`.

    If the system has a fork server, the processes are forked from one that has imported ``preload`` and has no threads,
    so they need not import it again. Otherwise they are spawned. Calls that still run at the end are ended.
    """
    from pebble import ProcessPool

    forking = "forkserver" in get_all_start_methods()
    system: Any = get_context("forkserver" if forking else "spawn")
    if forking:
        system.set_forkserver_preload([preload])
    pool = ProcessPool(max_workers=jobs, context=system)
    shared = SharedCalls(pool, function, calls, timeout_s, jobs, deque(range(len(calls))))
    try:
        yield shared
    finally:
        shared.end()
