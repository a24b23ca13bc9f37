"""The stages of a chain as small graphs of their own, and what each may keep; equal stages have equal graphs.

The graph of a stage has a *source*, which makes the input of the block; the nodes of the block; the *turn*, which reads
the output of the block and makes the gradients that wait by then; and the nodes of the rest. What is in memory at the
turn is what the stage keeps while all later stages run. The input stays at least to the turn; what no earlier stage
reads may go when the rest has read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.strategies.chains.extract import Chain
from remat_cli.strategies.chains.visits import forward_end

Shape = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A kind of stage.

    Attributes:
        graph: The small graph.
        turn: The node of the turn.
        input_bytes: Bytes of the input of the block.
    """

    graph: Graph
    turn: int
    input_bytes: int


@dataclass(frozen=True, slots=True)
class Parts:
    """The stages of a chain by kind.

    Attributes:
        kind: For every stage the number of its kind.
        parts: The kinds, in the order of their first stages.
    """

    kind: tuple[int, ...]
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, chain: Chain) -> Parts:
        """Sort the stages of ``chain`` by structure: costs, sizes, flags, edges, and what crosses their borders."""
        reader = _Reader(chain)
        known: dict[Shape, int] = {}
        kinds: list[int] = []
        parts: list[Part] = []
        for s in range(len(chain.stages)):
            shape = reader.shape(s)
            if shape not in known:
                known[shape] = len(parts)
                parts.append(reader.part(shape))
            kinds.append(known[shape])
        return cls(tuple(kinds), tuple(parts))


class _Reader:
    """Reads stages in their own numbers: every value by its place among the input, the gradients, or its own."""

    def __init__(self, chain: Chain) -> None:
        self.chain, self.graph = chain, chain.graph
        graph = self.graph
        self.end = chain.stages[chain.length - 1].block[-1] + 1
        self.outputs = frozenset(graph.outputs)
        self.size = [
            0 if v in self.outputs and graph.producer[v] < self.end else size for v, size in enumerate(graph.size)
        ]
        self.waiting = self._waiting()

    def _waiting(self) -> list[tuple[int, ...]]:
        """For every stage the values of earlier rests that its rest or a later one reads, or that are outputs."""
        found: list[tuple[int, ...]] = []
        there: list[int] = []
        for stage in reversed(self.chain.stages):
            start = stage.rest[0] if stage.rest else None
            if start is not None:
                there = [v for v in there if self._last(v) >= start]
            found.append(tuple(there))
            there += [v for i in stage.rest for v in self.graph.values_of(i)]
        return found[::-1]

    def _last(self, value: int) -> int:
        if value in self.outputs:
            return len(self.graph.nodes)
        return self.graph.readers[value][-1] if self.graph.readers[value] else -1

    def shape(self, s: int) -> Shape:
        """All that distinguishes stage ``s`` from others, in numbers that equal stages share."""
        graph, stage = self.graph, self.chain.stages[s]
        waiting = self.waiting[s]
        made = [v for i in (*stage.block, *stage.rest) for v in graph.values_of(i)]
        own = {v: k for k, v in enumerate(made)}
        wait = {v: k for k, v in enumerate(waiting)}
        foreign = sorted(
            {v for i in (*stage.block, *stage.rest) for v in graph.nodes[i].inputs if v not in own and v not in wait}
        )
        into = {v: k for k, v in enumerate(foreign)}

        def place(v: int) -> tuple[int, int]:
            return (0, own[v]) if v in own else (1, wait[v]) if v in wait else (2, into[v])

        def described(nodes: Iterable[int]) -> tuple[object, ...]:
            return tuple(
                (
                    graph.nodes[i].cost,
                    tuple(self.size[v] for v in graph.values_of(i)),
                    graph.nodes[i].workspace,
                    graph.nodes[i].recompute,
                    tuple(place(v) for v in graph.nodes[i].inputs),
                )
                for i in nodes
            )

        block = set(stage.block)
        after = stage.rest[-1] if stage.rest else -1
        handed = tuple(
            own[v]
            for i in stage.block
            for v in graph.values_of(i)
            if any(j not in block and j < self.end for j in graph.readers[v])
        )
        if s == len(self.chain.stages) - 2:  # what the loss and its rest read is the output of the last block
            beyond = set(self.chain.stages[s + 1].rest)
            handed = tuple(
                own[v] for i in stage.block for v in graph.values_of(i) if not beyond.isdisjoint(graph.readers[v])
            )
        lasting = tuple(own[v] for i in stage.rest for v in graph.values_of(i) if self._last(v) > after)
        staying = tuple(wait[v] for v in waiting if not stage.rest or self._last(v) > after)
        last = stage.rest[-1] if stage.rest else self.end - 1
        asked = tuple(into[v] for v in foreign if not stage.rest or self._last(v) > last)
        return (
            described(stage.block),
            described(stage.rest),
            tuple(self.size[v] for v in foreign),
            tuple(self.size[v] for v in waiting),
            handed,
            lasting,
            staying,
            asked,
            (stage.output, stage.tape, stage.plain_peak, stage.waiting, stage.taped, stage.frozen),
        )

    def part(self, shape: Shape) -> Part:
        """The small graph of a shape."""
        block, rest, into, waiting, handed, lasting, staying, asked, _ = shape
        assert isinstance(block, tuple)
        assert isinstance(rest, tuple)
        assert isinstance(into, tuple)
        assert isinstance(waiting, tuple)
        assert isinstance(handed, tuple)
        assert isinstance(lasting, tuple)
        assert isinstance(staying, tuple)
        assert isinstance(asked, tuple)
        made = sum(len(node[1]) for node in block)
        first_waiting = len(into) + made

        def value(place: tuple[int, int]) -> int:
            where, k = place
            if where == 2:
                return k
            if where == 1:
                return first_waiting + k
            return len(into) + k + (len(waiting) if k >= made else 0)

        def node(name: str, described: tuple[float, tuple[int, ...], int, bool, tuple[tuple[int, int], ...]]) -> Node:
            cost, outputs, workspace, recompute, inputs = described
            return Node(name, cost, tuple(map(value, inputs)), outputs, workspace=workspace, recompute=recompute)

        turn = Node("turn", 0.0, (*range(len(into)), *(value((0, k)) for k in handed)), waiting, recompute=False)
        nodes = [
            Node("source", 0.0, (), into, recompute=False),
            *(node(f"block{k}", one) for k, one in enumerate(block)),
            turn,
            *(node(f"rest{k}", one) for k, one in enumerate(rest)),
        ]
        outputs = {*asked, *(value((0, k)) for k in lasting), *(value((1, k)) for k in staying)}
        graph = Graph("stage", tuple(nodes), tuple(sorted(outputs)))
        return Part(graph, 1 + len(block), sum(into))


_SHARE = 0.05
"""Most bytes of values that stay, as a share of the room."""
_FEWEST_BLOCKS = 4
"""Spans down to that of a forward part of so many blocks are tried, then half as long ones, and so on."""
_HALVINGS = 8


@dataclass(frozen=True, slots=True)
class Reduced:
    """A graph whose nodes have the numbers of the original.

    Attributes:
        graph: The graph without reads of the values that stay; every node has a phase.
        staying: The values that stay.
        staying_bytes: Their bytes.
    """

    graph: Graph
    staying: frozenset[int]
    staying_bytes: int


def reduced(graph: Graph, room_bytes: int) -> Reduced:
    """``graph`` without reads of values that pass by its blocks, so that its largest block is smallest.

    Language models make a few values once and read them in every block: a causal mask, the cosines and sines of
    positions. Such a value passes by every cut between blocks, so that the forward part would be one block. If these
    values are small they stay in memory, and the chain is cut as if nobody read them.

    Args:
        graph: The graph; without phases, the stages up to the no-remat peak count as the forward part.
        room_bytes: The budget without fixed memory.
    """
    end = forward_end(graph)
    reach = [max((j for j in of if j < end), default=i) for i, of in zip(graph.producer, graph.readers, strict=True)]
    forward = range(graph.first_value[end])
    best: tuple[int, frozenset[int]] = (_largest(graph, end, reach, frozenset()), frozenset())
    for halving in range(_HALVINGS):
        span = end / _FEWEST_BLOCKS / 2**halving
        staying = frozenset(v for v in forward if reach[v] - graph.producer[v] > span)
        if sum(graph.size[v] for v in staying) > _SHARE * room_bytes:
            break
        if staying != best[1]:
            best = min(best, (_largest(graph, end, reach, staying), staying), key=lambda found: found[0])
    staying = best[1]
    nodes = []
    for i, node in enumerate(graph.nodes):
        inputs = tuple(v for v in node.inputs if v not in staying)
        phase = node.phase or (Phase.FORWARD if i < end else Phase.BACKWARD)
        same = inputs == node.inputs and phase is node.phase
        nodes.append(node if same else replace(node, inputs=inputs, phase=phase))  # making a node takes long
    lasting = tuple(v for v in graph.outputs if v not in staying)
    return Reduced(replace(graph, nodes=tuple(nodes), outputs=lasting), staying, sum(graph.size[v] for v in staying))


def _largest(graph: Graph, end: int, reach: list[int], staying: frozenset[int]) -> int:
    """Number of nodes of the largest block between forward nodes that no other forward value passes by."""
    largest = begin = furthest = 0
    for i in range(end):
        if furthest <= i:
            largest, begin = max(largest, i + 1 - begin), i + 1
        furthest = max(furthest, *(reach[v] for v in graph.values_of(i) if v not in staying), 0)
    return max(largest, end - begin)
