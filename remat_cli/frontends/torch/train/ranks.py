"""Agreement among the processes that train together: one decides for all, and what fails in one is an error in all.

Errors travel as data, so that no process waits for another one that has failed. Processes meet only where all of them
come by: a process that ends on the way meets the others at the end of :meth:`Meeting.together`.
"""

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

from remat_cli.errors import RematError, UsageError

Entry = TypeVar("Entry")
Group = Any
"""A process group of PyTorch."""
LATE_S = 300.0
"""Seconds that processes have to come to a meeting in the middle of training: they compile the same, at about the same
time. Untuned."""


def processes() -> int:
    """The number of processes that train together."""
    import torch

    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def is_first() -> bool:
    """Whether this is process 0, or the only one."""
    import torch

    return processes() == 1 or torch.distributed.get_rank() == 0


def gathered(entry: Entry, group: Group | None = None) -> list[Entry]:
    """The entries of all processes, in their order. All of them have to call this.

    ``group`` is a process group of all of them; None for the default group.
    """
    if processes() == 1:
        return [entry]
    import torch

    entries: list[Any] = [None] * processes()
    torch.distributed.all_gather_object(entries, entry, group=group)
    return entries


def decided_by_first(make: Callable[[], Entry], group: Group | None = None) -> Entry:
    """What ``make`` returns in process 0, in all processes; the others do not call it.

    ``group`` is as for :func:`gathered`.

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
        torch.distributed.broadcast_object_list(answer, src=0, group=group)
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
        self._group: Group | None = None

    def entries(self, entry: Entry) -> list[Entry | None]:
        """The entries of all processes, in their order; None for those that need no more meetings.

        Inside of :meth:`together`, every process that is not at its end has to call this.

        Raises:
            UsageError: If one of them has failed.
        """
        met = gathered(("entry", entry), self._group)
        _require_none_failed(met)
        return [own if kind == "entry" else None for kind, own in met]

    def all_entries(self, entry: Entry) -> list[Entry]:
        """The entries of all processes, in their order.

        Raises:
            UsageError: If one of them has failed, or needs no more meetings.
        """
        found = self.entries(entry)
        if None in found:
            raise UsageError(
                f"process {found.index(None)} has fewer graphs than others, and processes that share parameters have "
                "the same",
                hint="all processes fit the same module, called in the same way",
            )
        return found  # type: ignore[return-value]  # none is None

    def least(self, number: int) -> int:
        """The least of a number that each process has; see :meth:`all_entries`."""
        return min(self.all_entries(number))

    def decided(self, make: Callable[[], Entry]) -> Entry:
        """What ``make`` returns in process 0; see :func:`decided_by_first`."""
        return decided_by_first(make, self._group)

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
        except Exception as error:  # the others have to hear of all of them
            failed = f"{type(error).__name__}: {error}"
            raise
        finally:
            self.open = False
            met = self._until_all_are_done(failed)
            if not failed:
                _require_none_failed(met)

    def meet_later(self) -> None:
        """Prepare meetings in the middle of training. All processes have to call this.

        They need a process group of their own, since the collectives of a step use the others.
        """
        if self._group is None and processes() > 1:
            import torch

            self._group = torch.distributed.new_group(backend="gloo")

    @contextlib.contextmanager
    def later(self) -> Iterator[None]:
        """As :meth:`together`, in the middle of training, for processes that all come within :data:`LATE_S` seconds.

        Raises:
            UsageError: If one does not, or fails.
        """
        if processes() > 1:
            import torch

            try:
                torch.distributed.monitored_barrier(self._group, timedelta(seconds=LATE_S), wait_all_ranks=True)
            except RuntimeError as error:
                raise UsageError(
                    "this process needs a plan for another form of the module, and not all others came for one within "
                    f"{LATE_S:g} s",
                    hint="call the module in the same form in all processes, in the same step; lengths may differ, the "
                    "longest in the batch that is given to fit",
                ) from error
        with self.together():
            yield

    def _until_all_are_done(self, failed: str) -> list[tuple[str, Any]]:
        """Wait for processes that still meet. Returns what all say of their end: ``done``, or ``failed`` and why."""
        while True:
            met = gathered(("failed", failed) if failed else ("done", None), self._group)
            if all(kind != "entry" for kind, _ in met):
                return met


def _require_none_failed(met: list[tuple[str, Any]]) -> None:
    problem = next((why for kind, why in met if kind == "failed"), None)
    if problem is not None:
        raise UsageError(f"another process could not fit its module: {problem}")
