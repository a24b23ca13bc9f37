"""The forward and backward part of a training step, for strategies that depend on them."""

from __future__ import annotations

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
                told = f"reads {nodes[others[0]].id}" if others else "does not read the forward node before it"
                raise StrategyMismatch(
                    f"{strategy} needs a forward pass that is a chain, but node {nodes[i].id} {told}",
                    hint="the strategies ap-sqrt, ap-greedy, linearized-sqrt and linearized-greedy take other graphs",
                )

    def articulation_points(self) -> tuple[int, ...]:
        """Forward nodes through which every forward path goes, ascending.

        These are the articulation points of the undirected forward graph with two more nodes: a source before all nodes
        that read no forward node, and a sink after all nodes that no forward node reads. If a node is removed, every
        other node is still connected to the source or the sink, so only these two can be separated.
        """
        place = {i: at for at, i in enumerate(self.forward)}
        jumping = [0] * (len(self.forward) + 1)
        read: set[int] = set()
        for at, i in enumerate(self.forward):
            before = [place[j] for j in self.predecessors(i)]
            read.update(before)
            # An edge skips all nodes between its ends, so none of these is on every path. The source is at -1.
            jumping[min(before, default=-1) + 1] += 1
            jumping[at] -= 1
        for at in range(len(self.forward)):
            if at not in read:  # an edge to the sink
                jumping[at + 1] += 1
        over, found = 0, []
        for at, i in enumerate(self.forward):
            over += jumping[at]
            if over == 0:
                found.append(i)
        return tuple(found)
