"""When the statements of a plan run: a replay of four queues, as slow as the slowest of what each step waits for.

Computations run one after another in one queue, collectives in a second, copies to the host in a third, and copies from
the host in a fourth. The host program issues the statements in their order. A copy or collective starts when everything
that was issued to the compute queue before it has ended, because it may read what that made or write where that freed.

* A computation waits for the copies into its inputs, and for the collectives that make them.
* A collective waits for the copies into its inputs.
* A copy to the host waits for the copy or collective into its register, if one has not ended.
* A copy from the host waits for the copy into its slot.
* Freeing a register holds the compute queue until the copies and collectives that read or write it have ended: later
  computations may get its memory. Freeing a slot holds the queue to the host likewise, until the copies from the slot
  have ended.

So neither device memory nor host memory depends on timing. This module belongs to the checker of plans: it shares no
code with anything that makes plans.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from remat_cli.errors import UsageError
from remat_cli.graph.model import Graph, NodeQueue
from remat_cli.plan.host import Host
from remat_cli.plan.model import Allocate, Compute, Deallocate, Offload, Prefetch, Release, Statement

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


class Queue(StrEnum):
    """A queue of a device; they run at the same time."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    OUT = "to host"
    IN = "from host"


@dataclass(frozen=True, slots=True)
class Span:
    """A statement while it runs.

    Attributes:
        statement: Its index.
        queue: Where it runs.
        start: In the graph's cost unit, from the start of the plan.
        end: Likewise.
        after: The span whose end it waited for, by index; None if it began at once.
    """

    statement: int
    queue: Queue
    start: float
    end: float
    after: int | None


@dataclass(frozen=True, slots=True)
class Stall:
    """Time in which the compute queue waits for a copy or a collective.

    Attributes:
        statement: The statement that waits: a computation for its inputs, or a deallocation.
        duration: How long, in the graph's cost unit.
        copy: Index of the statement of that copy or collective.
    """

    statement: int
    duration: float
    copy: int


@dataclass(frozen=True, slots=True)
class Timing:
    """When everything runs. Times are in the graph's cost unit.

    Attributes:
        time: When the last of the queues is idle.
        spans: Computations, collectives and copies, in the order of the statements.
        stalls: Waits of the compute queue, in the same order.
        critical: The chain of spans, by index, that takes up all of ``time``: each waited for the one before.
    """

    time: float
    spans: tuple[Span, ...] = field(repr=False)
    stalls: tuple[Stall, ...] = field(repr=False)
    critical: tuple[int, ...] = field(repr=False)

    @property
    def stalled(self) -> float:
        """How long the compute queue waits for copies and collectives, until its last computation or deallocation."""
        return math.fsum(stall.duration for stall in self.stalls)

    def busy(self, queue: Queue) -> float:
        """How long a queue is at work."""
        return math.fsum(span.end - span.start for span in self.spans if span.queue is queue)

    def share(self, queue: Queue) -> float:
        """The share of the time in which a queue is at work."""
        return self.busy(queue) / self.time if self.time > 0 else 0.0

    def on_path(self, queue: Queue) -> float:
        """How much of the critical path is in a queue; over all queues this adds up to ``time``."""
        chain = (self.spans[k] for k in self.critical)
        return math.fsum(span.end - span.start for span in chain if span.queue is queue)


@dataclass(slots=True)
class _Moment:
    """A time, and the span that ends then, if any."""

    at: float = 0.0
    span: int | None = None


@dataclass(slots=True)
class _Place:
    """A register or a slot: its value, and when what writes it and what reads it have ended, but computations."""

    value: int
    filled: _Moment = field(default_factory=_Moment)
    read: _Moment = field(default_factory=_Moment)

    def reading(self, end: _Moment) -> None:
        """Take note of what reads it until ``end``."""
        self.read = max(self.read, end, key=lambda moment: moment.at)


@dataclass(slots=True)
class _Clock:
    graph: Graph
    host: Host | None
    second: int
    now: dict[Queue, _Moment] = field(default_factory=lambda: {queue: _Moment() for queue in Queue})
    spans: list[Span] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)
    registers: dict[str, _Place] = field(default_factory=dict)
    slots: dict[str, _Place] = field(default_factory=dict)
    holder: dict[int, _Place] = field(default_factory=dict)

    def run(self, at: int, queue: Queue, duration: float, waits: Sequence[_Moment]) -> _Moment:
        """Run statement ``at`` in ``queue`` as soon as the queue and ``waits`` allow."""
        latest = max((self.now[queue], *waits), key=lambda moment: moment.at)
        end = _Moment(latest.at + duration, len(self.spans))
        self.spans.append(Span(at, queue, latest.at, end.at, latest.span))
        self.now[queue] = end
        return end

    def hold(self, at: int, waits: Sequence[_Moment]) -> None:
        """Let the compute queue wait, and record the stall."""
        before = self.now[Queue.COMPUTE]
        latest = max((before, *waits), key=lambda moment: moment.at)
        if latest.at > before.at and latest.span is not None:
            self.stalls.append(Stall(at, latest.at - before.at, self.spans[latest.span].statement))
            self.now[Queue.COMPUTE] = latest

    def step(self, at: int, statement: Statement) -> None:
        """Issue one statement. What it names may not exist: that is for the other findings to say."""
        match statement:
            case Allocate(register, value):
                self.registers[register] = self.holder[value] = _Place(value)
            case Compute(node):
                self.compute(at, node)
            case Deallocate(register):
                place = self.registers.pop(register, None)
                if place is not None:
                    self.hold(at, (place.filled, place.read))
                    if self.holder.get(place.value) is place:
                        del self.holder[place.value]
            case Offload(register, slot):
                place = self.registers.get(register)
                if place is not None and self.host is not None:
                    takes = self.copying(self.host, place.value, self.host.out_bytes_per_s)
                    end = self.run(at, Queue.OUT, takes, (self.now[Queue.COMPUTE], place.filled))
                    place.reading(end)
                    self.slots[slot] = _Place(place.value, filled=end)
            case Prefetch(slot, register):
                source, place = self.slots.get(slot), self.registers.get(register)
                if source is not None and place is not None and self.host is not None:
                    takes = self.copying(self.host, source.value, self.host.in_bytes_per_s)
                    end = self.run(at, Queue.IN, takes, (self.now[Queue.COMPUTE], source.filled))
                    source.read = place.filled = end
            case Release(slot):
                source = self.slots.pop(slot, None)
                if source is not None and source.read.at > self.now[Queue.OUT].at:
                    self.now[Queue.OUT] = source.read

    def compute(self, at: int, node: int) -> None:
        """Run a node in its queue."""
        item = self.graph.nodes[node]
        inputs = [self.holder[v] for v in item.inputs if v in self.holder]
        if item.queue is NodeQueue.COMPUTE:
            self.hold(at, [place.filled for place in inputs])
            self.run(at, Queue.COMPUTE, item.cost, ())
            return
        waits = (self.now[Queue.COMPUTE], *(place.filled for place in inputs))
        end = self.run(at, Queue.COMMUNICATION, item.cost, waits)
        for place in inputs:
            place.reading(end)
        for value in self.graph.values_of(node):
            if value in self.holder:
                self.holder[value].filled = end

    def copying(self, host: Host, value: int, bytes_per_s: float) -> float:
        """How long a copy of ``value`` takes."""
        return (host.latency_s + self.graph.size[value] / bytes_per_s) * self.second


def timing(graph: Graph, statements: Sequence[Statement], host: Host | None) -> Timing:
    """Replay the queues, in time linear in the statements and their reads. Without a host, nothing is copied.

    Raises:
        UsageError: If costs are not times.
    """
    second = _PER_SECOND.get(graph.cost_unit)
    if second is None:
        raise UsageError(
            f"costs are {graph.cost_unit}, which are not times",
            hint="the time of copies and collectives needs costs in s, ms, us or ns",
        )
    clock = _Clock(graph, host, second)
    for at, statement in enumerate(statements):
        clock.step(at, statement)
    last = max(clock.now.values(), key=lambda moment: moment.at)
    path: list[int] = []
    span = last.span
    while span is not None:
        path.append(span)
        span = clock.spans[span].after
    compute = clock.now[Queue.COMPUTE]
    computed = (graph.nodes[s.node] for s in statements if isinstance(s, Compute))
    costs = [node.cost for node in computed if node.queue is NodeQueue.COMPUTE]
    # Summed once and exactly, so that a plan without stalls takes exactly what its computations cost.
    whole = math.fsum([*costs, *(stall.duration for stall in clock.stalls), last.at - compute.at])
    return Timing(whole, tuple(clock.spans), tuple(clock.stalls), tuple(reversed(path)))
