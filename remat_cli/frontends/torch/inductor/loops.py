"""Keeps Inductor from joining groups into one loop, or loops into one call, where that would raise the peak.

A plan may compute the same value twice, far apart, and Inductor likes to make one loop of what reads the same memory:
then all that the loop reads and makes is there at once. Before two loops are joined, the order that Inductor would run
is simulated, and the loops stay apart if the peak would be above both the plan's and that without any joining.

On a CPU, Inductor makes one C++ function of all loops between two calls of libraries. It allocates what the function
makes before the call, and frees what it reads after it. A function ends early where that would raise the peak.

Graphs that no plan has made are left alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from remat_cli.frontends.torch.compat.inductor import (
    buffer_sizes,
    called_by,
    choosing_loops,
    compiled_meta,
    ending_calls_where,
    is_loop,
    loop_choices,
    makes_code,
)
from remat_cli.frontends.torch.types import Scheduler, SchedulerNode

LIMIT = "remat_limit"
"""Key of a :class:`Limit` in the ``meta`` of a graph module that was made by plan."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What a half of a step may take.

    Attributes:
        peak_bytes: Bytes beside the step's inputs, parameters and buffers.
        given: Bytes of the inputs of the half that it frees after their last use, by name.
        workspaces: Bytes that calls of libraries take meanwhile, by the names of their nodes.
    """

    peak_bytes: int
    given: Mapping[str, int]
    workspaces: Mapping[str, int] = field(default_factory=dict)


@contextlib.contextmanager
def calls_end_within_limits() -> Iterator[None]:
    """Within this context, C++ functions of graphs that a plan has made end where they would exceed its peak."""
    with ending_calls_where(_ends):
        yield


@contextlib.contextmanager
def loops_join_within_limits() -> Iterator[None]:
    """Within this context, loops of graphs that a plan has made are joined only within its peak, in this thread."""
    with choosing_loops(_limited(type(loop_choices()))()):
        yield


def loops_are_limited() -> bool:
    """Whether :func:`loops_join_within_limits` holds in this thread."""
    return getattr(type(loop_choices()), "remat", False)


def _limited(kind: Any) -> Any:
    """The class of Inductor's choices ``kind``, with the check for graphs that a plan has made."""

    class Limited(kind):  # type: ignore[misc]  # torch is Any to the type checker
        remat = True

        @staticmethod
        def can_fuse(scheduler: Scheduler, node1: SchedulerNode, node2: SchedulerNode, shared_data_score: int) -> bool:
            if not kind.can_fuse(scheduler, node1, node2, shared_data_score):
                return False
            schedule = _schedule(scheduler)
            return schedule is None or schedule.allows(node1, node2)

        def uuid(self) -> str:
            return f"remat {kind.__module__}.{kind.__qualname__}"

    return Limited


def _schedule(scheduler: Scheduler) -> _Schedule | None:
    """What is known of the graph that ``scheduler`` schedules; None if no plan has made it."""
    limit = compiled_meta().get(LIMIT)
    if limit is None:
        return None
    if getattr(scheduler, LIMIT, None) is None:  # it is asked first before anything is joined
        setattr(scheduler, LIMIT, _Schedule.of(scheduler, limit))
    schedule: _Schedule = getattr(scheduler, LIMIT)
    return schedule


def _ends(scheduler: Scheduler) -> bool:
    """Whether a C++ function ends after the operation for which code was made last."""
    schedule = _schedule(scheduler)
    if schedule is None:
        return False
    if schedule.last is None:
        schedule.last = schedule.last_of_calls()
    return scheduler.current_node.get_name() in schedule.last


@dataclass(slots=True)
class _Schedule:
    """The operations of a graph before any are joined, by their position.

    Attributes:
        scheduler: Inductor's scheduler.
        names: The name of each operation.
        place: The position of each operation by name, and of what an operation consists of.
        reads: The buffers that each reads, by number.
        makes: The buffers that each makes, or makes a part of.
        before: The operations that have to run before each.
        sizes: Bytes that each buffer takes when it is made, and gives back after its last use.
        kept: The buffers that are results.
        joined: The buffers that several operations make, each a part.
        workspaces: Bytes that each operation takes while it runs.
        given_bytes: Bytes that are there at the start.
        limit_bytes: The peak that is allowed.
        known: For ways to join operations, by the number of the loop of each: whether the peak is within the limit.
        last: The names of the last loops of C++ functions that end early; None before code is made.
    """

    scheduler: Scheduler
    names: list[str]
    place: dict[str, int]
    reads: list[list[int]]
    makes: list[list[int]]
    before: list[list[int]]
    sizes: list[tuple[int, int]]
    kept: set[int]
    joined: set[int]
    workspaces: list[int]
    given_bytes: int
    limit_bytes: int = 0
    known: dict[tuple[int, ...], bool] = field(default_factory=dict)
    last: frozenset[str] | None = None

    @classmethod
    def of(cls, scheduler: Scheduler, limit: Limit) -> _Schedule:
        """The operations of ``scheduler``, none of which are joined yet."""
        nodes = list(scheduler.nodes)
        buffers = buffer_sizes(scheduler)
        number = {name: k for k, name in enumerate([*limit.given, *buffers.sizes])}
        sizes = [(0, size) for size in limit.given.values()] + list(buffers.sizes.values())
        at = {name: k for k, node in enumerate(nodes) for name in node.get_buffer_names()}
        reads = [
            sorted({number[real] for name in buffers.read_by(node) if (real := buffers.real(name)) in number})
            for node in nodes
        ]
        schedule = cls(
            scheduler=scheduler,
            names=[node.get_name() for node in nodes],
            place={one.get_name(): k for k, node in enumerate(nodes) for one in (node, *node.get_nodes())},
            reads=reads,
            makes=[
                sorted({number[real] for name in node.get_buffer_names() if (real := buffers.real(name)) in number})
                for node in nodes
            ],
            before=[
                sorted({at[dep.name] for dep in node.unmet_dependencies if dep.name in at} - {k})
                for k, node in enumerate(nodes)
            ],
            sizes=sizes,
            kept={number[buffers.real(name)] for name in buffers.results if buffers.real(name) in number},
            joined={number[name] for name in buffers.joined if name in number},
            workspaces=[limit.workspaces.get(called_by(node), 0) for node in nodes],
            given_bytes=sum(limit.given.values()),
        )
        # Where Inductor's own order takes more than the plan even without a join, joins must not make it worse.
        alone = schedule._peak(list(range(len(nodes))))
        schedule.limit_bytes = max(limit.peak_bytes, alone)
        return schedule

    def allows(self, node1: SchedulerNode, node2: SchedulerNode) -> bool:
        """Whether the peak stays within the limit if two operations, or loops, are joined."""
        loop_of = self.scheduler.name_to_fused_node  # Inductor keeps it up to date while it joins loops
        first: dict[int, int] = {}
        groups = [first.setdefault(id(loop_of[name]), k) for k, name in enumerate(self.names)]
        joined = {first.get(id(node)) for node in (node1, node2)} - {None}
        if len(joined) < 2:
            return True
        low = min(k for k in joined if k is not None)
        # Inductor asks about the same pair again after each round; what is joined since is part of the key.
        key = tuple(low if group in joined else group for group in groups)
        if key not in self.known:
            self.known[key] = self._peak(key) <= self.limit_bytes
        return self.known[key]

    def _peak(self, groups: Sequence[int]) -> int:
        """The peak if operations with the same number in ``groups`` are one loop, without joining others."""
        members: dict[int, list[int]] = {}
        for k, group in enumerate(groups):
            members.setdefault(group, []).append(k)
        live = peak = self.given_bytes
        order = [members[group] for group in self._order(groups, members)]
        for loop, (taken, freed) in zip(order, self._memory(order), strict=True):
            live += taken
            peak = max(peak, live + sum(self.workspaces[k] for k in loop))
            live -= freed
        return peak

    def last_of_calls(self) -> frozenset[str]:
        """The names of the loops after which a C++ function must end to stay within the limit, in Inductor's order."""
        operations = list(self.scheduler.nodes)
        order = [sorted({self.place[one.get_name()] for one in operation.get_nodes()}) for operation in operations]
        ends: set[str] = set()
        live, waiting, before = self.given_bytes, 0, ""  # bytes that the function frees at its end, and its last loop
        for operation, (taken, freed) in zip(operations, self._memory(order), strict=True):
            if not is_loop(operation):  # a call of a library: the function before it has ended
                live, waiting, before = live - waiting + taken - freed, 0, ""
                continue
            # The function allocates what its loops make before it runs, and frees what they read after it has run.
            if before and live + taken > self.limit_bytes:
                ends.add(before)
                live, waiting = live - waiting, 0
            live, waiting = live + taken, waiting + freed
            before = operation.get_name() if makes_code(operation) else before
        return frozenset(ends)

    def _memory(self, order: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
        """Bytes that each loop takes when it begins, and gives back when it ends; loops are lists of operations."""
        last: dict[int, int] = {}
        for step, members in enumerate(order):
            touched = (buffer for k in members for buffer in (*self.reads[k], *self.makes[k]))
            last.update(dict.fromkeys(touched, step))
        ends: list[list[int]] = [[] for _ in order]
        for buffer, step in last.items():
            if buffer not in self.kept:
                ends[step].append(buffer)
        made: set[int] = set()
        for step, members in enumerate(order):
            new = {buffer for k in members for buffer in self.makes[k]} - made
            made |= new
            inside: set[int] = set()
            if len(members) > 1:  # what a loop makes and reads, and nothing else reads, lives in the loop alone
                read = {buffer for k in members for buffer in self.reads[k]}
                inside = (new & read & set(ends[step])) - self.joined
            yield (
                sum(self.sizes[buffer][0] for buffer in new - inside),
                sum(self.sizes[buffer][1] for buffer in ends[step] if buffer not in inside),
            )

    def _order(self, groups: Sequence[int], members: Mapping[int, Sequence[int]]) -> list[int]:
        """The loops in the order in which Inductor would run them: as they are, but for what one needs before it."""
        order: list[int] = []
        seen: set[int] = set()
        for start in members:
            stack = [(start, False)]
            while stack:
                group, done = stack.pop()
                if done:
                    order.append(group)
                elif group not in seen:
                    seen.add(group)
                    stack.append((group, True))
                    needed = sorted({groups[b] for k in members[group] for b in self.before[k]} - {group}, reverse=True)
                    stack += [(other, False) for other in needed if other not in seen]
        return order
