"""A second search beside the first, in a thread of its own: each takes the schedules and bounds that the other finds.

Compiled loops and solvers release Python's lock, so the two keep two cores busy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from remat_cli.errors import Interrupted, LimitReached, RematError
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Context, Found, StageRecord, Task
from remat_cli.strategies.incumbent import Incumbent

Search = Callable[[Incumbent], None]
"""Improves an incumbent until its clock stops or its goal is reached."""
_POLL_S = 0.05
_END_S = 0.5
"""Seconds that the second search gets to end after the first. It is a daemon, so it keeps no process alive. Untuned."""


@dataclass(slots=True)
class Mailbox:
    """What one search has found and another has not taken yet."""

    waiting: list[Found] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, found: Found) -> None:
        """Leave a schedule, with those of its bounds that hold beyond the schedules that its search considered."""
        wide = tuple(bound for bound in found.bounds if bound.scope is not Scope.RESTRICTED)
        with self.lock:
            self.waiting.append(replace(found, bounds=wide))

    def take(self) -> tuple[Found, ...]:
        """Everything left here since the last call."""
        with self.lock:
            taken, self.waiting = tuple(self.waiting), []
        return taken


@dataclass(slots=True)
class ParallelSearch:
    """The second of two searches for a task.

    It begins when the first has a schedule, and ends with it. If what both found together is a proof, it stops the
    first, which then takes the proof.

    Attributes:
        first: The incumbent of the first search.
        second: The incumbent of the second.
        record: What happened, for the trace.
        ended: Set when the first search is over.
        proven: Set when the second search has reached the goal.
    """

    first: Incumbent
    second: Incumbent
    record: StageRecord
    ended: threading.Event = field(default_factory=threading.Event)
    proven: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def of(cls, incumbent: Incumbent, task: Task) -> ParallelSearch:
        """A second search beside the one of ``incumbent``, which gives it one of its threads."""
        context = incumbent.context
        assert context.threads is not None
        to_first, to_second = Mailbox(), Mailbox()
        second = Incumbent.of(replace(task, known=None, news=to_second.take), context, goal=incumbent.goal)
        record = StageRecord("second-search", 0, second.cost, second.bound.cost)
        pair = cls(incumbent, second, record)
        for bound in incumbent.bounds.values():
            second.raise_bound(bound)
        if incumbent.computes is not None:
            to_second.put(incumbent.found(exhausted=False))
        outer, lock = incumbent.news, threading.Lock()

        def publish(found: Found, box: Mailbox) -> None:
            box.put(found)
            with lock:
                if not pair.ended.is_set():
                    context.publish(found)

        def news() -> Iterable[Found]:
            return (*(() if outer is None else outer()), *to_first.take())

        incumbent.news = news
        incumbent.context = replace(
            context,
            publish=partial(publish, box=to_second),
            threads=context.threads - 1,
            control=context.control.stoppable(when=pair.proven.is_set),
        )
        second.context = replace(
            context,
            publish=partial(publish, box=to_first),
            threads=1,
            seed=context.seed + 1,
            control=replace(context.control.stoppable(when=pair.ended.is_set), listener=None),
            write_model=None,
            solver_log=None,
            trace=[],
        )
        return pair

    def run(self, context: Context, first: Search, second: Search) -> None:
        """Run both searches, the first one in this thread.

        Args:
            context: That of the task.
            first: Runs the first search on its incumbent.
            second: Runs the second.

        Raises:
            Interrupted, SolverUnavailable, SolverFailed: From the first search.
        """
        context.trace.append(self.record)
        thread = threading.Thread(target=self._work, args=(second,), name="remat-second-search", daemon=True)
        thread.start()
        try:
            first(self.first)
        except Interrupted:
            if context.control.cancelled.is_set():
                raise
        finally:
            self.ended.set()
            thread.join(_END_S)
            self.first.merge_news()
            self.first.context = replace(self.first.context, control=context.control)

    def _work(self, search: Search) -> None:
        second, control = self.second, self.second.context.control
        while second.computes is None and not control.stopping():
            self.ended.wait(_POLL_S)
            second.merge_news()
        try:
            if not control.stopping():
                search(second)
        except (Interrupted, LimitReached):
            pass  # it is over
        except RematError as error:
            self.record.note = error.message
        if second.done():
            self.proven.set()
