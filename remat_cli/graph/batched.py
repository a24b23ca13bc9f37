"""Graphs of one network at several batches, and what follows from them for every other batch.

A profile belongs to a batch: a launch and the weights take as long for one sample as for many, so costs do not grow in
proportion. At a batch between two of the given ones, every cost and every number of bytes lies on the line through
them; below all and above all, it lies on the line through the nearest two.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from remat_cli.errors import UsageError
from remat_cli.graph.model import Graph, Node


@dataclass(frozen=True, slots=True)
class Batched:
    """The graphs of one network, by rising batch; at least two. They differ in costs and bytes alone.

    Attributes:
        batches: Their batches.
        graphs: The graphs, one for each batch.
    """

    batches: tuple[int, ...]
    graphs: tuple[Graph, ...]

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, Graph]]) -> Batched:
        """The graphs with their batches, in any order.

        Raises:
            UsageError: If there are fewer than two batches or one of them twice, if the graphs are not of one network,
                or if a value or the fixed memory is larger at a smaller batch.
        """
        ordered = sorted(pairs, key=lambda pair: pair[0])
        batches = tuple(batch for batch, _ in ordered)
        twice = next((a for a, b in pairwise(batches) if a == b), None)
        if twice is not None:
            raise UsageError(f"two graphs are for a batch of {twice}", hint="give one graph for each batch")
        if len(batches) < 2:
            raise UsageError("graphs of several batches are two at least", hint="give another graph")
        for (low, one), (high, other) in pairwise(ordered):
            _check_alike(one, low, other, high)
        return cls(batches, tuple(graph for _, graph in ordered))

    def at(self, batch: int) -> Graph:
        """The graph at a batch of 1 or more: the given one, or one on the lines through its neighbours."""
        if batch in self.batches:
            return self.graphs[self.batches.index(batch)]
        at, after = self.between(batch)
        low, high = self.graphs[at], self.graphs[after]
        done, span = batch - self.batches[at], self.batches[after] - self.batches[at]

        def bytes_at(a: int, b: int) -> int:
            return max(0, a - -done * (b - a) // span)  # rounded up, and exact

        def node_at(a: Node, b: Node) -> Node:
            return replace(
                a,
                cost=max(0.0, a.cost + done / span * (b.cost - a.cost)),
                outputs=tuple(map(bytes_at, a.outputs, b.outputs)),
                workspace=bytes_at(a.workspace, b.workspace),
                payload=None,
            )

        return Graph(
            name=low.name,
            nodes=tuple(map(node_at, low.nodes, high.nodes)),
            outputs=low.outputs,
            cost_unit=low.cost_unit,
            fixed_memory=bytes_at(low.fixed_memory, high.fixed_memory),
            metadata={"batch": batch, "from_batches": [self.batches[at], self.batches[after]]},
        )

    def between(self, batch: int) -> tuple[int, int]:
        """Indices of the two graphs whose lines say what holds at a batch that is not given."""
        after = min(max(1, bisect_right(self.batches, batch)), len(self.batches) - 1)
        return after - 1, after

    def least_at(self, batch: int) -> Graph:
        """The graph at a batch, with workspaces no larger than at any larger batch.

        A kernel that is chosen for a larger batch may need less workspace. What does not fit with the least of them
        fits at no larger batch either.
        """
        graph = self.at(batch)
        later = [other for given, other in zip(self.batches, self.graphs, strict=True) if given > batch]

        def least(i: int, node: Node) -> int:
            if self.graphs[-1].nodes[i].workspace < self.graphs[-2].nodes[i].workspace:
                return 0  # its last line falls for ever
            return min([node.workspace, *(other.nodes[i].workspace for other in later)])

        nodes = tuple(replace(node, workspace=least(i, node)) for i, node in enumerate(graph.nodes))
        return replace(graph, nodes=nodes)


def alike(one: Graph, other: Graph) -> bool:
    """Whether two graphs are of one network: they differ in name, costs and bytes at most."""
    return _difference(one, other) is None


def _check_alike(one: Graph, low: int, other: Graph, high: int) -> None:
    """Refuse two graphs, of the batches ``low`` and ``high``, that no line can join.

    Raises:
        UsageError: With the first thing in which they differ.
    """
    difference = _difference(one, other)
    if difference is not None:
        raise UsageError(
            f"the graphs for batches of {low} and {high} are not of one network: {difference}",
            hint="make both from the same model in the same way; some exporters treat a batch of 1 differently",
        )
    fallen = [v for v, (a, b) in enumerate(zip(one.size, other.size, strict=True)) if b < a]
    less = f"value {one.value_name(fallen[0])}" if fallen else "fixed memory"
    if fallen or other.fixed_memory < one.fixed_memory:
        raise UsageError(
            f"{less} has fewer bytes for a batch of {high} than for {low}", hint="are these the right batches?"
        )


def _difference(one: Graph, other: Graph) -> str | None:
    """The first thing in which two graphs differ, apart from name, costs and bytes; None if there is none."""
    if one.cost_unit != other.cost_unit:
        return f"costs are in {one.cost_unit} and {other.cost_unit}"
    if len(one.nodes) != len(other.nodes):
        return f"one has {len(one.nodes):,} nodes, the other {len(other.nodes):,}"
    for a, b in zip(one.nodes, other.nodes, strict=True):
        if a.id != b.id:
            return f"a node is {a.id} in one and {b.id} in the other"
        if (a.inputs, len(a.outputs)) != (b.inputs, len(b.outputs)):
            return f"node {a.id} reads or makes other values"
        if (a.recompute, a.offload, a.phase, a.queue) != (b.recompute, b.offload, b.phase, b.queue):
            return f"node {a.id} differs in recompute, offload, phase or queue"
    return None if one.outputs == other.outputs else "they have other outputs"
