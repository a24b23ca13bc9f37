"""The stages of a chain as small graphs of their own, and what each may keep; equal stages have equal graphs.

The graph of a stage has a *source*, which makes the input of the block; the nodes of the block; the *turn*, which reads
the output of the block and makes the gradients that wait by then; and the nodes of the rest. What is in memory at the
turn is what the stage keeps while all later stages run. The input stays at least to the turn; what no earlier stage
reads may go when the rest has read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.mip import Bools
from remat_cli.plan.liveness import cost_of, heights, priced
from remat_cli.strategies.chains.extract import Chain
from remat_cli.strategies.chains.visits import forward_end
from remat_cli.strategies.openers.clearing import Choice, Network, Question
from remat_cli.tolerances import ROUNDING

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


# Doubling all constants of ``chains`` and ``repeated`` makes the gap larger, halving does not (benchmark ``ablation``).
_MOST = 24
"""Most corners of the hull to look for, and most choices of a stage."""


@dataclass(frozen=True, slots=True)
class Option:
    """A way to run a stage; bytes leave out the input of the block.

    Attributes:
        forward: Nodes of the block that run before the turn, by their numbers in the small graph.
        rest: Nodes that run after it.
        cost: Cost of both.
        kept: Bytes kept at the turn, the output of the block included.
        forward_peak: Most bytes in memory before the turn.
        rest_peak: Most bytes in memory after it, waiting gradients included.
    """

    forward: tuple[int, ...]
    rest: tuple[int, ...]
    cost: float
    kept: int
    forward_peak: int
    rest_peak: int


def options_of(part: Part) -> tuple[Option, ...]:
    """The choices of a stage, none of which is as good as another in every respect; the cheapest first.

    A choice keeps some values of the block at the turn; the rest recomputes the others. The cheapest choice at a price
    per byte is a minimum cut (``openers/clearing``). The choices for all prices are the corners of the convex hull of
    (bytes kept, cost). Each is run once in the small graph, which gives the bytes that it needs in every phase.
    """
    graph = part.graph
    found = {choice.again.tobytes(): choice.again for choice in _corners(part)}
    options = []
    for again in found.values():
        computes = _run(graph, part.turn, again)
        options.append(measured(part, computes))
    return undominated(options)


def undominated(options: Sequence[Option]) -> tuple[Option, ...]:
    """``options`` without those that another one beats or equals in cost and in all bytes; the cheapest first."""
    kept: list[Option] = []
    for one in sorted(options, key=lambda o: (o.cost, o.kept, o.rest_peak, o.forward_peak)):
        if not any(
            other.kept <= one.kept and other.rest_peak <= one.rest_peak and other.forward_peak <= one.forward_peak
            for other in kept
        ):
            kept.append(one)
    return tuple(kept)


def measured(part: Part, computes: Sequence[int]) -> Option:
    """The option that runs the small graph by ``computes``."""
    graph = part.graph
    sequence = priced(graph, computes).computes
    in_use = heights(graph, sequence)
    turn = sequence.index(part.turn)
    waiting = sum(graph.nodes[part.turn].outputs)
    return Option(
        forward=sequence[1:turn],
        rest=sequence[turn + 1 :],
        cost=cost_of(graph, sequence),
        kept=in_use[turn] - part.input_bytes - waiting,
        forward_peak=max(*in_use[:turn], in_use[turn] - waiting) - part.input_bytes,
        rest_peak=max(in_use[turn + 1 :], default=0) - part.input_bytes,
    )


def _corners(part: Part) -> list[Choice]:
    """The choices at all prices."""
    graph, turn = part.graph, part.turn
    room = max(1, sum(graph.size))
    network = Network.of(graph, room)
    first, end = graph.first_value[1], graph.first_value[turn]
    wanted = np.zeros(len(graph.size), dtype=np.bool_)
    for v in range(first, end):
        wanted[v] = any(j > turn for j in graph.readers[v])
    charge = np.array(graph.size, dtype=np.float64)
    charge[:first] = 0.0
    charge[list(graph.nodes[turn].inputs)] = 0.0
    question = Question(wanted, charge, turn)
    nothing: Bools = np.zeros(len(graph.nodes), dtype=np.bool_)
    keeping = Choice(nothing, 0.0, float(charge[wanted].sum()), 0.0)
    if not keeping.kept_bytes:
        return [keeping]
    leaving = network.choose(question, 1e3)
    found = [keeping, leaving]
    todo = [(keeping, leaving)]
    while todo and len(found) < _MOST:
        over, within = todo.pop(0)
        apart = over.kept_bytes - within.kept_bytes
        if apart <= 0 or within.cost <= over.cost:
            continue
        price = (within.cost - over.cost) / apart
        choice = network.choose(question, price * room)
        line = over.cost + price * over.kept_bytes
        if choice.cost + price * choice.kept_bytes >= line * (1 - ROUNDING) - ROUNDING:
            continue
        found.append(choice)
        todo += [(over, choice), (choice, within)]
    return found


def _run(graph: Graph, turn: int, again: Bools) -> list[int]:
    """The sequence in which the nodes ``again`` run once more, each right before it is needed."""
    computes = list(range(turn + 1))
    missing = set(np.flatnonzero(again).tolist())
    for i in range(turn + 1, len(graph.nodes)):
        needed: set[int] = set()
        todo = [i]
        while todo:
            for v in graph.nodes[todo.pop()].inputs:
                if (maker := graph.producer[v]) in missing:
                    missing.discard(maker)
                    needed.add(maker)
                    todo.append(maker)
        computes += sorted(needed)
        computes.append(i)
    return computes


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
    nodes = [
        replace(
            node,
            inputs=tuple(v for v in node.inputs if v not in staying),
            phase=node.phase or (Phase.FORWARD if i < end else Phase.BACKWARD),
        )
        for i, node in enumerate(graph.nodes)
    ]
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
