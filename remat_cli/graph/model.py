"""The dataflow graph that everything else works on: immutable, indexed, framework-free.

Ids are strings in documents and dense integers here. Node ``i`` is the i-th node in execution order. Values are
numbered consecutively: node ``i`` makes the values ``first_value[i] .. first_value[i + 1] - 1``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from remat_cli.short_repr import ShortRepr
from remat_cli.units import format_bytes, format_cost

T = TypeVar("T")


class Phase(StrEnum):
    """Part of a training step to which a node belongs."""

    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    UPDATE = "update"


class NodeQueue(StrEnum):
    """The queue of a device in which a node runs. Queues run at the same time."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    """Collectives: the link to other ranks."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operation; runs as a whole and may be computed several times.

    Attributes:
        id: Unique name.
        cost: Cost of one computation, in the graph's cost unit; finite, not negative.
        inputs: Values it reads, by index, each once.
        outputs: Bytes of every value it makes; may be empty.
        workspace: Bytes it needs only while it runs.
        recompute: False if it may be computed only once.
        offload: Whether its values may be copied to the host; one answer for all, or one for each value.
        op: Kind of operation, for reports.
        phase: Part of the training step, if known.
        queue: Where it runs.
        payload: Data that a frontend needs to run the node; the core never reads it.
    """

    id: str
    cost: float
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    workspace: int = 0
    recompute: bool = True
    offload: bool | tuple[bool, ...] = True
    op: str | None = None
    phase: Phase | None = None
    payload: Any = None
    queue: NodeQueue = NodeQueue.COMPUTE


@dataclass(frozen=True, slots=True)
class Operation:
    """Nodes that run together, part by part, so that a value between two of them is in memory for one part at a time.

    Attributes:
        id: The id of the node that stands for them where the region is split.
        nodes: The nodes, by index, ascending.
        repeats: Other nodes, which it computes again for itself, part by part; ascending.
        costs: The cost of all parts together, for every number of parts that the region offers.
        workspaces: Bytes needed while it runs, besides its inputs and outputs, likewise.
        ahead_of: Nodes whose values it does not wait for, though its nodes read them. What it makes from them is
            complete when they are there, so that whoever reads it reads them, too. It runs once.
    """

    id: str
    nodes: tuple[int, ...]
    repeats: tuple[int, ...]
    costs: tuple[float, ...]
    workspaces: tuple[int, ...]
    ahead_of: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Region:
    """Operations that are split together: all of them, each in the same number of parts, or none.

    Attributes:
        id: Name of the region.
        parts: The numbers of parts that it offers, at least 2, ascending.
        operations: The operations.
        along: What is divided, for people, such as tokens; may be empty.
    """

    id: str
    parts: tuple[int, ...]
    operations: tuple[Operation, ...]
    along: str = ""


@dataclass(frozen=True, slots=True)
class Split:
    """Where a graph with operations in parts comes from.

    Attributes:
        graph: The graph with whole operations.
        parts: The number of parts, by the ids of the regions that are split.
        values: For every value, which value of that graph it is.
    """

    graph: Graph
    parts: Mapping[str, int]
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Graph(ShortRepr):
    """A directed acyclic graph of nodes in execution order (n nodes, V values).

    Attributes:
        name: For reports and file names.
        nodes: All nodes; each reads only values of earlier ones.
        outputs: Values resident at the end, by index, ascending.
        cost_unit: Unit of all costs: ``flops``, ``us``, ...; shown, never converted.
        fixed_memory: Bytes always resident.
        metadata: Where the graph comes from; free-form.
        splits: Regions that may run in parts.
        origin: The graph with whole operations, and the regions that are in parts here; None if none is.
        first_value: int[n + 1]; derived.
        producer: int[V], the node that makes each value; derived.
        size: int[V], bytes of each value; derived.
        readers: int[V][...], the nodes that read each value, ascending; derived.
        total_cost: The cost of computing every node once, of all queues together; derived.
        overlaps: Whether nodes run in the communication queue. Plans then differ in time, not in cost; derived.
        no_remat_cost: C0, what overheads are compared with: ``total_cost``, or, if queues overlap, the time of every
            node once with memory without limit and collectives as early as possible; for a graph in parts, that of the
            whole one; derived.
        least_cost: What every plan costs or takes at least: ``total_cost``, or, if queues overlap, the time that the
            busier one is at work when every node runs once; derived.
    """

    name: str
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    cost_unit: str = "unit"
    fixed_memory: int = 0
    metadata: Any = None
    splits: tuple[Region, ...] = ()
    origin: Split | None = None
    first_value: tuple[int, ...] = field(init=False, repr=False, compare=False)
    producer: tuple[int, ...] = field(init=False, repr=False, compare=False)
    size: tuple[int, ...] = field(init=False, repr=False, compare=False)
    readers: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    total_cost: float = field(init=False, repr=False, compare=False)
    overlaps: bool = field(init=False, repr=False, compare=False)
    no_remat_cost: float = field(init=False, repr=False, compare=False)
    least_cost: float = field(init=False, repr=False, compare=False)
    _derived: dict[Callable[[Graph], Any], Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Number the values, and derive the readers of every value.

        Raises:
            ValueError: If a node reads a value that no earlier node makes, or an output does not exist.
        """
        first = [0]
        producer: list[int] = []
        size: list[int] = []
        readers: list[list[int]] = []
        for i, node in enumerate(self.nodes):
            for value in node.inputs:
                if not 0 <= value < len(producer):
                    raise ValueError(f"node {node.id} reads value {value}, which no earlier node makes")
                readers[value].append(i)
            if len(set(node.inputs)) != len(node.inputs):
                raise ValueError(f"node {node.id} reads a value twice")
            producer.extend(i for _ in node.outputs)
            size.extend(node.outputs)
            readers.extend([] for _ in node.outputs)
            first.append(len(producer))
        if any(not 0 <= v < len(producer) for v in self.outputs) or list(self.outputs) != sorted(set(self.outputs)):
            raise ValueError("graph outputs are not ascending indices of values")
        object.__setattr__(self, "first_value", tuple(first))
        object.__setattr__(self, "producer", tuple(producer))
        object.__setattr__(self, "size", tuple(size))
        object.__setattr__(self, "readers", tuple(tuple(r) for r in readers))
        object.__setattr__(self, "total_cost", math.fsum(node.cost for node in self.nodes))
        overlaps = any(node.queue is NodeQueue.COMMUNICATION for node in self.nodes)
        object.__setattr__(self, "overlaps", overlaps)
        whole = _time_once(self) if overlaps else self.total_cost
        object.__setattr__(self, "no_remat_cost", whole if self.origin is None else self.origin.graph.no_remat_cost)
        object.__setattr__(self, "least_cost", max(map(self.cost_in, NodeQueue)) if overlaps else self.total_cost)
        object.__setattr__(self, "_derived", {})

    def _facts(self) -> dict[str, str]:
        return {
            "graph": self.name,
            "nodes": f"{len(self.nodes):,}",
            "values": f"{len(self.size):,}",
            "cost": format_cost(self.no_remat_cost, self.cost_unit),
            "fixed memory": format_bytes(self.fixed_memory),
        }

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what the graph is made from, and not what is derived."""
        fields = (self.name, self.nodes, self.outputs, self.cost_unit, self.fixed_memory, self.metadata)
        return type(self), (*fields, self.splits, self.origin)

    def values_of(self, node: int) -> range:
        """Indices of the values that ``node`` makes."""
        return range(self.first_value[node], self.first_value[node + 1])

    def cost_in(self, queue: NodeQueue) -> float:
        """The cost of computing every node of ``queue`` once."""
        return math.fsum(node.cost for node in self.nodes if node.queue is queue)

    def moves_freely(self, node: int) -> bool:
        """Whether the first computation of ``node`` may be at any place: a collective that reads only fixed memory.

        It makes one value, which some node reads. All other nodes run for the first time in document order.
        """
        item = self.nodes[node]
        if item.queue is NodeQueue.COMPUTE or item.inputs or len(item.outputs) != 1:
            return False
        return bool(self.readers[self.first_value[node]])

    def may_offload(self, value: int) -> bool:
        """Whether a plan may copy ``value`` to the host."""
        node = self.producer[value]
        offload = self.nodes[node].offload
        return offload if isinstance(offload, bool) else offload[value - self.first_value[node]]

    def value_name(self, value: int) -> str:
        """``bn1:0``, the name of a value in documents."""
        node = self.producer[value]
        return f"{self.nodes[node].id}:{value - self.first_value[node]}"

    def derived(self, function: Callable[[Graph], T]) -> T:
        """What ``function`` says of this graph; asked once, and kept. It must be something that nobody changes."""
        if function not in self._derived:
            self._derived[function] = function(self)
        kept: T = self._derived[function]
        return kept

    @property
    def whole(self) -> Graph:
        """The graph in which no region is in parts: that of the document, to which costs and budgets are compared."""
        return self if self.origin is None else self.origin.graph

    @property
    def edges(self) -> int:
        """Number of (value, reader) pairs."""
        return sum(len(node.inputs) for node in self.nodes)


def _time_once(graph: Graph) -> float:
    """The time of every node once, in document order, if nothing has to be freed.

    A node of the compute queue waits for what it reads, a collective for all that was issued to the compute queue. One
    that may be at any place is issued as early as possible, but not before those whose readers come earlier.
    """
    now = dict.fromkeys(NodeQueue, 0.0)
    ready = [-1.0] * len(graph.size)
    for i, node in enumerate(graph.nodes):
        if graph.moves_freely(i):
            continue
        for v in node.inputs:
            if ready[v] < 0:
                now[NodeQueue.COMMUNICATION] += graph.nodes[graph.producer[v]].cost
                ready[v] = now[NodeQueue.COMMUNICATION]
        waits = (ready[v] for v in node.inputs) if node.queue is NodeQueue.COMPUTE else (now[NodeQueue.COMPUTE],)
        now[node.queue] = end = max(now[node.queue], *waits, 0.0) + node.cost
        for v in graph.values_of(i):
            ready[v] = end
    return max(now.values())


CLOSING_ID = "(end)"


def closed(graph: Graph) -> Graph:
    """``graph`` with a closing node that reads the graph outputs, costs nothing and makes nothing.

    Without that last stage, an output could not be recomputed after the last node. If the last node makes all outputs,
    they are in memory at the end anyway, and the graph is returned unchanged.
    """
    last = len(graph.nodes) - 1
    if all(graph.producer[v] == last for v in graph.outputs):
        return graph
    end = Node(id=CLOSING_ID, cost=0.0, inputs=graph.outputs, outputs=())
    return Graph(graph.name, (*graph.nodes, end), graph.outputs, graph.cost_unit, graph.fixed_memory)
