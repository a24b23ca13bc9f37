"""What to keep through a stretch of a schedule and what to recompute after it, as a minimum cut in a network.

Some values are wanted after the stretch. Each is either kept, at a price per byte, or its node is recomputed, at the
node's cost; then the inputs of that node are wanted too. The cheapest choice is a minimum cut. Every wanted value has
an arc to its node, with the price of keeping it. Every node has an arc to the sink, with its cost, and an arc without
limit to each of its inputs. This is the closure problem (Picard, "Maximal closure of a graph and applications to
combinatorial problems", Management Science 22, 1976) with keeping as a paid exception.

The price is then raised until the bytes kept come down to a target: a Lagrangian relaxation of the model of
``milp/stage_cuts`` with one bottleneck stage. Each choice gives a line above the dual function; the next price is where
the lines of the best choices on either side of the target meet. That takes about six minimum cuts, each a hundredth of
a second at n = 10,000.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat_cli.graph.arrays import arrays_of
from remat_cli.graph.model import Graph
from remat_cli.mip import Bools, Floats, Ints
from remat_cli.tolerances import ROUNDING

_SCALE = 2.0**40
"""Capacity of an arc that costs C0: integers make the flow exact, and 40 bits leave room for the highest price."""
_NO_LIMIT = 1 << 58
"""Capacity of an arc that no minimum cut contains."""
_DEAREST, _HIGHEST = 1e3, 2.0**17
"""Highest price of keeping a room full of bytes, and of keeping all values, in units of C0. Untuned; the second keeps
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
        price = dearest = min(_DEAREST, _HIGHEST * self.room_bytes / total)
        within = self.choose(question, price)
        bound = self._bound(within, price, target_bytes)
        if within.kept_bytes > target_bytes:
            return Bracket(within, None, price, bound)
        for _ in range(_MOST_PRICES):
            apart = over.kept_bytes - within.kept_bytes
            if apart <= 0 or within.cost <= over.cost:
                break
            price = min(dearest, (within.cost - over.cost) / apart * self.room_bytes)
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
