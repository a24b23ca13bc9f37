"""From a training step to a chain of stages, in the sense of Rotor (Beaumont et al., INRIA RR-9302).

The forward part is cut after every node that no forward value passes by: later forward nodes then read, of this node
and all before it, only values of this node. Between two cuts lies a block. Stage s has block s, which makes a_(s+1),
the values that block s + 1 reads; and those nodes of the rest (loss and backward) that read a_s or values of block s.
The last stage has no block: it is the loss with all nodes that read only a_L.

A node of the rest that reads values of several blocks, or of a block whose stage is over, makes the cuts between these
blocks invalid; the blocks are merged. If there are more blocks than a method can solve, neighbours are grouped to a
chain of fewer and larger blocks. Its schedules are schedules of the graph, but it proves no bound.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from remat_cli.errors import StrategyMismatch, UsageError
from remat_cli.graph.model import Graph
from remat_cli.graph.phases import Training
from remat_cli.plan.liveness import cost_of
from remat_cli.tolerances import SUM_ROUNDING

_FEWEST_BLOCKS, _MOST_BLOCKS = 2, 2_000


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage; bytes leave out the input of the block, and graph outputs, which are counted apart.

    Attributes:
        block: Its forward nodes; none in the last stage.
        rest: Its nodes of the rest; may be empty.
        cost: Cost of the block.
        rest_cost: Cost of the rest.
        output: Bytes of the values that the next block reads (a).
        tape: Bytes of these and of the block's values that the rest of this stage reads (abar).
        taped: Whether the rest reads a value of the block, so that the block must run right before it.
        plain_peak: Peak in bytes while the block runs and keeps only its output.
        taped_peak: The same if it keeps the tape.
        rest_peak: Peak in bytes while the rest of the stage runs: tape, gradients, workspace.
        waiting: Bytes of values of the rest (gradients) that are resident before the rest of this stage runs, and while
            lower blocks run on the way to it.
        frozen: Whether a node of the block may run only once.
    """

    block: tuple[int, ...]
    rest: tuple[int, ...]
    cost: float
    rest_cost: float
    output: int
    tape: int
    taped: bool
    plain_peak: int
    taped_peak: int
    rest_peak: int
    waiting: int
    frozen: bool


@dataclass(frozen=True, slots=True)
class Chain:
    """A training step as stages 0 .. L.

    Attributes:
        graph: The graph.
        stages: L + 1 stages, the last one without a block.
        always: Bytes of forward values that are graph outputs; counted as always resident.
        simple: Whether every block is one node, so that the model of a chain is exact.
    """

    graph: Graph
    stages: tuple[Stage, ...]
    always: int
    simple: bool

    @classmethod
    def of(cls, graph: Graph, strategy: str, most: int | None = None) -> Chain:
        """The chain of ``graph``, cut as finely as possible, or into at most ``most`` blocks.

        Args:
            graph: The graph.
            strategy: Name of the strategy, for error messages.
            most: Most blocks; None for no limit.

        Raises:
            StrategyMismatch: If a node has no phase, a forward node comes after a backward one, or there are no two
                blocks; with the reason.
        """
        training = Training.of(graph, strategy)
        if not training.forward:
            raise StrategyMismatch(f"{strategy} needs a forward pass, and no node of {graph.name} is a forward node")
        end = training.forward[-1] + 1
        cuts, why = _merged(graph, end, _cuts(graph, end))
        if len(cuts) < 2 or (len(cuts) == 2 and cuts[0] == 0 and cuts[1] > 1):  # the first node alone is no cut
            raise StrategyMismatch(
                f"{strategy} needs a chain of blocks, and the forward pass is one block: {why}",
                hint="take a strategy that takes any DAG, such as auto",
            )
        if most is not None and len(cuts) > most:
            cuts = _grouped(graph, cuts, most)
        return _chain(graph, end, cuts)

    def grouped(self, last: Iterable[int]) -> Chain:
        """The chain with fewer cuts: after the blocks ``last``, ascending, and after the last block."""
        ends = sorted({*last, self.length - 1})
        cuts = [self.stages[s].block[-1] for s in ends]
        return _chain(self.graph, self.stages[self.length - 1].block[-1] + 1, cuts)

    @property
    def length(self) -> int:
        """L: number of blocks."""
        return len(self.stages) - 1

    def computes(self, runs: Iterable[int]) -> tuple[int, ...]:
        """The sequence of computes of ``runs``: s >= 0 runs block s, ``~s`` the rest of stage s.

        A node that may run only once is skipped the second time: its values stay resident.
        """
        done: set[int] = set()
        computes = []
        for run in runs:
            for i in self.stages[run].block if run >= 0 else self.stages[~run].rest:
                if self.graph.nodes[i].recompute or i not in done:
                    computes.append(i)
                    done.add(i)
        return tuple(computes)


def _cuts(graph: Graph, end: int) -> list[int]:
    """Forward nodes that no forward value passes by, ascending; the last one is among them."""
    cuts, furthest = [], 0
    for i in range(end):
        if furthest <= i:
            cuts.append(i)
        reach = max((j for v in graph.values_of(i) for j in graph.readers[v] if j < end), default=i)
        furthest = max(furthest, reach)
    return cuts


def _merged(graph: Graph, end: int, cuts: list[int]) -> tuple[list[int], str]:
    """``cuts`` without those that a node of the rest makes invalid, and the reason for missing cuts in words."""
    why = _widest(graph, end)
    while True:
        block, crossing = _blocks(graph, end, cuts)
        invalid: set[int] = set()
        current = len(cuts)
        for v in range(end, len(graph.nodes)):
            low, high = _places(graph, v, block, crossing, len(cuts))
            current = min(current, high)
            if current < low:
                invalid.update(range(current, low))
                first, last = graph.nodes[cuts[current]].id, graph.nodes[cuts[low]].id
                why = f"the turn of node {graph.nodes[v].id} comes amid what it reads, between {first} and {last}"
        if not invalid:
            return cuts, why
        cuts = [c for k, c in enumerate(cuts) if k not in invalid]


def _grouped(graph: Graph, cuts: list[int], most: int) -> list[int]:
    """At most ``most`` of ``cuts``, with about equal sums of the shares in cost and in bytes between them.

    A subset of valid cuts is valid: the values that a node of the rest reads lie in no more blocks than before.
    """
    nodes = graph.nodes[: cuts[-1] + 1]
    cost = math.fsum(node.cost for node in nodes) or 1.0
    size = sum(sum(node.outputs) for node in nodes) or 1
    reached = list(itertools.accumulate(node.cost / cost + sum(node.outputs) / size for node in nodes))
    shares = [reached[c] for c in cuts]
    chosen = {bisect_left(shares, k * shares[-1] / most * (1 - SUM_ROUNDING)) for k in range(1, most)}
    return [*(cuts[k] for k in sorted(chosen) if k < len(cuts) - 1), cuts[-1]]


def _widest(graph: Graph, end: int) -> str:
    """The forward value that passes by the most nodes, in words."""
    jumps = [(j - i, i, j) for i in range(end) for v in graph.values_of(i) for j in graph.readers[v] if j < end]
    if not jumps:
        return "no forward node reads another"
    _, i, j = max(jumps, key=lambda jump: (jump[0], -jump[1]))
    return f"node {graph.nodes[j].id} still reads what node {graph.nodes[i].id} makes"


def _blocks(graph: Graph, end: int, cuts: list[int]) -> tuple[list[int], set[int]]:
    """The block of every forward node, and the values that the next block reads; of the last cut all that are read."""
    block = [bisect_left(cuts, i) for i in range(end)]
    crossing = {
        v
        for c in cuts
        for v in graph.values_of(c)
        if graph.readers[v] and (c == cuts[-1] or any(c < j < end for j in graph.readers[v]))
    }
    return block, crossing


def _places(graph: Graph, node: int, block: list[int], crossing: set[int], length: int) -> tuple[int, int]:
    """The first and the last stage that has all inputs of ``node``; the first is later than the last if none has.

    A stage has the values of its block and its input, the output of the block before.
    """
    low, high = 0, length
    for v in graph.nodes[node].inputs:
        maker = graph.producer[v]
        if maker < len(block):
            low = max(low, block[maker])
            high = min(high, block[maker] + (v in crossing))
    return low, high


def _chain(graph: Graph, end: int, cuts: list[int]) -> Chain:
    """The stages between valid cuts."""
    block, crossing = _blocks(graph, end, cuts)
    length = len(cuts)
    rests: list[list[int]] = [[] for _ in range(length + 1)]
    current = length
    for v in range(end, len(graph.nodes)):
        current = min(current, _places(graph, v, block, crossing, length)[1])
        rests[current].append(v)
    outputs = frozenset(graph.outputs)
    always = {v for v in outputs if graph.producer[v] < end}
    count = _Count(graph, end, tuple(0 if v in always else size for v, size in enumerate(graph.size)), outputs)
    stages: list[Stage] = []
    waiting = count.waiting(rests)
    following = len(graph.nodes)  # the first node of the rest that belongs to a lower stage
    for s, rest in enumerate(rests):
        begin = following - len(rest)
        nodes = range(cuts[s - 1] + 1 if s else 0, cuts[s] + 1) if s < length else range(end, end)
        beyond = range(end, len(graph.nodes) - sum(map(len, rests[:length]))) if s == length - 1 else range(end)
        stages.append(count.stage(nodes, range(begin, following), beyond, waiting[s]))
        following = begin
    simple = not always and all(len(stage.block) <= 1 for stage in stages)
    return Chain(graph, tuple(stages), sum(graph.size[v] for v in always), simple)


@dataclass(frozen=True, slots=True)
class _Count:
    """Counts the bytes of stages.

    Attributes:
        graph: The graph.
        end: Number of forward nodes.
        size: Bytes of every value; 0 if it is not counted.
        outputs: The graph outputs.
    """

    graph: Graph
    end: int
    size: tuple[int, ...]
    outputs: frozenset[int]

    def waiting(self, rests: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """For every stage the values of earlier backward nodes that its rest, or a node after that, still reads."""
        found: list[tuple[int, ...]] = []
        there: list[int] = []
        start = self.end
        for rest in reversed(rests):
            there = [v for v in there if self._last(v) >= start]
            found.append(tuple(there))
            there += [v for i in range(start, start + len(rest)) for v in self.graph.values_of(i)]
            start += len(rest)
        return found[::-1]

    def stage(self, block: range, rest: range, beyond: range, waiting: Sequence[int]) -> Stage:
        """The stage of a block and its rest.

        Args:
            block: Nodes of the block.
            rest: Backward nodes that run in this stage.
            beyond: Nodes whose reads make a value of the block its output; those within the block do not.
            waiting: Values of earlier backward nodes that are still read.
        """
        graph = self.graph
        made = [v for i in block for v in graph.values_of(i)]
        output = {v for v in made if any(j in beyond and j not in block for j in graph.readers[v])}
        read = {v for v in made if any(j in rest for j in graph.readers[v])}
        return Stage(
            block=tuple(block),
            rest=tuple(rest),
            cost=cost_of(graph, block),
            rest_cost=cost_of(graph, rest),
            output=sum(self.size[v] for v in output),
            tape=sum(self.size[v] for v in output | read),
            taped=bool(read),
            plain_peak=self._peak(block, (), output),
            taped_peak=self._peak(block, (), output | read),
            rest_peak=self._peak(rest, (*waiting, *read), self.outputs),
            waiting=sum(self.size[v] for v in waiting),
            frozen=any(not graph.nodes[i].recompute for i in block),
        )

    def _last(self, value: int) -> int:
        """The last reader of a value, beyond all nodes for a graph output, -1 if there is none."""
        if value in self.outputs:
            return len(self.graph.nodes)
        return self.graph.readers[value][-1] if self.graph.readers[value] else -1

    def _peak(self, nodes: range, before: Iterable[int], stays: Collection[int]) -> int:
        """Peak in bytes while ``nodes`` run, of their values and of the values ``before``, which are resident already.

        A value dies after its last reader among them, unless it stays or, if it is one of ``before``, is read later.
        """
        graph = self.graph
        last: dict[int, int] = {}
        for i in nodes:
            last.update(dict.fromkeys(graph.nodes[i].inputs, i))
        dying: dict[int, int] = {}  # bytes freed right after a node
        held = highest = 0
        for v in before:
            until = max(last.get(v, -1), self._last(v) if graph.producer[v] >= self.end else -1)
            if until >= nodes.start:
                held += self.size[v]
                dying[until] = dying.get(until, 0) + self.size[v]
        for i in nodes:
            held += sum(self.size[v] for v in graph.values_of(i))
            highest = max(highest, held + graph.nodes[i].workspace)
            for v in graph.values_of(i):
                if v not in stays:
                    until = max(i, self._last(v) if i >= self.end else last.get(v, -1))
                    dying[until] = dying.get(until, 0) + self.size[v]
            held -= dying.get(i, 0)
        return highest


def require_blocks(strategy: str, blocks: int) -> None:
    """Refuse a number of blocks that makes no chain, or too long a one.

    Raises:
        UsageError: If it is out of range.
    """
    if not _FEWEST_BLOCKS <= blocks <= _MOST_BLOCKS:
        raise UsageError(
            f"{strategy}{{blocks={blocks}}}: out of range",
            hint=f"choose from {_FEWEST_BLOCKS} to {_MOST_BLOCKS}: time grows with the third power of the number",
        )
