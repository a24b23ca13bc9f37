"""A recording of an allocator: what was in memory while a program ran, and the same beside what a plan says."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from remat_cli.graph.metadata import line_of, place_sizes
from remat_cli.plan.check import Report


@dataclass(frozen=True, slots=True)
class Block:
    """Memory that was asked for once.

    Attributes:
        size: Bytes asked for; the allocator rounds them up.
        first: The event that allocated it; 0 for what was there before the recording began.
        end: The event that freed it; the number of events if none did.
        line: The line of code that asked for it, as ``train.py:7 in forward``; empty if not recorded.
    """

    size: int
    first: int
    end: int
    line: str


def bytes_over(blocks: Iterable[Block], events: int) -> list[int]:
    """Bytes of blocks in memory at each event."""
    change = [0] * (events + 1)
    for block in blocks:
        change[block.first] += block.size
        change[block.end] -= block.size
    return list(accumulate(change[:events]))


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A request that failed.

    Attributes:
        event: Its event.
        asked: Bytes asked for.
        free: Bytes that were free on the device.
    """

    event: int
    asked: int
    free: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The memory of one device while events were recorded; event 0 is before the first of them.

    Attributes:
        name: The name of its file.
        device: The number of the device.
        devices: How many devices had memory.
        events: The number of events, and one.
        blocks: Everything that was in memory at some event, by its first event.
        reserved: Bytes that the allocator held from the driver, at each event.
        failed: The requests that failed.
        seconds: The time from the first event to the last; None if it was not recorded.
    """

    name: str
    device: int
    devices: int
    events: int
    blocks: tuple[Block, ...]
    reserved: tuple[int, ...]
    failed: tuple[OutOfMemory, ...]
    seconds: float | None

    def allocated(self) -> list[int]:
        """Bytes asked for and not freed yet, at each event."""
        return bytes_over(self.blocks, self.events)

    def at(self, event: int) -> list[Block]:
        """What is in memory at an event, the largest first."""
        live = (block for block in self.blocks if block.first <= event < block.end)
        return sorted(live, key=lambda block: (-block.size, block.first))


@dataclass(frozen=True, slots=True)
class Peak:
    """The event with the most memory allocated, the first such.

    Attributes:
        event: The event.
        bytes: Bytes allocated at it.
        reserved: Bytes reserved at it.
        blocks: What is in memory at it, the largest first.
    """

    event: int
    bytes: int
    reserved: int
    blocks: tuple[Block, ...]


def peak_of(snapshot: Snapshot) -> Peak:
    """The peak of a recording."""
    allocated = snapshot.allocated()
    event = max(range(len(allocated)), key=allocated.__getitem__)
    return Peak(event, allocated[event], snapshot.reserved[event], tuple(snapshot.at(event)))


@dataclass(frozen=True, slots=True)
class Line:
    """The blocks of one line of code at the peak.

    Attributes:
        line: The line; empty for blocks without one.
        blocks: Their number.
        bytes: Their bytes.
    """

    line: str
    blocks: int
    bytes: int


def lines_of(blocks: Iterable[Block]) -> list[Line]:
    """Blocks by line of code, the one with the most bytes first."""
    number: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for block in blocks:
        number[block.line] += 1
        sizes[block.line] += block.size
    return [Line(line, number[line], size) for line, size in sorted(sizes.items(), key=lambda one: (-one[1], one[0]))]


@dataclass(frozen=True, slots=True)
class Size:
    """Tensors of one size, at the peak of a plan and at the peak of a recording.

    Attributes:
        bytes: The size of one of them.
        planned: How many the plan has.
        recorded: How many blocks there were.
        names: What they are in the plan: parameters and inputs, and values.
        lines: Where blocks come from: lines of code.
    """

    bytes: int
    planned: int
    recorded: int
    names: tuple[str, ...]
    lines: tuple[str, ...]

    @property
    def difference(self) -> int:
        """Bytes that were there and are not in the plan; below zero for bytes that are only in the plan."""
        return (self.recorded - self.planned) * self.bytes


@dataclass(frozen=True, slots=True)
class Beside:
    """A recording beside a plan.

    Attributes:
        predicted: The peak of the plan, as replayed, in bytes.
        recorded: The peak of the recording, in bytes.
        sizes: Tensors by size, those with the largest difference first. All of them together are the two peaks, but for
            what the plan's graph does not divide into tensors.
        undivided: Bytes of the plan's peak that its graph does not divide into tensors.
    """

    predicted: int
    recorded: int
    sizes: tuple[Size, ...]
    undivided: int


def beside(peak: Peak, report: Report) -> Beside:
    """What a plan says beside what was recorded, matched by size.

    Sizes are all that both know of every tensor: gradients have no line of code in a recording, and a step that remat
    runs has other lines than the model. Equal sizes do not prove that two tensors are the same; a difference proves
    that some are not.
    """
    graph, replay = report.graph, report.replay
    planned: dict[int, list[str]] = defaultdict(list)
    for name, size in place_sizes(graph):
        planned[size].append(name)
    divided = sum(size * len(names) for size, names in planned.items())
    if divided > graph.fixed_memory:  # what is aliased counts once there
        planned.clear()
        divided = 0
    for value, size in replay.residents:
        node = graph.nodes[graph.producer[value]].id
        line = line_of(graph, node)
        planned[size].append(f"{graph.value_name(value)} ({line})" if line else graph.value_name(value))
    if replay.workspace_bytes:
        planned[replay.workspace_bytes].append(f"workspace of {report.peak_node}")
    there: dict[int, list[str]] = defaultdict(list)
    for block in peak.blocks:
        there[block.size].append(block.line)
    sizes = [
        Size(
            size,
            len(planned.get(size, ())),
            len(there.get(size, ())),
            _once(planned.get(size, ())),
            _once(there.get(size, ())),
        )
        for size in planned.keys() | there.keys()
        if size
    ]
    sizes.sort(key=lambda one: (-abs(one.difference), -one.bytes * max(one.planned, one.recorded), -one.bytes))
    return Beside(replay.peak_bytes, peak.bytes, tuple(sizes), graph.fixed_memory - divided)


def _once(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in dict.fromkeys(names) if name)
