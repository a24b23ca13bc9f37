"""Forward and backward, for strategies that need to know."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.errors import StrategyMismatch
from remat_cli.graph.model import Graph, Phase


def require_phases(graph: Graph, strategy: str) -> None:
    """Refuse a graph whose nodes do not all say to which phase they belong.

    Raises:
        StrategyMismatch: If one does not.
    """
    for node in graph.nodes:
        if node.phase is None:
            raise StrategyMismatch(
                f"{strategy} needs to know the forward nodes, and node {node.id} has no phase",
                hint="add phase: forward, loss, backward or update to every node",
            )


@dataclass(frozen=True, slots=True)
class Training:
    """A graph of which every node has a phase, the forward nodes first.

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
        """``graph`` with its parts.

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
                    f"{strategy} needs all forward nodes before the backward ones, and forward node {node.id} comes "
                    f"after {graph.nodes[sweep].phase} node {graph.nodes[sweep].id}",
                    hint="take a strategy that takes any DAG, such as auto",
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
                    f"{strategy} needs a forward pass that is a chain, and node {nodes[i].id} {told}",
                    hint="the strategies ap-sqrt, ap-greedy, linearized-sqrt and linearized-greedy take other graphs",
                )

    def articulation_points(self) -> tuple[int, ...]:
        """Forward nodes through which every forward path goes, ascending.

        These are the articulation points of the undirected forward graph with a source before all nodes that read no
        forward node and a sink behind all that no forward node reads: whatever is left when one is taken out still
        hangs on the source or on the sink.
        """
        place = {i: at for at, i in enumerate(self.forward)}
        jumping = [0] * (len(self.forward) + 1)
        read: set[int] = set()
        for at, i in enumerate(self.forward):
            before = [place[j] for j in self.predecessors(i)]
            read.update(before)
            # An edge jumps over all places between its ends; the source stands at -1.
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
