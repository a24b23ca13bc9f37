"""Schedules of large graphs, by dropping values across the part of a schedule that is over the budget, and a bound.

A *stretch* is a run of steps around the one that needs the most memory. To clear it, some of the values that wait
through it are dropped and recomputed at its end, together with the inputs that they need. If that
raises another stretch above the budget, that one is cleared next. One minimum cut decides on all values together,
because dropped values share the nodes that they need: a long run of recomputation pays for many values where it would
not pay for one. On random layered graphs a value needs half of the layer before it, and methods that decide on one
value at a time find no schedule.

**The cut.** Each of the values wanted after a stretch is kept, at a price per byte, or its node is recomputed, at the
node's cost; then the inputs of that node are wanted too. The cheapest choice is a minimum cut. Every wanted value
has an arc to its node, with the price of keeping it. Every node has an arc to the sink, with its cost, and an arc
without limit to each of its inputs. This is the closure problem (Picard, "Maximal closure of a graph and applications
to combinatorial problems", Management Science 22, 1976) with keeping as a paid exception.

The price is then raised until the bytes kept come down to a target: a Lagrangian relaxation of the model of
``milp/stage_cuts`` with one bottleneck stage. Each choice gives a line above the dual function; the next price is where
the lines of the best choices on either side of the target meet. That takes about six minimum cuts, each a hundredth of
a second at n = 10,000.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_profile, working_set
from remat_cli.graph.arrays import arrays_of
from remat_cli.graph.model import Graph
from remat_cli.mip import Bools, Floats, Ints
from remat_cli.plan import liveness
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Bound
from remat_cli.strategies.bounds import of_share
from remat_cli.strategies.engine import Engine
from remat_cli.tolerances import ROUNDING

# Halving and doubling all constants of this folder both make the gap larger (benchmark ``ablation``).
WAYS = ((1.0, 0.05), (1.5, 0.0), (1.5, 0.02), (1.0, 0.1), (2.0, 0.05))
"""(divisor of the excess to clear in one turn, share of the room that must be free where a stretch ends)."""
_MOST_TURNS = 12
"""Stretches to clear in one way."""
_MOST_COST = 0.5
"""A way ends when its recomputation costs more than this multiple of C0."""
_RISING = 2
"""A way ends after this many turns in a row without a smaller excess."""
_SMALL = 0.02
"""An excess below this share of the room is cleared in one turn; of a larger one at least this share is."""
_JOINED = 200
"""Steps over the budget no further apart than the schedule's length divided by this form one stretch."""
_FACTORS = (1.2, 2.0, 4.0)
"""Prices at which to extend a choice that frees too little, relative to the last price of the search."""
_FINE = 256
"""How far to extend is found to within the graph's size divided by this."""
_NEAR = 1.02
"""A choice that costs at most this multiple of the lower bound is accepted without a further search."""
_NOT_SO_LOW = 0.05
"""Where the target cannot be reached, this share of the bytes that could be freed need not be."""


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


class Clearings(Engine):
    """Bounds the cost by the stage that needs the most memory, then clears stretches in several ways."""

    def work(self) -> bool:
        """Raise the bound, and clear in one way after the other while there is no schedule."""
        incumbent, graph = self.incumbent, self.incumbent.graph
        incumbent.report("clearing")
        network, profile = Network.of(graph, incumbent.budget_bytes - graph.fixed_memory), no_remat_profile(graph)
        bound = span_bound(graph, network, incumbent.budget_bytes, profile.index(max(profile)))
        incumbent.raise_bound(Bound(bound, Scope.DOCUMENT_ORDER))
        for parts, spare in WAYS:
            if incumbent.over() or incumbent.computes is not None:
                break
            computes = Clearing(graph, network, parts, spare).run(incumbent.context.control)
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
            cleared = self.cleared(sequence, heights, excess)
            if cleared is None or cleared == sequence:
                return None
            sequence = cleared
        return None

    def cleared(self, sequence: tuple[int, ...], heights: Ints, excess: int) -> tuple[int, ...] | None:
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
        for factor in _FACTORS:
            for forward in (True, False):
                low, high = 0, question.end
                while high - low > max(8, question.end // _FINE):
                    middle = (low + high) // 2
                    allowed = inner.copy()
                    allowed[slice(0, middle) if forward else slice(question.end - middle, None)] = True
                    choice = self.network.choose(question, price * factor, allowed)
                    if choice.kept_bytes <= target:
                        high = middle
                        yield choice
                    else:
                        low = middle


def _cost(choice: Choice) -> float:
    return choice.cost


_SCALE = 2.0**40
"""Capacity of an arc that costs C0: integers make the flow exact, and 40 bits leave room for the highest price."""
_NO_LIMIT = 1 << 58
"""Capacity of an arc that no minimum cut contains."""
_HIGHEST_PRICE, _HIGHEST = 1e3, 2.0**17
"""Highest price of keeping a room full of bytes, and of keeping all values, in units of C0; the second keeps
the sum of capacities below ``_NO_LIMIT``."""
_MOST_PRICES = 12
"""Minimum cuts in one search for a price: twice what it usually takes."""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What is wanted after a stretch, and what can be kept through it.

    Attributes:
        wanted: bool[V].
        charge: float64[V], bytes that keeping a value takes; 0 where it is resident anyway, infinity where it cannot
            be kept.
        end: Only nodes before this one can be recomputed, and only their values are wanted.
    """

    wanted: Bools
    charge: Floats
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """An answer.

    Attributes:
        again: bool[n], nodes to recompute.
        cost: Cost of recomputing them, as a share of C0.
        kept_bytes: Bytes that are kept and charged for.
        level: Value of the minimum cut: no answer has a smaller sum of cost and price of what it keeps; a share of C0.
    """

    again: Bools
    cost: float
    kept_bytes: float
    level: float


@dataclass(frozen=True, slots=True, eq=False)
class Bracket:
    """The result of a search for a price.

    Attributes:
        over: The cheapest choice that keeps more than the target.
        within: The cheapest choice that keeps no more; None if there is none.
        price: The last price, for a room full of bytes.
        bound: Lower bound on the cost of keeping no more than the target, as a share of C0.
    """

    over: Choice
    within: Choice | None
    price: float
    bound: float


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """The arcs of the network; only their capacities depend on the question.

    Attributes:
        cost: float64[n], shares of C0.
        size: float64[V].
        producer: int64[V].
        fixed: bool[n], nodes that may be computed only once.
        tails: int64[arcs]: nodes to the sink, nodes to their inputs, values to their nodes, the source to values.
        heads: int64[arcs].
        owner: int64[arcs], the node that an arc belongs to.
        room_bytes: Bytes that a price is for, at least 1.
    """

    cost: Floats
    size: Floats
    producer: Ints
    fixed: Bools
    tails: Ints
    heads: Ints
    owner: Ints
    room_bytes: int

    @classmethod
    def of(cls, graph: Graph, room_bytes: int) -> Network:
        """The network of a graph; vertices are its nodes, its values, the source and the sink."""
        arrays, n, values = arrays_of(graph), len(graph.nodes), len(graph.size)
        node, value = np.arange(n), np.arange(values)
        producer, inputs = arrays.producer, arrays.inputs[: arrays.reads]
        reader = np.repeat(node, np.diff(arrays.input_start[:-1]))
        source, sink = n + values, n + values + 1
        return cls(
            cost=arrays.cost,
            size=arrays.size.astype(np.float64),
            producer=producer,
            fixed=arrays.fixed,
            tails=np.concatenate([node, reader, n + value, np.full(values, source)]),
            heads=np.concatenate([np.full(n, sink), n + inputs, producer, n + value]),
            owner=np.concatenate([node, reader, producer, producer]),
            room_bytes=max(1, room_bytes),
        )

    def choose(self, question: Question, price: float, allowed: Bools | None = None) -> Choice:
        """The cheapest answer at a price.

        Args:
            question: The question. Every wanted value must be keepable or recomputable.
            price: Price of keeping a room full of bytes, in units of C0.
            allowed: bool[n], nodes that may be recomputed; None for all.
        """
        from remat_cli.kernels.flow import sink_side  # numba takes 0.3 s to import

        n, values = len(self.cost), len(self.size)
        costs = np.floor(self.cost * _SCALE).astype(np.int64)
        costs[self.fixed if allowed is None else self.fixed | ~allowed] = _NO_LIMIT
        keepable = np.isfinite(question.charge)
        charges = np.full(values, _NO_LIMIT, dtype=np.int64)
        charges[keepable] = np.floor(question.charge[keepable] * (price * _SCALE / self.room_bytes)).astype(np.int64)
        reads = len(self.tails) - n - 2 * values
        limits = np.concatenate([costs, np.full(reads, _NO_LIMIT), charges, np.where(question.wanted, _NO_LIMIT, 0)])
        used = (self.owner < question.end) & (limits > 0)
        tails, heads, limits = self.tails[used], self.heads[used], limits[used]
        chosen = ~sink_side(tails, heads, limits, n + values + 2, n + values, n + values + 1)
        again = chosen[:n] & (np.arange(n) < question.end)
        made = self.producer < question.end
        kept = made & chosen[n : n + values] & ~again[self.producer] & keepable
        return Choice(
            again=again,
            cost=float(self.cost[again].sum()),
            kept_bytes=float(question.charge[kept].sum()),
            level=float(limits[chosen[tails] & ~chosen[heads]].sum()) / _SCALE,
        )

    def search(self, question: Question, target_bytes: float) -> Bracket:
        """The choices on either side of ``target_bytes`` with the best prices found."""
        nothing = np.zeros(len(self.cost), dtype=np.bool_)
        wanted = question.wanted & (self.producer < question.end) & np.isfinite(question.charge)
        over = Choice(nothing, 0.0, float(question.charge[wanted].sum()), 0.0)
        if over.kept_bytes <= target_bytes:
            return Bracket(over, over, 0.0, 0.0)
        total = float(question.charge[np.isfinite(question.charge)].sum())
        price = highest = min(_HIGHEST_PRICE, _HIGHEST * self.room_bytes / total)
        within = self.choose(question, price)
        bound = self._bound(within, price, target_bytes)
        if within.kept_bytes > target_bytes:
            return Bracket(within, None, price, bound)
        for _ in range(_MOST_PRICES):
            apart = over.kept_bytes - within.kept_bytes
            if apart <= 0 or within.cost <= over.cost:
                break
            price = min(highest, (within.cost - over.cost) / apart * self.room_bytes)
            choice = self.choose(question, price)
            bound = max(bound, self._bound(choice, price, target_bytes))
            # The cut reproduced one of the two ends: no price gives a choice between them.
            if choice.kept_bytes in {over.kept_bytes, within.kept_bytes}:
                break
            if choice.kept_bytes <= target_bytes:
                within = choice
            else:
                over = choice
        return Bracket(over, within, price, bound)

    def _bound(self, choice: Choice, price: float, target_bytes: float) -> float:
        """The Lagrangian dual function at a price, rounded down by more than the error of the last sum."""
        taken = price * target_bytes / self.room_bytes
        return max(0.0, choice.level - taken - ROUNDING * (choice.level + abs(taken)))
