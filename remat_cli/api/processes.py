"""Calls in other processes of this machine, one of which may die without taking the others along."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from multiprocessing import get_context
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
