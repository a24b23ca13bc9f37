"""How a training is divided over ranks, and the collectives of methods that keep all parameters on every rank.

``full``: parameters, gradients and the optimizer's state are divided, and parameters are gathered where they are used
(FSDP, ZeRO-3). ``grad``: every gradient is reduced and scattered as soon as it is made, and only the rank's part of the
parameters is updated (ZeRO-2). ``none``: everything is whole, and gradients are reduced in buckets (DDP). Ranks that
share matrices (tensor parallel) work on the same batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from remat_cli.errors import UsageError
from remat_cli.frontends.gpus import Gpu
from remat_cli.frontends.interconnect import MOST_RANKS, Interconnect
from remat_cli.frontends.optimizers import Parameter
from remat_cli.frontends.rates import LAUNCH_US
from remat_cli.graph.memory_parts import Part, parts_of_values
from remat_cli.graph.model import Graph, Node, NodeQueue, Phase
from remat_cli.units import format_bytes

FSDP, TP = "fsdp", "tp"
"""Dimensions of the mesh: ranks with batches of their own, and those that share matrices."""
FULL, GRAD, NONE = "full", "grad", "none"
SHARDS = {
    FULL: "parameters, gradients and state divided",
    GRAD: "gradients and state divided",
    NONE: "everything whole",
}
"""What is divided over the ranks with batches of their own, with words for it."""
MACHINE = 8
"""Cards of a machine, of those whose links are known."""
BUCKET_BYTES, FIRST_BUCKET_BYTES = 25 << 20, 1 << 20
"""Bytes of gradients that DDP reduces at a time, and of the first that are ready: PyTorch's defaults."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """A training on several ranks.

    Attributes:
        count: All ranks.
        shard: A key of :data:`SHARDS`.
        tp: How many of them share matrices.
        links: What a rank sends in one direction, by the dimension of the mesh.
        assumed: What is assumed of the links, as a sentence; empty if they were given.
    """

    count: int
    shard: str
    tp: int
    links: Interconnect
    assumed: str = ""

    @classmethod
    def of(cls, count: int, shard: str, tp: int, interconnect: str, card: Gpu) -> Ranks:
        """The ranks that are asked for, with the links of a card's data sheet if none are given.

        Raises:
            UsageError: If they make no sense together, or the links of the card are not known.
        """
        shard = shard or FULL
        if shard not in SHARDS:
            raise UsageError(f'"{shard}" is no way to divide a training', hint=f"choose {', '.join(SHARDS)}")
        if count > MOST_RANKS:
            raise UsageError(f"{count:,} ranks are too many", hint=f"at most {MOST_RANKS:,}")
        if count % tp:
            raise UsageError(
                f"{count} ranks cannot be divided into groups of {tp}", hint="choose a tp that divides them"
            )
        if not card.speed:
            raise UsageError(
                "ranks communicate, which takes time, and of the card only its memory is known",
                hint="name the card, such as h100",
            )
        if interconnect:
            links = Interconnect.of(interconnect)
            links.require_dimensions([FSDP, TP])
            used = [name for name, size in ((FSDP, count // tp), (TP, tp)) if size > 1]
            missing = [name for name in used if name not in links.bytes_per_s and "" not in links.bytes_per_s]
            if missing:
                raise UsageError(
                    f'no bandwidth is given for the dimension "{missing[0]}" of the ranks',
                    hint="give one for all, such as 50GB/s, or fsdp=50GB/s,tp=450GB/s",
                )
            return cls(count, shard, tp, links)
        if card.links is None:
            raise UsageError(
                f"the links between cards of the kind {card.title} are not known",
                hint="give an interconnect: what a rank sends per second in one direction, such as 25GB/s",
            )
        inside, outside = card.links
        rates = {FSDP: inside if count <= MACHINE else outside, TP: inside if tp <= MACHINE else outside}
        return cls(count, shard, tp, Interconnect(rates), f"the links are those of machines with {MACHINE} such cards")

    @property
    def replicas(self) -> int:
        """Ranks with batches of their own."""
        return self.count // self.tp

    @property
    def rates(self) -> dict[str, float]:
        """What a rank sends per second in one direction, by the dimensions of the mesh that have several ranks."""
        sizes = {FSDP: self.replicas, TP: self.tp}
        given = self.links.bytes_per_s
        return {name: given[name if name in given else ""] for name, size in sizes.items() if size > 1}

    @property
    def captured(self) -> Interconnect | None:
        """The links of collectives that a capture of the step has; None if it has none."""
        rates = {name: rate for name, rate in self.rates.items() if name == TP or self.shard == FULL}
        return Interconnect(rates) if rates else None

    @property
    def words(self) -> str:
        """What is divided, and the links, in words."""
        shared = f", {self.tp} share matrices" if self.tp > 1 else ""
        rates = ", ".join(f"{format_bytes(round(rate))}/s ({name})" for name, rate in self.rates.items())
        return f"one of {self.count:,} ranks ({SHARDS[self.shard]}{shared}){' at ' + rates if rates else ''}"

    def document(self) -> dict[str, Any]:
        """What documents say of them."""
        return {"count": self.count, "shard": self.shard, "tp": self.tp, "bytes_per_s": self.rates}

    def updated(self, parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
        """What the optimizer of a rank updates, of the parameters that it has."""
        if self.shard != GRAD:
            return tuple(parameters)
        return tuple(replace(p, shape=(-(-p.elements // self.replicas),)) for p in parameters)

    def reduced(self, graph: Graph) -> Graph:
        """The step of one rank with the collectives that reduce its gradients; as it is if they are there already."""
        if self.shard == FULL or self.replicas == 1:
            return graph
        parts = parts_of_values(graph)
        made = sorted(v for v in graph.outputs if parts[v] is Part.GRADIENTS)
        if self.shard == GRAD:
            return with_readers(graph, [[v] for v in made], self._scattered)
        return with_readers(graph, _buckets(graph, made), self._summed)

    def bucket_bytes(self, parameters: Sequence[Parameter]) -> int:
        """Bytes of the buffers that hold gradients for a reduction, all the time."""
        if self.shard != NONE or self.replicas == 1:
            return 0
        return sum(p.size for p in parameters if p.trained)

    def gather_us(self, parameters: Sequence[Parameter]) -> float:
        """Microseconds in which updated parameters are gathered after the optimizer's step."""
        if self.shard != GRAD or self.replicas == 1:
            return 0.0
        return self.links.us("all-gather", sum(p.size for p in parameters if p.trained), self.replicas, FSDP)

    def _scattered(self, size: int) -> tuple[str, int, float]:
        return "reduce_scatter_tensor", -(-size // self.replicas), self._us("reduce-scatter", size)

    def _summed(self, size: int) -> tuple[str, int, float]:
        return "all_reduce", 0, self._us("all-reduce", size)

    def _us(self, kind: str, size: int) -> float:
        return LAUNCH_US + self.links.us(kind, size, self.replicas, FSDP)


def _buckets(graph: Graph, gradients: Sequence[int]) -> list[list[int]]:
    """Gradients in the order in which they are made, in groups that are reduced at a time."""
    buckets: list[list[int]] = [[]]
    size, most = 0, FIRST_BUCKET_BYTES
    for v in gradients:
        buckets[-1].append(v)
        size += graph.size[v]
        if size >= most:
            buckets.append([])
            size, most = 0, BUCKET_BYTES
    return [bucket for bucket in buckets if bucket]


def with_readers(
    graph: Graph, groups: Sequence[Sequence[int]], collective: Callable[[int], tuple[str, int, float]]
) -> Graph:
    """``graph`` with a collective for each group of its outputs, behind the node that makes the last of them.

    Args:
        graph: The graph.
        groups: Values.
        collective: From the bytes of a group: an operation, the bytes of its result and its cost. What has a result
            is an output in place of the group.
    """
    behind: dict[int, list[Sequence[int]]] = {}
    for group in groups:
        behind.setdefault(max(graph.producer[v] for v in group), []).append(group)
    nodes: list[Node] = []
    moved: dict[int, int] = {}
    outputs: set[int] = set(graph.outputs)
    new_outputs: list[int] = []
    count = 0
    for k, node in enumerate(graph.nodes):
        nodes.append(replace(node, inputs=tuple(moved[v] for v in node.inputs)))
        for v in graph.values_of(k):
            moved[v] = count
            count += 1
        for number, group in enumerate(behind.get(k, ())):
            op, size, cost = collective(sum(graph.size[v] for v in group))
            name = f"{node.id}/{op}" + (f".{number}" if number else "")
            reads = tuple(sorted(moved[v] for v in group))
            nodes.append(Node(name, cost, reads, (size,), op=op, phase=Phase.BACKWARD, queue=NodeQueue.COMMUNICATION))
            if size:
                outputs -= set(group)
            new_outputs.append(count)
            count += 1
    kept = [moved[v] for v in outputs]
    return replace(graph, nodes=tuple(nodes), outputs=tuple(sorted([*kept, *new_outputs])))
