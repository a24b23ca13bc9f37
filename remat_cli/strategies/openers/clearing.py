"""Schedules of large graphs, by dropping values across the part of a schedule that is over the budget, and a bound.

A *stretch* is a run of steps around the one that needs the most memory. To clear it, some of the values that wait
through it are dropped and recomputed at its end, together with the inputs that they need (see ``closure``). If that
raises another stretch above the budget, that one is cleared next. One minimum cut decides on all values together,
because dropped values share the nodes that they need: a long run of recomputation pays for many values where it would
not pay for one. On random layered graphs a value needs half of the layer before it, and methods that decide on one
value at a time find no schedule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_profile, working_set
from remat_cli.graph.model import Graph
from remat_cli.mip import Bools, Ints
from remat_cli.plan import liveness
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Bound
from remat_cli.strategies.bounds import of_share
from remat_cli.strategies.engine import Engine
from remat_cli.strategies.openers.closure import Choice, Network, Question

WAYS = ((1.0, 0.05), (1.5, 0.0), (1.5, 0.02), (1.0, 0.1), (2.0, 0.05))
"""(divisor of the excess to clear in one turn, share of the room that must be free where a stretch ends). Untuned."""
_MOST_TURNS = 12
"""Stretches to clear in one way. Untuned."""
_MOST_COST = 0.5
"""A way ends when its recomputation costs more than this multiple of C0. Untuned."""
_RISING = 2
"""A way ends after this many turns in a row without a smaller excess. Untuned."""
_SMALL = 0.02
"""An excess below this share of the room is cleared in one turn; of a larger one at least this share is. Untuned."""
_JOINED = 200
"""Steps over the budget no further apart than the schedule's length divided by this form one stretch. Untuned."""
_DEARER = (1.2, 2.0, 4.0)
"""Prices at which to extend a choice that frees too little, relative to the last price of the search. Untuned."""
_FINE = 256
"""How far to extend is found to within the graph's size divided by this. Untuned."""
_NEAR = 1.02
"""A choice that costs at most this multiple of the lower bound is accepted without a further search. Untuned."""
_NOT_SO_LOW = 0.05
"""Where the target cannot be reached, this share of the bytes that could be freed need not be. Untuned."""


def span_bound(graph: Graph, network: Network, budget_bytes: int, t: int) -> float:
    """Lower bound on the cost in document order within the budget, from what must be kept or recomputed at stage t."""
    target = budget_bytes - graph.fixed_memory - working_set(graph, t)
    if target < 0:
        return math.inf
    ends = set(graph.outputs)
    charge = network.size.copy()
    charge[list(graph.nodes[t].inputs)] = 0.0
    wanted = np.array([v in ends or (bool(readers) and readers[-1] > t) for v, readers in enumerate(graph.readers)])
    wanted[graph.first_value[t] :] = False
    found = network.search(Question(wanted, charge, t), float(target))
    return of_share(graph, found.bound)


@dataclass(slots=True)
class Clearings(Engine):
    """Bounds the cost by the stage that needs the most memory, then clears stretches in several ways."""

    network: Network | None = None

    def work(self, ways: int = 0) -> bool:
        """Raise the bound, and offer schedules.

        Args:
            ways: Number of ways to try in any case; the others are tried only while there is no schedule.
        """
        incumbent, graph = self.incumbent, self.incumbent.graph
        incumbent.report("clearing")
        if self.network is None:
            self.network = Network.of(graph, incumbent.budget_bytes - graph.fixed_memory)
            profile = no_remat_profile(graph)
            bound = span_bound(graph, self.network, incumbent.budget_bytes, profile.index(max(profile)))
            incumbent.raise_bound(Bound(bound, Scope.DOCUMENT_ORDER))
        for tried, (parts, spare) in enumerate(WAYS):
            if incumbent.over() or (tried >= ways and incumbent.computes is not None):
                break
            computes = Clearing(graph, self.network, parts, spare).run(incumbent.context.control)
            if computes is not None:
                incumbent.offer(computes)
        return False


@dataclass(frozen=True, slots=True)
class Clearing:
    """One way to clear stretches until the schedule fits.

    Attributes:
        graph: The graph.
        network: Its network, with the room.
        parts: One turn clears the excess divided by this.
        spare: A stretch ends where at least this share of the room is free.
    """

    graph: Graph
    network: Network
    parts: float
    spare: float

    def run(self, control: Control) -> tuple[int, ...] | None:
        """A schedule within the room, or None if this way finds none."""
        room = self.network.room_bytes
        sequence, lowest, rising = tuple(range(len(self.graph.nodes))), math.inf, 0
        for _ in range(_MOST_TURNS):
            heights = np.array(liveness.heights(self.graph, sequence), dtype=np.int64) - self.graph.fixed_memory
            excess = int(heights.max()) - room
            if excess <= 0:
                return sequence
            rising = rising + 1 if excess >= lowest else 0
            lowest = min(lowest, excess)
            cost = float(self.network.cost[list(sequence)].sum()) - 1.0
            if rising >= _RISING or cost > _MOST_COST or control.stopping():
                return None
            cleared = self._cleared(sequence, heights, excess)
            if cleared is None or cleared == sequence:
                return None
            sequence = cleared
        return None

    def _cleared(self, sequence: tuple[int, ...], heights: Ints, excess: int) -> tuple[int, ...] | None:
        """``sequence`` with less memory in its highest stretch; None if nothing can be dropped there."""
        room = self.network.room_bytes
        begin, end = self._stretch(heights)
        most = excess if excess < _SMALL * room else max(excess / self.parts, _SMALL * room)
        reads = liveness.next_reads(self.graph, sequence, (begin, end))
        before, after = np.array(reads[begin], dtype=np.int64), np.array(reads[end], dtype=np.int64)
        # Only a value without a reader inside can be dropped across the stretch. One that is read inside and later is
        # resident there anyway, so keeping it takes no bytes that clearing could free.
        waiting = before >= end
        charge = np.where(before >= 0, self.network.size, math.inf)
        charge[(after >= 0) & ~waiting] = 0.0
        question = Question(waiting, charge, max(sequence[:end]) + 1)
        choice = self._choice(question, most)
        if choice is None or not choice.again.any():
            return None
        again = np.flatnonzero(choice.again).tolist()
        return liveness.priced(self.graph, (*sequence[:end], *again, *sequence[end:])).computes

    def _stretch(self, heights: Ints) -> tuple[int, int]:
        """Begin and end (exclusive) of the highest stretch, in steps."""
        high = np.flatnonzero(heights > self.network.room_bytes * (1 - self.spare))
        ends = np.flatnonzero(np.diff(high) > max(3, len(heights) // _JOINED))
        part = int(np.searchsorted(ends, np.searchsorted(high, int(heights.argmax()))))
        first = 0 if part == 0 else int(ends[part - 1]) + 1
        last = len(high) - 1 if part == len(ends) else int(ends[part])
        return int(high[first]), int(high[last]) + 1

    def _choice(self, question: Question, most: float) -> Choice | None:
        """The cheapest choice found that frees ``most`` bytes, or nearly all that can be freed."""
        waiting = float(question.charge[question.wanted].sum())
        if not waiting:  # nothing that waits there has a size
            return None
        target = waiting - most
        found = self.network.search(question, target)
        if found.within is None:
            target = found.over.kept_bytes + _NOT_SO_LOW * (waiting - found.over.kept_bytes)
            found = self.network.search(question, target)
        if found.within is not None and found.within.cost <= _NEAR * found.bound:
            return found.within
        choices = [*self._filled(question, target, found.over.again, found.price)]
        if found.within is not None:
            choices.append(found.within)
        return min(choices, key=_cost, default=None)

    def _filled(self, question: Question, target: float, inner: Bools, price: float) -> Iterator[Choice]:
        """Choices that keep at most ``target`` bytes: ``inner``, extended from one end of the graph or the other.

        In a graph of similar parts, recomputing all of them becomes profitable at the same price. The cut then jumps
        from too few bytes to far too many. Extending node by node finds the choices between.
        """
        for dearer in _DEARER:
            for forward in (True, False):
                low, high = 0, question.end
                while high - low > max(8, question.end // _FINE):
                    middle = (low + high) // 2
                    allowed = inner.copy()
                    allowed[slice(0, middle) if forward else slice(question.end - middle, None)] = True
                    choice = self.network.choose(question, price * dearer, allowed)
                    if choice.kept_bytes <= target:
                        high = middle
                        yield choice
                    else:
                        low = middle


def _cost(choice: Choice) -> float:
    return choice.cost
