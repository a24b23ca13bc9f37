"""Agreement among the processes that train together: one decides for all, and what fails in one is an error in all.

Errors travel as data, so that no process waits for another one that has failed. Processes meet only where all of them
come by: a process that ends on the way meets the others at the end of :meth:`Meeting.together`.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from remat_cli.errors import RematError, UsageError

Entry = TypeVar("Entry")


def processes() -> int:
    """The number of processes that train together."""
    import torch

    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def is_first() -> bool:
    """Whether this is process 0, or the only one."""
    import torch

    return processes() == 1 or torch.distributed.get_rank() == 0


def gathered(entry: Entry) -> list[Entry]:
    """The entries of all processes, in their order. All of them have to call this."""
    if processes() == 1:
        return [entry]
    import torch

    entries: list[Any] = [None] * processes()
    torch.distributed.all_gather_object(entries, entry)
    return entries


def decided_by_first(make: Callable[[], Entry]) -> Entry:
    """What ``make`` returns in process 0, in all processes; the others do not call it.

    Raises:
        RematError: From ``make``, in all of them.
        UsageError: In the others, if ``make`` raises anything else in process 0.
    """
    if processes() == 1:
        return make()
    import torch

    answer: list[Any] = [None]
    try:
        if is_first():
            answer = [_answer(make)]
    except BaseException as error:
        # The others wait for an answer.
        answer = [(None, (UsageError, f"process 0 could not plan: {type(error).__name__}: {error}", ""))]
        raise
    finally:
        torch.distributed.broadcast_object_list(answer, src=0)
    made, problem = answer[0]
    if problem is not None:
        kind, message, hint = problem
        raise kind(message, hint=hint)
    return made  # type: ignore[no-any-return]  # broadcast as an object


def _answer(make: Callable[[], Entry]) -> tuple[Entry | None, tuple[type, str, str] | None]:
    """What ``make`` returns, or the error instead, in a form that can be sent."""
    try:
        return make(), None
    except RematError as error:
        return None, (type(error), error.message, error.hint)


class Meeting:
    """Processes that fit the same module at once, and compare what they come to.

    Attributes:
        open: Whether they are inside of :meth:`together`.
    """

    def __init__(self) -> None:
        self.open = False

    def entries(self, entry: Entry) -> list[Entry | None]:
        """The entries of all processes, in their order; None for those that need no more meetings.

        Inside of :meth:`together`, every process that is not at its end has to call this.

        Raises:
            UsageError: If one of them has failed.
        """
        met = gathered(("entry", entry))
        _require_none_failed(met)
        return [own if kind == "entry" else None for kind, own in met]

    def least(self, number: int) -> int:
        """The least of a number that each process has; see :meth:`entries`."""
        return min(one for one in self.entries(number) if one is not None)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """A context that all processes enter, and that ends when all have reached its end.

        Raises:
            UsageError: If another process has failed.
        """
        if processes() == 1:
            yield
            return
        self.open, failed = True, ""
        try:
            yield
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"
            raise
        finally:
            self.open = False
            met = _until_all_are_done(failed)
            if not failed:
                _require_none_failed(met)


def _until_all_are_done(failed: str) -> list[tuple[str, Any]]:
    """Wait for processes that still meet. Returns what all say of their end: ``done``, or ``failed`` and why."""
    while True:
        met = gathered(("failed", failed) if failed else ("done", None))
        if all(kind != "entry" for kind, _ in met):
            return met


def _require_none_failed(met: list[tuple[str, Any]]) -> None:
    problem = next((why for kind, why in met if kind == "failed"), None)
    if problem is not None:
        raise UsageError(f"another process could not fit its module: {problem}")
