"""Groups equations into the operations of a graph, as XLA would fuse them.

Run one by one, equations write every intermediate result to memory: a batch norm leaves five arrays as large as its
input. A compiler computes cheap results again wherever they are read instead. So does this:

1. A cheap result (:data:`~.primitives.CHEAP`) is not kept if all it is computed from is hardly larger than itself:
   every reader computes it again. A normalised, activated or dropped-out copy of a product lives on as that product.
2. A cheap group joins its reader, if nothing larger than its own result has to live longer for it. If it is computed
   from one large array, it may join several: the sign of an array that is there anyway is not kept beside it.
3. A cheap group joins the operation that makes what it reads, if that has no other reader: a sum of a product and a
   residual becomes one operation.
4. A reduction to something small joins the operation that makes what it reduces: means and variances, gradients of
   biases.

What is left between groups are the values of the graph. This module knows sizes and edges only, not JAX.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

ROOM = 1.25
"""A result is computed again if what it is computed from has at most so many times its bytes: a mask of a byte for
each number of four costs a quarter."""
_SMALL_SHARE = 1024
"""Results below this share of the largest one count as small, and small ones may be kept or not as it falls out."""
_SMALL_LEAST = 256
_LONGEST = 64
"""Most equations that a reader computes again."""


@dataclass(frozen=True, slots=True)
class Item:
    """An equation.

    Attributes:
        reads: The variables that it reads, without those that are always there.
        makes: The variables that it makes.
        cheap: Whether its readers may compute it again.
        reduction: Whether it reads every number once, and makes something smaller.
        backward: Whether it belongs to the backward pass.
    """

    reads: tuple[int, ...]
    makes: tuple[int, ...]
    cheap: bool = False
    reduction: bool = False
    backward: bool = False


@dataclass(slots=True)
class Group:
    """Equations that run as one operation.

    Attributes:
        makes: The variables that it makes.
        reads: The variables that it reads from other groups.
        at: Position of its last root among the equations: its place in the order.
        light: Whether it consists of cheap equations and reductions.
        cheap: Whether it consists of cheap equations.
        backward: Whether it belongs to the backward pass.
    """

    makes: set[int]
    reads: set[int]
    at: int
    light: bool
    cheap: bool
    backward: bool


def contracted(items: Sequence[Item], sizes: Mapping[int, int], outputs: frozenset[int]) -> list[Group]:
    """The groups of ``items``, in order of execution.

    Args:
        items: The equations, in order of execution.
        sizes: Bytes of each variable.
        outputs: The variables that have to be there at the end.
    """
    largest = max((sizes[made] for item in items for made in item.makes), default=0)
    work = _Contraction(items, sizes, outputs, max(_SMALL_LEAST, largest // _SMALL_SHARE))
    work.keep_or_repeat()
    work.gather()
    work.join()
    return sorted(work.groups.values(), key=lambda group: group.at)


def members_of(items: Sequence[Item], groups: Sequence[Group]) -> list[list[int]]:
    """The equations of every group, in order, with those that it computes again."""
    producer = _producers(items)
    return [_members(items, producer, group) for group in groups]


def _producers(items: Sequence[Item]) -> dict[int, int]:
    return {made: index for index, item in enumerate(items) for made in item.makes}


def _members(items: Sequence[Item], producer: Mapping[int, int], group: Group) -> list[int]:
    members: set[int] = set()
    stack = [producer[variable] for variable in group.makes]
    while stack:
        index = stack.pop()
        if index not in members:
            members.add(index)
            stack += [producer[read] for read in items[index].reads if read not in group.reads]
    return sorted(members)


@dataclass(slots=True)
class _Contraction:
    """The work on one step.

    Attributes:
        items, sizes, outputs: See :func:`contracted`.
        small: Bytes below which a result counts as small.
        kept: The variables that are kept.
        sources: What every other variable is computed from.
        groups: The groups, by number.
        maker: The group that makes each kept variable.
        readers: The groups that read each kept variable.
        producer: The equation that makes each variable.
    """

    items: Sequence[Item]
    sizes: Mapping[int, int]
    outputs: frozenset[int]
    small: int
    kept: set[int] = field(default_factory=set)
    sources: dict[int, frozenset[int]] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    maker: dict[int, int] = field(default_factory=dict)
    readers: dict[int, set[int]] = field(default_factory=dict)
    producer: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        """Find what makes each variable."""
        self.producer = _producers(self.items)

    def bytes_of(self, variables: frozenset[int] | set[int]) -> int:
        return sum(self.sizes[variable] for variable in variables)

    def keep_or_repeat(self) -> None:
        """Decide which variables are kept, see 1."""
        closure: dict[int, frozenset[int]] = {}
        for index, item in enumerate(self.items):
            if not item.cheap:
                self.kept.update(item.makes)
                continue
            sources, members = set[int](), {index}
            for read in item.reads:
                if read in self.kept:
                    sources.add(read)
                else:
                    sources |= self.sources[read]
                    members |= closure[read]
            total = self.bytes_of(sources)
            for made in item.makes:
                fits = total <= ROOM * self.sizes[made] + self.small and len(members) <= _LONGEST
                if made in self.outputs or not fits:
                    self.kept.add(made)
                else:
                    self.sources[made], closure[made] = frozenset(sources), frozenset(members)

    def gather(self) -> None:
        """A group for every equation with a kept result."""
        for index, item in enumerate(self.items):
            makes = self.kept.intersection(item.makes)
            if not makes:
                continue
            reads = set[int]()
            for read in item.reads:
                reads |= {read} if read in self.kept else self.sources[read]
            light = item.cheap or item.reduction
            self.groups[index] = Group(makes, reads, index, light, item.cheap, item.backward)
            for made in makes:
                self.maker[made] = index
            for read in reads:
                self.readers.setdefault(read, set()).add(index)

    def join(self) -> None:
        """Join groups, see 2 to 4."""
        for number in sorted(self.groups):
            group = self.groups[number]
            if group.light:
                self.join_maker(number, group)
        for number in sorted(self.groups):
            group = self.groups[number]
            if group.cheap:
                self.join_readers(number, group)

    def join_readers(self, number: int, group: Group) -> None:
        """Join what reads from this group, unless more would live longer than what it makes."""
        readers = set[int]().union(*(self.readers.get(made, set()) for made in group.makes))
        if not readers or group.makes & self.outputs:
            return
        into = [self.groups[reader] for reader in readers]
        if len(into) > 1 and not self.repeats_well(group):
            return
        end = max(reader.at for reader in into)
        longer = sum(self.sizes[read] for read in group.reads if self.last_reader(read) < end)
        room = ROOM * self.bytes_of(group.makes) + self.small
        if longer > room and not (len(into) == 1 and self.next_to(group, into[0])):
            return
        for reader in into:
            reader.reads = (reader.reads - group.makes) | group.reads
            reader.light, reader.cheap = reader.light and group.light, reader.cheap and group.cheap
        for read in group.reads:
            self.readers[read].discard(number)
            self.readers[read] |= readers
        for made in group.makes:
            del self.maker[made]
            self.readers.pop(made, None)  # nobody reads a second result
        del self.groups[number]

    def repeats_well(self, group: Group) -> bool:
        """Whether several readers may each compute a group: from one large array, so that sums do not pile up."""
        large = [read for read in group.reads if self.sizes[read] > self.small]
        return len(large) <= 1 and len(_members(self.items, self.producer, group)) <= _LONGEST

    def last_reader(self, variable: int) -> int:
        """The last position at which a variable is read; outputs are read at the end."""
        if variable in self.outputs:
            return len(self.items)
        return max(self.groups[reader].at for reader in self.readers[variable])

    def next_to(self, group: Group, into: Group) -> bool:
        """Whether ``into`` makes no more than ``group``, and runs right behind it."""
        if self.bytes_of(into.makes) > ROOM * self.bytes_of(group.makes) + self.small:
            return False
        return not any(group.at < other.at < into.at for other in self.groups.values())

    def join_maker(self, number: int, group: Group) -> None:
        """Join the group that makes what this one reads."""
        makers = {self.maker[read] for read in group.reads if read in self.maker}
        if not makers:
            return
        last = max(makers, key=lambda maker: self.groups[maker].at)
        into = self.groups[last]
        if into.backward != group.backward or last == number:
            return
        shared = group.reads & into.makes
        own = {made for made in shared if self.readers[made] == {number} and made not in self.outputs}
        lighter = self.bytes_of(group.makes) <= max(self.small, self.bytes_of(shared) // 16)
        if not (group.cheap and own == shared) and not lighter:
            return
        into.makes = (into.makes - own) | group.makes
        into.reads |= group.reads - shared
        into.light, into.cheap = into.light and group.light, into.cheap and group.cheap
        for read in group.reads:
            self.readers[read].discard(number)
            if read not in shared:
                self.readers[read].add(last)
        for made in group.makes:
            self.maker[made] = last
        for made in own:
            del self.maker[made]
            del self.readers[made]
        del self.groups[number]
