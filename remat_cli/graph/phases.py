"""The forward and backward part of a training step, for strategies that depend on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from remat_cli.errors import StrategyMismatch
from remat_cli.graph.model import Graph, Phase


def require_phases(graph: Graph, strategy: str) -> None:
    """Refuse a graph with nodes without a phase.

    Raises:
        StrategyMismatch: If a node has no phase.
    """
    for node in graph.nodes:
        if node.phase is None:
            raise StrategyMismatch(
                f"{strategy} needs the phase of every node, but node {node.id} has no phase",
                hint="add phase: forward, loss, backward or update to every node",
            )


@dataclass(frozen=True, slots=True)
class Training:
    """A graph in which every node has a phase, with the forward nodes first.

    Attributes:
        graph: The graph.
        forward: Its forward nodes, ascending.
        sweep: Nodes up to here (exclusive) are the forward sweep: forward and loss nodes.
    """

    graph: Graph
    forward: tuple[int, ...]
    sweep: int

    @classmethod
    def of(cls, graph: Graph, strategy: str) -> Training:
        """``graph`` with its forward nodes and its forward sweep.

        Raises:
            StrategyMismatch: If a node has no phase, or a forward node comes after a backward one.
        """
        require_phases(graph, strategy)
        sweep = len(graph.nodes)
        for i, node in enumerate(graph.nodes):
            if node.phase in {Phase.BACKWARD, Phase.UPDATE}:
                sweep = min(sweep, i)
            elif node.phase is Phase.FORWARD and i > sweep:
                raise StrategyMismatch(
                    f"{strategy} needs all forward nodes before the backward ones, but forward node {node.id} comes "
                    f"after {graph.nodes[sweep].phase} node {graph.nodes[sweep].id}",
                    hint="use a strategy that takes any DAG, such as auto",
                )
        forward = tuple(i for i, node in enumerate(graph.nodes) if node.phase is Phase.FORWARD)
        return cls(graph, forward, sweep)

    def predecessors(self, node: int) -> set[int]:
        """The forward nodes whose values ``node`` reads."""
        graph = self.graph
        makers = {graph.producer[v] for v in graph.nodes[node].inputs}
        return {i for i in makers if graph.nodes[i].phase is Phase.FORWARD}

    def require_chain(self, strategy: str) -> None:
        """Refuse a graph whose forward part is not a chain.

        Raises:
            StrategyMismatch: If a forward node reads anything but the forward node before it.
        """
        nodes = self.graph.nodes
        for before, i in zip((None, *self.forward), self.forward, strict=False):
            expected = set() if before is None else {before}
            if self.predecessors(i) != expected:
                others = sorted(self.predecessors(i) - expected)
                difference = f"reads {nodes[others[0]].id}" if others else "does not read the forward node before it"
                raise StrategyMismatch(
                    f"{strategy} needs a forward pass that is a chain, but node {nodes[i].id} {difference}",
                    hint="the strategies ap-sqrt, ap-greedy, linearized-sqrt and linearized-greedy take other graphs",
                )

    def articulation_points(self) -> tuple[int, ...]:
        """Forward nodes that disconnect the forward graph if they are removed, ascending.

        They are the cut vertices of the undirected graph of forward nodes (Checkmate, appendix B.1), in which a node
        that reads no forward node has an input of its own, and one that no forward node reads has a reader of its own.
        So on a chain all nodes are articulation points; and several inputs, such as the two texts of a translation, do
        not connect what reads them.
        """
        around: dict[int, list[int]] = {i: [] for i in self.forward}
        cuts = set()
        for i in self.forward:
            before = self.predecessors(i)
            if not before:
                cuts.add(i)
            for j in before:
                around[i].append(j)
                around[j].append(i)
        cuts.update(i for i, others in around.items() if all(j < i for j in others))
        seen: dict[int, int] = {}
        for i in self.forward:
            if i not in seen:
                cuts.update(_cut_vertices(around, i, seen))
        return tuple(sorted(cuts))


def _cut_vertices(around: Mapping[int, Sequence[int]], root: int, seen: dict[int, int]) -> Iterator[int]:
    """The cut vertices of the component of ``root``, some of them repeatedly (Hopcroft and Tarjan, 1973).

    ``seen`` has the nodes of other components; those of this one are added, numbered in the order of the search.
    """
    seen[root] = len(seen)
    lowest = {root: seen[root]}
    path = [(root, iter(around[root]))]
    branches = 0
    while path:
        node, others = path[-1]
        for other in others:
            if other not in seen:
                lowest[other] = seen[other] = len(seen)
                path.append((other, iter(around[other])))
                break
            lowest[node] = min(lowest[node], seen[other])
        else:
            path.pop()
            if not path:
                break
            above = path[-1][0]
            lowest[above] = min(lowest[above], lowest[node])
            if above == root:
                branches += 1
            elif lowest[node] >= seen[above]:
                yield above
    if branches > 1:
        yield root
