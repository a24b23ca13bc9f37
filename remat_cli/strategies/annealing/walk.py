"""Simulated annealing of the sequence of computes (Kirkpatrick, Gelatt, Vecchi, Science 220, 1983).

State: the sequence. Every sequence whose first computations are in document order is a schedule, because liveness
follows from it; so the search is not confined to frontier-advancing schedules. Moves: drop a value that waits where
memory is short and recompute it later, with those of its inputs that are cheaper to recompute than to keep; remove a
recomputation with those that served only it; shift one; remove a few neighbours and make up for their room elsewhere.
Energy: cost + price * bytes over the budget, summed over the steps. The price rises while there is excess and falls
while there is none, because no fixed price suits both the search for room and the search for low cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from remat_cli.graph.arrays import arrays_of
from remat_cli.graph.model import Graph
from remat_cli.kernels.moves import advance
from remat_cli.kernels.sequence import CHAIN, HOLE, LOG_SIZE
from remat_cli.kernels.state import Now, State
from remat_cli.mip import Ints

# Doubling all constants of this folder makes the gap much larger, halving them smaller (benchmark ``ablation``).
_SPARE_EVENTS = 48
"""Events that a value may have beyond those without recomputation."""
_RANGE = 30.0
"""Largest factor by which the price of excess changes within a run: at a high price a walk hardly moves."""
_WORK = 30_000_000
_SLICE = 100_000
"""Most moves of a slice times the steps of the sequence, and most moves: half a second together."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A graph as arrays of the kernel, for a budget; costs in units of C0.

    Attributes:
        tables: Those fields of the kernel's ``State`` that no move changes.
        room_bytes: The budget without fixed memory.
    """

    tables: dict[str, Any]
    room_bytes: int

    @classmethod
    def of(cls, graph: Graph, room_bytes: int) -> Problem:
        """The arrays of ``graph`` for a budget that leaves ``room_bytes`` beside the fixed memory."""
        arrays = arrays_of(graph)
        names = ("cost", "fixed", "first_value", "input_start", "inputs", "size", "producer", "output")
        events = [len(readers) + 1 + _SPARE_EVENTS for readers in graph.readers]
        own, capacity = arrays.own - room_bytes, np.cumsum([0, *events])
        return cls({name: getattr(arrays, name) for name in names} | {"own": own, "capacity": capacity}, room_bytes)


@dataclass(frozen=True, slots=True)
class Walk:
    """One run of annealing: its current sequence, and the best one so far.

    Attributes:
        state: The state of the kernel.
        room_bytes: The budget without fixed memory.
    """

    state: State
    room_bytes: int

    @classmethod
    def of(cls, problem: Problem, start: Sequence[int], seed: int, price: float) -> Walk:
        """A run that starts from the sequence ``start``.

        Args:
            problem: The problem.
            start: A sequence of computes, within the budget or not.
            seed: Random seed.
            price: The first price of a room of excess memory during one step, as a share of C0.
        """
        nodes, values = len(problem.tables["own"]), len(problem.tables["size"])
        instances = 3 * len(start) + 256
        slots = instances + instances // 2 + 64
        now: Any = np.zeros(1, dtype=Now.dtype())[0]
        now.free, now.slots = instances - nodes, nodes + 1
        now.random = ((2 * seed + 1) * 0x9E3779B97F4A7C15) % 2**63 + 1
        now.price, now.lowest, now.highest = (
            price / max(1, problem.room_bytes) for price in (price, price / _RANGE, price * _RANGE)
        )
        now.best_cost = np.inf

        def zeros(*shape: int) -> Ints:
            return np.zeros(shape, dtype=np.int64)

        state = State(
            now=now,
            **problem.tables,
            events=zeros(int(problem.tables["capacity"][-1])),
            used=zeros(values),
            node=zeros(instances),
            pos=zeros(instances),
            place=zeros(instances),
            recomputed=zeros(instances),
            spare=np.arange(instances)[::-1].copy(),
            found=zeros(instances),
            seq=np.full(slots, -1, dtype=np.int64),
            level=np.full(slots, HOLE, dtype=np.int64),
            seq_before=zeros(slots),
            level_before=zeros(slots),
            queue=zeros(CHAIN),
            log=zeros(LOG_SIZE, 3),
        )
        advance(state, np.array(start, dtype=np.int64), 0, 0.0, 0.0)
        return cls(state, problem.room_bytes)

    def advance(self, moves: int, hot: float, cold: float) -> None:
        """Try ``moves`` moves while the temperature, a share of C0, falls from ``hot`` to ``cold``.

        Deterministic for a seed. Releases the interpreter lock while it runs.
        """
        advance(self.state, np.zeros(0, dtype=np.int64), moves, hot, (cold / hot) ** (1.0 / moves))

    @property
    def best(self) -> tuple[int, ...] | None:
        """The cheapest sequence found within the budget; None if there is none."""
        return tuple(self.state.found[: self.state.now.best].tolist()) or None

    @property
    def best_cost(self) -> float:
        """Its cost, as a share of C0; infinite if there is none."""
        return float(self.state.now.best_cost)

    @property
    def last(self) -> tuple[int, ...]:
        """The current sequence."""
        instances = self.state.seq[: self.state.now.slots]
        return tuple(self.state.node[instances[instances >= 0]].tolist())

    @property
    def cost(self) -> float:
        """The cost of the current sequence, as a share of C0."""
        return float(self.state.now.cost)

    @property
    def excess_bytes(self) -> int:
        """Bytes over the budget of the current sequence, summed over its steps."""
        return int(self.state.now.excess)

    @property
    def price(self) -> float:
        """The current price of a room of excess during one step, as a share of C0."""
        return float(self.state.now.price * max(1, self.room_bytes))


def slice_moves(steps: int) -> int:
    """Moves that take about half a second on a sequence of ``steps`` steps."""
    return max(1_000, min(_SLICE, 2_000 * steps, _WORK // max(1, steps)))
