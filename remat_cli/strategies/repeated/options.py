"""The ways to run a stage of a chain: what it keeps at its turn, and what its rest computes again, how often.

The stages are small graphs (see ``parts``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from remat_cli.control import Control
from remat_cli.graph.model import Graph
from remat_cli.mip import Bools
from remat_cli.plan.liveness import cost_of, heights, next_reads, priced
from remat_cli.strategies.openers.clearing import Choice, Network, Question
from remat_cli.strategies.repeated.parts import Part
from remat_cli.tolerances import ROUNDING

# Doubling all constants of ``chains`` and ``repeated`` makes the gap larger, halving does not (benchmark ``ablation``).
_MOST = 24
"""Most corners of the hull to look for."""
_SLIMMED, _MOST_TURNS, _MOST_NODES = 6, 12, 600
"""How many choices are made to need less, and most times for each; none of larger graphs, as that takes seconds. With
3 choices ResNet-1001 has no plan at 2 working sets, and with all a DenseNet takes twice as long (by hand)."""
_NEAR = 0.02
"""Steps that need nearly as much as the highest one are cleared with it; with 0 and .3 plans cost more (by hand)."""


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


def options_of(part: Part, control: Control | None = None) -> tuple[Option, ...]:
    """The choices of a stage, none of which is as good as another in every respect; the cheapest first.

    A choice keeps some values of the block at the turn; the rest recomputes the others. The cheapest choice at a price
    per byte is a minimum cut (``openers/clearing``). The choices for all prices are the corners of the convex hull of
    (bytes kept, cost). Each is run once in the small graph, which gives the bytes that it needs in every phase.

    Args:
        part: The stage.
        control: Ends the search for choices whose rest drops values once more where it needs much memory; None for none
            of these.
    """
    graph = part.graph
    found = {choice.again.tobytes(): choice.again for choice in _corners(part)}
    network = Network.of(graph, sum(graph.size))
    sequences = [priced(graph, _run(graph, part.turn, again)).computes for again in found.values()]
    options = [measured(part, computes) for computes in sequences]
    if control is not None and len(graph.nodes) <= _MOST_NODES:
        for computes in sequences[:_SLIMMED]:
            options += [measured(part, one) for one in _slimmer(part, network, computes, control)]
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
    return [*range(turn + 1), *_late(graph, range(turn + 1, len(graph.nodes)), again)]


def _late(graph: Graph, sequence: Iterable[int], again: Bools) -> Iterator[int]:
    """``sequence`` with each of the nodes ``again`` right before it is needed."""
    missing = set(np.flatnonzero(again).tolist())
    for i in sequence:
        needed: set[int] = set()
        todo = [i]
        missing.discard(i)
        while todo:
            for v in graph.nodes[todo.pop()].inputs:
                if (maker := graph.producer[v]) in missing:
                    missing.discard(maker)
                    needed.add(maker)
                    todo.append(maker)
        yield from sorted(needed)
        yield i


def _slimmer(part: Part, network: Network, computes: Sequence[int], control: Control) -> Iterator[tuple[int, ...]]:
    """Sequences that need less and less memory after the turn, each from the one before.

    Around the step that needs the most, some values that wait for a later read are dropped, and computed again when
    they are needed: the cheapest that take a byte or more, by a minimum cut.
    """
    graph, sequence = part.graph, tuple(computes)
    for _ in range(_MOST_TURNS):
        in_use = np.array(heights(graph, sequence), dtype=np.int64)
        rest = sequence.index(part.turn) + 1
        if rest == len(sequence) or control.stopping():
            break
        highest = rest + int(in_use[rest:].argmax())
        low = np.append(np.flatnonzero(in_use <= in_use[highest] * (1 - _NEAR)), len(sequence))
        place = int(np.searchsorted(low, highest))
        begin, end = max(rest, int(low[place - 1]) + 1 if place else 0), int(low[place])
        reads = next_reads(graph, sequence, (begin, end))
        before, after = np.array(reads[begin], dtype=np.int64), np.array(reads[end], dtype=np.int64)
        waiting = before >= end  # what is read in between is in memory there anyway
        charge = np.where(before >= 0, network.size, np.inf)
        charge[(after >= 0) & ~waiting] = 0.0
        if not charge[waiting].any():
            break
        question = Question(waiting, charge, max(sequence[:end]) + 1)
        choice = network.search(question, float(charge[waiting].sum()) - 1.0).within
        if choice is None or not choice.again.any():
            break
        following = priced(graph, (*sequence[:end], *_late(graph, sequence[end:], choice.again))).computes
        if following == sequence:
            break
        sequence = following
        yield sequence
