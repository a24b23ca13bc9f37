"""Joins operations into nodes: those whose results are of no use alone, and small ones. Knows nothing of TensorFlow.

Keras writes a batch normalisation as twenty operations, most of them on a number per channel. As nodes of their own
they would triple the graph, and no plan would gain by them. Two rules join them, and each keeps the order one in which
everything can run:

*A producer joins its only reader* if what it makes is at least as large as what the reader makes: whoever would keep
the first could keep the second instead. All that it reads and that takes memory must still be needed after the reader;
otherwise it would live longer than before.

*A small operation joins an earlier node*, the latest of those that make what it reads, if it reads nothing large or
that node makes nothing large: its results are small enough to be kept always, wherever they are made.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Item:
    """An operation to be joined.

    Attributes:
        reads: The roots that it reads: (item, output) of other items; memory that is always there is left out.
        sizes: Bytes of its outputs.
        pure: Whether it may run any number of times.
        phase: Operations of different phases are not joined.
    """

    reads: frozenset[tuple[int, int]]
    sizes: tuple[int, ...]
    pure: bool
    phase: str


@dataclass(slots=True)
class _Group:
    """Joined items; ``at`` is the item at whose place in the order it runs."""

    items: list[int]
    at: int
    pure: bool
    phase: str
    makes: set[tuple[int, int]] = field(default_factory=set)


def group(items: Sequence[Item], kept: Iterable[tuple[int, int]], small: int) -> list[list[int]]:
    """The items of each node, in an order in which the nodes can run; the items of a node ascend.

    Args:
        items: The operations, each after those that it reads.
        kept: Outputs that something else reads at the end.
        small: Most bytes of an output that counts as small.
    """
    grouping = _Grouping(items, frozenset(kept), small)
    grouping.join_producers()
    grouping.join_small()
    grouping.join_producers()
    return grouping.found()


class _Grouping:
    """Groups under construction."""

    def __init__(self, items: Sequence[Item], kept: frozenset[tuple[int, int]], small: int) -> None:
        self.items = items
        self.kept = kept
        self.small = small
        self.of = list(range(len(items)))
        self.groups = {
            k: _Group([k], k, item.pure, item.phase, {(k, o) for o in range(len(item.sizes))})
            for k, item in enumerate(items)
        }
        self.readers: dict[tuple[int, int], set[int]] = defaultdict(set)
        for k, item in enumerate(items):
            for root in item.reads:
                self.readers[root].add(k)

    def size(self, root: tuple[int, int]) -> int:
        return self.items[root[0]].sizes[root[1]]

    def outside(self, group: _Group) -> list[tuple[int, int]]:
        """The outputs of a group that others read."""
        name = self.of[group.items[0]]
        return [r for r in group.makes if r in self.kept or any(self.of[k] != name for k in self.readers[r])]

    def reading(self, group: _Group) -> set[int]:
        """The groups that read what a group makes."""
        name = self.of[group.items[0]]
        return {self.of[k] for root in group.makes for k in self.readers[root]} - {name}

    def inputs(self, group: _Group) -> set[tuple[int, int]]:
        name = self.of[group.items[0]]
        return {root for k in group.items for root in self.items[k].reads if self.of[root[0]] != name}

    def join(self, first: int, second: int, at: int) -> None:
        """Make one group, named ``second``, of two; it runs at ``at``."""
        gone, kept = self.groups.pop(first), self.groups[second]
        for k in gone.items:
            self.of[k] = second
        kept.items = sorted({*kept.items, *gone.items})
        kept.makes |= gone.makes
        kept.at = at

    def join_producers(self) -> None:
        """Join each group to its only reader where that is of no harm."""
        joined = True
        while joined:
            joined = False
            for name in sorted(self.groups, key=lambda g: self.groups[g].at):
                reader = self._only_reader(name)
                if reader is not None:
                    self.join(name, reader, self.groups[reader].at)
                    joined = True

    def _only_reader(self, name: int) -> int | None:
        """The group that the group ``name`` may join; None if there is none."""
        group = self.groups[name]
        reading = self.reading(group)
        if not group.pure or len(reading) != 1 or any(root in self.kept for root in group.makes):
            return None
        [reader] = reading
        other = self.groups[reader]
        if not other.pure or other.phase != group.phase or not self._no_worse(group, other):
            return None
        return reader if all(self._needed_after(root, group, other) for root in self.inputs(group)) else None

    def _no_worse(self, group: _Group, reader: _Group) -> bool:
        made, wanted = (sum(map(self.size, self.outside(g))) for g in (group, reader))
        trivial = made <= self.small and all(self.size(root) <= self.small for root in self.inputs(group))
        return made + self.small >= wanted or trivial

    def _needed_after(self, root: tuple[int, int], group: _Group, reader: _Group) -> bool:
        """Whether a value lives until after ``reader`` even if ``group`` does not run that late."""
        if self.size(root) <= self.small or root in self.kept:
            return True
        names = {self.of[k] for k in self.readers[root]}
        return any(self.groups[name].at >= reader.at for name in names if self.groups[name] is not group)

    def join_small(self) -> None:
        """Join small operations to the latest group that makes what they read, or to another such reader of it."""
        recent: dict[tuple[int, int] | None, int] = {}
        for name in sorted(self.groups, key=lambda g: self.groups[g].at):
            group = self.groups[name]
            if not self._only_small_outside(group):
                continue
            inputs = self.inputs(group)
            large = [root for root in inputs if self.size(root) > self.small]
            before = [self.groups[self.of[root[0]]] for root in inputs]
            latest = max(before, key=lambda g: g.at, default=None)
            target = self._target(group, latest, large, recent)
            if target is not None:
                self.join(name, target, self.groups[target].at)
                name = target
            if self._only_small_outside(self.groups[name]):
                recent |= dict.fromkeys(large, name)
                if not inputs:
                    recent[None] = name

    def _only_small_outside(self, group: _Group) -> bool:
        return group.pure and all(self.size(root) <= self.small for root in self.outside(group))

    def _target(
        self,
        group: _Group,
        latest: _Group | None,
        large: Sequence[tuple[int, int]],
        recent: dict[tuple[int, int] | None, int],
    ) -> int | None:
        """The group to join: it runs no earlier than everything that ``group`` reads."""
        alike = latest is not None and latest.pure and latest.phase == group.phase
        if latest is not None and alike and (not large or self._only_small_outside(latest)):
            return self.of[latest.items[0]]
        nothing: list[tuple[int, int] | None] = [] if latest is not None else [None]
        for root in large or nothing:
            found = recent.get(root)
            other = self.groups.get(found) if found is not None else None
            if other is None or other is group or other.phase != group.phase:
                continue
            if latest is None or other.at >= latest.at:
                return found
        return None

    def found(self) -> list[list[int]]:
        return [group.items for group in sorted(self.groups.values(), key=lambda g: (g.at, g.items[0]))]
