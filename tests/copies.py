"""Random plans with copies, and a second replay of the three queues that shares no code with the judge."""

import random
from dataclasses import dataclass, field

from remat_cli.graph.model import Graph, NodeQueue
from remat_cli.plan.host import Host
from remat_cli.plan.model import (
    Allocate,
    Compute,
    Deallocate,
    Offload,
    Prefetch,
    Release,
    Statement,
)


@dataclass
class RandomPlan:
    """A valid plan that drops, copies, fetches and computes again at random."""

    graph: Graph
    rng: random.Random
    statements: list[Statement] = field(default_factory=list)
    live: dict[int, str] = field(default_factory=dict)
    slots: dict[int, str] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    names: int = 0

    def name(self, mark: str) -> str:
        self.names += 1
        return f"{mark}{self.names}"

    def allocate(self, value: int) -> str:
        self.live[value] = name = self.name("%")
        self.statements.append(Allocate(name, value))
        return name

    def fetch(self, value: int) -> None:
        self.statements.append(Prefetch(self.slots[value], self.allocate(value)))

    def offload(self, value: int) -> None:
        if value not in self.slots and self.graph.may_offload(value):
            self.slots[value] = self.name("#")
            self.statements.append(Offload(self.live[value], self.slots[value]))

    def drop(self, value: int) -> None:
        """Free a value, if it can be had again."""
        again = self.graph.nodes[self.graph.producer[value]].recompute
        if not again and value not in self.slots:
            self.offload(value)
        if again or value in self.slots:
            self.statements.append(Deallocate(self.live.pop(value)))

    def need(self, value: int) -> None:
        """Make a value resident."""
        if value in self.live:
            return
        node = self.graph.producer[value]
        if value in self.slots and (self.rng.random() < 0.8 or not self.graph.nodes[node].recompute):
            self.fetch(value)
        else:
            self.compute(node)

    def compute(self, node: int) -> None:
        # A value that was made for an input may be dropped for none here: nothing is freed while inputs are gathered.
        for value in self.graph.nodes[node].inputs:
            self.need(value)
        for value in self.graph.values_of(node):
            if value in self.live:
                self.statements.append(Deallocate(self.live.pop(value)))
        registers = tuple(self.allocate(value) for value in self.graph.values_of(node))
        self.statements.append(Compute(node, registers))
        self.done.add(node)

    def run(self) -> tuple[Statement, ...]:
        for node in range(len(self.graph.nodes)):
            self.compute(node)
            for value in list(self.live):
                chance = self.rng.random()
                if chance < 0.25:
                    self.offload(value)
                elif chance < 0.6:
                    self.drop(value)
        for value in self.graph.outputs:
            self.need(value)
        for value in list(self.live):
            if value not in self.graph.outputs:
                self.statements.append(Deallocate(self.live.pop(value)))
        for slot in self.slots.values():
            self.statements.append(Release(slot))
        return tuple(self.statements)


def random_plan(graph: Graph, rng: random.Random) -> tuple[Statement, ...]:
    """A random valid plan of ``graph`` with copies; nodes with several values may say ``recompute: false`` or not."""
    return RandomPlan(graph, rng).run()


def naive_time(graph: Graph, statements: tuple[Statement, ...], host: Host | None) -> float:
    """The time of a valid plan as the longest path through a graph of waits, which is stated before it is solved.

    Every statement that takes time is a task; a task waits for tasks. Costs are seconds.
    """
    lasts: list[float] = []
    waits: list[set[int]] = []
    tail: dict[str, set[int]] = {"C": set(), "D": set(), "U": set(), "L": set()}
    into: dict[str, set[int]] = {}  # register or slot: the task that fills it
    out_of: dict[str, set[int]] = {}  # register or slot: tasks that read it
    value_of: dict[str, int] = {}
    holder: dict[int, str] = {}

    def task(queue: str, duration: float, after: set[int]) -> int:
        lasts.append(duration)
        waits.append(set(after) | tail[queue])
        tail[queue] = {len(lasts) - 1}
        return len(lasts) - 1

    for s in statements:
        if isinstance(s, Allocate):
            value_of[s.register], holder[s.value] = s.value, s.register
        elif isinstance(s, Compute):
            node = graph.nodes[s.node]
            made = set().union(*(into.get(holder[v], set()) for v in node.inputs))
            if node.queue is NodeQueue.COMMUNICATION:
                collective = task("L", node.cost, made | tail["C"])
                into.update((register, {collective}) for register in s.registers)
                for v in node.inputs:
                    out_of.setdefault(holder[v], set()).add(collective)
            else:
                task("C", node.cost, made)
        elif isinstance(s, Offload):
            assert host is not None
            value_of[s.slot] = value = value_of[s.register]
            takes = host.latency_s + graph.size[value] / host.out_bytes_per_s
            made = task("D", takes, tail["C"] | into.get(s.register, set()))
            into[s.slot] = {made}
            out_of.setdefault(s.register, set()).add(made)
        elif isinstance(s, Prefetch):
            assert host is not None
            takes = host.latency_s + graph.size[value_of[s.slot]] / host.in_bytes_per_s
            made = task("U", takes, tail["C"] | into[s.slot])
            into[s.register] = {made}
            out_of.setdefault(s.slot, set()).add(made)
        elif isinstance(s, Deallocate):
            task("C", 0.0, into.get(s.register, set()) | out_of.get(s.register, set()))
        elif isinstance(s, Release):
            task("D", 0.0, out_of.get(s.slot, set()))
    ends: list[float] = []
    for duration, after in zip(lasts, waits, strict=True):
        ends.append(max((ends[k] for k in after), default=0.0) + duration)
    return max(ends, default=0.0)
