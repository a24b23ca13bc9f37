"""Calls in other processes of this machine, one of which may die without taking the others along."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_all_start_methods, get_context
from typing import Any

from remat_cli.control import Control

_POLL_S = 0.1


def in_processes(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], jobs: int, control: Control, timeout_s: float | None
) -> Generator[tuple[int, Any], None, None]:
    """Call ``function`` with each of ``calls``, and give their futures as they are done.

    The processes are spawned: a script that ends up here must keep what it runs under ``if __name__ == "__main__"``.

    Args:
        function: A function of a module.
        calls: Arguments, which must be such that they can travel.
        jobs: Calls at a time, at least 1.
        control: Nothing more is waited for once it stops; what still runs is ended then.
        timeout_s: After so long the process of a call is ended; its future raises TimeoutError.

    Yields:
        The index of a call and its future. That of a process that died raises ``pebble.ProcessExpired``.
    """
    from pebble import ProcessPool

    pool = ProcessPool(max_workers=max(1, min(jobs, len(calls))), context=get_context("spawn"))
    try:
        futures = {pool.schedule(function, call, timeout=timeout_s): index for index, call in enumerate(calls)}
        left = set(futures)
        while left and not control.stopping():
            done, left = wait(left, _POLL_S, FIRST_COMPLETED)
            for future in done:
                yield futures[future], future
    finally:
        pool.stop()
        pool.join()


@dataclass(slots=True)
class SharedCalls:
    """Calls that other processes take from the end of a list, one after the other, and the caller from its beginning.

    Attributes:
        pool: The processes.
        function: A function of a module.
        calls: Arguments, which must be such that they can travel.
        timeout_s: After so long the process of a call is ended.
        jobs: Calls at a time.
        left: Calls by index that nobody has taken.
        futures: Those that a process has taken.
        done: Set when no process is needed any more.
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
        """Let the processes begin. The first call waits until they are there, which the caller need not.

        Args:
            after_s: Seconds until then; processes take about one to start, and need not where all is done sooner.
        """
        self._starter = threading.Thread(target=self._start, args=(after_s,), name="remat-processes", daemon=True)
        self._starter.start()

    def end(self) -> None:
        """End what still runs."""
        self.done.set()
        with self._lock:
            self.left.clear()
        if self._starter is not None:  # a pool that is left alone leaves semaphores behind, and Python complains
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
        """What calls in processes came to, by index, once all have ended or ``control`` stops; without lost ones."""
        while (waiting := [f for f in self._taken() if not f.done()]) and not control.stopping():
            wait(waiting, _POLL_S, FIRST_COMPLETED)
        done = {index: future for index, future in self.futures.items() if future.done()}
        return {k: f.result() for k, f in done.items() if not f.cancelled() and f.exception() is None}

    def lost(self) -> dict[int, BaseException]:
        """What went wrong with calls in processes, by index: the process died, its time was up, or what was raised."""
        done = {index: future for index, future in self.futures.items() if future.done() and not future.cancelled()}
        return {index: error for index, future in sorted(done.items()) if (error := future.exception()) is not None}

    def _taken(self) -> list[Any]:
        with self._lock:
            return list(self.futures.values())

    def _hand_out(self, _: Any = None) -> None:
        """Have a process take the last call that is left."""
        with self._lock:
            if not self.left:
                return
            index = self.left.pop()
            try:
                future = self.pool.schedule(self.function, self.calls[index], timeout=self.timeout_s)
            except RuntimeError:  # its processes could not start: the caller does it all
                self.left.append(index)
                return
            self.futures[index] = future
        future.add_done_callback(self._hand_out)


@contextmanager
def shared_calls(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], jobs: int, preload: str, timeout_s: float | None
) -> Iterator[SharedCalls]:
    """Have other processes, once they are told to begin, work on ``calls`` beside the caller.

    Where the system can, the processes are forked from one that has nothing but ``preload`` and no threads, so that
    they need no time to begin; else they are spawned. What still runs at the end is ended.

    Args:
        function: A function of a module.
        calls: Arguments.
        jobs: Calls at a time, at least 1.
        preload: Module that imports what the function needs.
        timeout_s: After so long the process of a call is ended.
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
