"""Keeps Inductor from joining groups into one loop where that would raise the peak over that of the plan.

A plan may compute the same value twice, far apart, and Inductor likes to make one loop of what reads the same memory:
then all that the loop reads and makes is there at once. Before two loops are joined, the order that Inductor would run
is simulated, and the loops stay apart if the peak would be above both the plan's and that without any joining.

Graphs that no plan has made are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from remat_cli.frontends.torch.private import (
    buffer_sizes,
    compiled_meta,
    loop_choices,
    set_loop_choices,
)

LIMIT = "remat_limit"
"""Key of a :class:`Limit` in the ``meta`` of a graph module that was made by plan."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What a half of a step may take.

    Attributes:
        peak_bytes: Bytes beside the step's inputs, parameters and buffers.
        given: Bytes of the inputs of the half that it frees after their last use, by name.
    """

    peak_bytes: int
    given: Mapping[str, int]


def keep_apart() -> None:
    """From now on, loops of graphs that a plan has made are joined only within its peak."""
    choices = loop_choices()
    if not getattr(type(choices), "remat", False):
        set_loop_choices(_limited(type(choices))())


def _limited(kind: Any) -> Any:
    """The class of Inductor's choices ``kind``, with the check for graphs that a plan has made."""

    class Limited(kind):  # type: ignore[misc]  # torch is Any to the type checker
        remat = True

        @staticmethod
        def can_fuse(scheduler: Any, node1: Any, node2: Any, shared_data_score: int) -> bool:
            if not kind.can_fuse(scheduler, node1, node2, shared_data_score):
                return False
            limit = compiled_meta().get(LIMIT)
            if limit is None:
                return True
            if getattr(scheduler, LIMIT, None) is None:
                setattr(scheduler, LIMIT, _Schedule.of(scheduler, limit))
            return bool(getattr(scheduler, LIMIT).allows(node1, node2))

        def uuid(self) -> str:
            return f"remat {kind.__module__}.{kind.__qualname__}"

    return Limited


@dataclass(slots=True)
class _Schedule:
    """The operations of a graph before any are joined, by their position.

    Attributes:
        scheduler: Inductor's scheduler.
        names: The name of each operation.
        reads: The buffers that each reads, by number.
        makes: The buffers that each makes.
        before: The operations that have to run before each.
        sizes: Bytes that each buffer takes when it is made, and gives back after its last use.
        kept: The buffers that are results.
        given_bytes: Bytes that are there at the start.
        limit_bytes: The peak that is allowed.
    """

    scheduler: Any
    names: list[str]
    reads: list[list[int]]
    makes: list[list[int]]
    before: list[list[int]]
    sizes: list[tuple[int, int]]
    kept: set[int]
    given_bytes: int
    limit_bytes: int = 0
    known: dict[tuple[int, ...], bool] = field(default_factory=dict)

    @classmethod
    def of(cls, scheduler: Any, limit: Limit) -> _Schedule:
        """The operations of ``scheduler``, none of which are joined yet."""
        nodes = list(scheduler.nodes)
        made = buffer_sizes(scheduler)
        number = {name: k for k, name in enumerate([*limit.given, *made.sizes])}
        sizes = [(0, size) for size in limit.given.values()] + list(made.sizes.values())
        at = {name: k for k, node in enumerate(nodes) for name in node.get_buffer_names()}
        reads = [
            sorted({number[real] for name in made.read_by(node) if (real := made.real(name)) in number})
            for node in nodes
        ]
        found = cls(
            scheduler=scheduler,
            names=[node.get_name() for node in nodes],
            reads=reads,
            makes=[[number[name] for name in node.get_buffer_names() if name in made.sizes] for node in nodes],
            before=[
                sorted({at[dep.name] for dep in node.unmet_dependencies if dep.name in at} - {k})
                for k, node in enumerate(nodes)
            ],
            sizes=sizes,
            kept={number[made.real(name)] for name in made.results if made.real(name) in number},
            given_bytes=sum(limit.given.values()),
        )
        alone = found._peak(list(range(len(nodes))))
        found.limit_bytes = max(limit.peak_bytes, alone)
        return found

    def allows(self, node1: Any, node2: Any) -> bool:
        """Whether the peak stays within the limit if two operations, or loops, are joined."""
        loop_of = self.scheduler.name_to_fused_node
        first: dict[int, int] = {}
        groups = [first.setdefault(id(loop_of[name]), k) for k, name in enumerate(self.names)]
        joined = {first.get(id(node)) for node in (node1, node2)} - {None}
        if len(joined) < 2:
            return True
        low = min(k for k in joined if k is not None)
        key = tuple(low if group in joined else group for group in groups)
        if key not in self.known:
            self.known[key] = self._peak(key) <= self.limit_bytes
        return self.known[key]

    def _peak(self, groups: Sequence[int]) -> int:
        """The peak if operations with the same number in ``groups`` are one loop, without joining others."""
        members: dict[int, list[int]] = {}
        for k, group in enumerate(groups):
            members.setdefault(group, []).append(k)
        order = self._order(groups, members)
        last: dict[int, int] = {}
        reads: list[set[int]] = []
        for step, group in enumerate(order):
            read = {buffer for k in members[group] for buffer in self.reads[k]}
            reads.append(read)
            last.update(dict.fromkeys(read, step))
        live = peak = self.given_bytes
        ends: list[list[int]] = [[] for _ in order]
        for buffer, step in last.items():
            if buffer not in self.kept:
                ends[step].append(buffer)
        for step, group in enumerate(order):
            inside = set()
            for k in members[group]:
                for buffer in self.makes[k]:
                    taken, _ = self.sizes[buffer]
                    if buffer not in self.kept and last.get(buffer, step) == step:
                        if len(members[group]) > 1 and buffer in last:
                            inside.add(buffer)  # it lives in the loop alone
                            continue
                        if buffer not in last:
                            ends[step].append(buffer)
                    live += taken
            peak = max(peak, live)
            live -= sum(self.sizes[buffer][1] for buffer in ends[step] if buffer not in inside)
        return peak

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
