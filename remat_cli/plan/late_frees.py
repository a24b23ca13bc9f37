"""When plans free what a collective reads or writes: as late as there is room, because freeing waits for its end.

Collectives end in the order in which they are issued. So when memory is short, the shortest wait that frees enough is
for the earliest of them, and what those before it use can be freed without another wait. Hence no other choice of frees
makes the same computations end earlier (docs/mathematics.md, "Collectives").
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from remat_cli.graph.model import Graph, NodeQueue


@dataclass(slots=True)
class Frees:
    """What is freed where, by position in a sequence of computes.

    Attributes:
        before: int[K + 1][...], values that are freed right before each compute, the last for the end.
        after: int[K][...], values that are freed right after each compute.
    """

    before: list[list[int]]
    after: list[list[int]]


def late_frees(graph: Graph, computes: Sequence[int], dying: Sequence[Sequence[int]], room_bytes: int) -> Frees:
    """The frees of a sequence, in time linear in its reads, but for a heap.

    Args:
        graph: The graph.
        computes: Nodes by index, in the order in which they run; K of them.
        dying: int[K][...], the values that are used for the last time by each compute.
        room_bytes: Bytes, fixed memory included; at least what the sequence needs if everything is freed at once.
    """
    writer = _Writer(graph, room_bytes, graph.fixed_memory)
    frees = Frees([], [])
    for node, ends in zip(computes, dying, strict=True):
        frees.before.append(writer.make_room(node))
        writer.run(node)
        frees.after.append(writer.free(ends))
    frees.before.append([v for _, v in sorted(writer.waiting)])
    return frees


@dataclass(slots=True)
class _Writer:
    """What is in memory, and which collectives have surely ended.

    Attributes:
        writes: The collective that wrote each value, by its number in the order of issue, from 1.
        uses: The last collective that reads or wrote each value.
        issued: How many collectives were issued.
        ended: How many of them the compute queue has waited for.
        waiting: (collective, value) of values that are freed when the collective has ended; a heap.
    """

    graph: Graph
    room_bytes: int
    used_bytes: int
    writes: dict[int, int] = field(default_factory=dict)
    uses: dict[int, int] = field(default_factory=dict)
    issued: int = 0
    ended: int = 0
    waiting: list[tuple[int, int]] = field(default_factory=list)

    def make_room(self, node: int) -> list[int]:
        """The values that are freed before a compute: without a wait, or because their memory is needed."""
        made = self.graph.values_of(node)
        # A value has one register at a time.
        forced = max((c for c, v in self.waiting if v in made), default=0)
        self.ended = max(self.ended, forced)
        needed = sum(self.graph.nodes[node].outputs) + self.graph.nodes[node].workspace
        freed = []
        while self.waiting:
            collective, value = self.waiting[0]
            if collective > self.ended and self.used_bytes + needed <= self.room_bytes:
                break
            heapq.heappop(self.waiting)
            self.ended = max(self.ended, collective)
            self.used_bytes -= self.graph.size[value]
            freed.append(value)
        return freed

    def run(self, node: int) -> None:
        """Take note of what a compute reads and writes."""
        item, made = self.graph.nodes[node], self.graph.values_of(node)
        self.used_bytes += sum(item.outputs)
        if item.queue is NodeQueue.COMMUNICATION:
            self.issued += 1
            self.writes.update(dict.fromkeys(made, self.issued))
            self.uses.update(dict.fromkeys((*item.inputs, *made), self.issued))
            return
        self.ended = max([self.ended, *(self.writes.get(v, 0) for v in item.inputs)])
        for v in made:
            self.writes.pop(v, None)
            self.uses.pop(v, None)

    def free(self, values: Sequence[int]) -> list[int]:
        """Of ``values``, which nothing reads any more, those that can be freed without a wait."""
        now = []
        for v in values:
            collective = self.uses.get(v, 0)
            if collective > self.ended:
                heapq.heappush(self.waiting, (collective, v))
            else:
                self.used_bytes -= self.graph.size[v]
                now.append(v)
        return now
