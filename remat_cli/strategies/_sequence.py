"""Simulated annealing on the sequence of computes itself.

State: the sequence. Any sequence whose first computations are in document order is a schedule, because liveness follows
from it; so it is not confined to frontier-advancing schedules. Moves: compute a node again before one of its readers,
with a chain of its producers if that helps; drop a recomputation; put one elsewhere. Energy: cost + price * bytes over
the budget, summed over the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from remat_cli.graph.model import Graph
from remat_cli.mip import Bools, Floats, Ints
from remat_cli.strategies._kernel import run

_SPARE_EVENTS = 48
"""How many more events a value may have than without recomputation."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A graph as flat arrays; costs in units of C0.

    Attributes:
        cost: float64[n].
        own: int64[n], bytes of outputs and workspace, less the room that the budget leaves beside the fixed memory.
        size: int64[V], bytes.
        first_value: int64[n + 1].
        producer: int64[V].
        input_start: int64[n + 1], into ``inputs``.
        inputs: int64[E].
        output: bool[V], graph outputs.
        fixed: bool[n], nodes that may be computed only once.
        capacity: int64[V + 1], where the events of each value start in the event table.
        room_bytes: The budget without fixed memory.
    """

    cost: Floats
    own: Ints
    size: Ints
    first_value: Ints
    producer: Ints
    input_start: Ints
    inputs: Ints
    output: Bools
    fixed: Bools
    capacity: Ints
    room_bytes: int

    @classmethod
    def of(cls, graph: Graph, room_bytes: int) -> Problem:
        """The arrays of ``graph`` for a budget that leaves ``room_bytes`` beside the fixed memory."""
        base = graph.total_cost or 1.0
        counts = [len(node.inputs) for node in graph.nodes]
        events = [len(readers) + 1 + _SPARE_EVENTS for readers in graph.readers]
        output = np.zeros(len(graph.size), dtype=np.bool_)
        output[list(graph.outputs)] = True
        return cls(
            cost=np.array([node.cost / base for node in graph.nodes]),
            own=np.array([sum(node.outputs) + node.workspace - room_bytes for node in graph.nodes], dtype=np.int64),
            size=np.array(graph.size, dtype=np.int64),
            first_value=np.array(graph.first_value, dtype=np.int64),
            producer=np.array(graph.producer, dtype=np.int64),
            input_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            inputs=np.array([v for node in graph.nodes for v in node.inputs], dtype=np.int64),
            output=output,
            fixed=np.array([not node.recompute for node in graph.nodes]),
            capacity=np.concatenate([[0], np.cumsum(events)]).astype(np.int64),
            room_bytes=room_bytes,
        )


@dataclass(frozen=True, slots=True)
class Cooling:
    """How a run cools down.

    Attributes:
        moves: Moves to try.
        hot: First temperature, as a share of C0.
        cold: Last temperature.
        price: What one room of excess memory over one step costs, as a share of C0.
    """

    moves: int
    hot: float
    cold: float
    price: float


@dataclass(frozen=True, slots=True)
class Annealed:
    """What a run found.

    Attributes:
        computes: The cheapest sequence within the budget; None if none came up.
        last: The last state.
        excess: Excess memory of the last state, in rooms times steps.
    """

    computes: tuple[int, ...] | None
    last: tuple[int, ...]
    excess: float


def anneal(problem: Problem, start: Sequence[int], cooling: Cooling, seed: int) -> Annealed:
    """Anneal from ``start``, a sequence of computes within the budget or not.

    Deterministic for a seed. Releases the interpreter lock while it runs.
    """
    p = problem
    arrays = (p.cost, p.own, p.size, p.first_value, p.producer, p.input_start, p.inputs, p.output, p.fixed, p.capacity)
    room = float(max(1, p.room_bytes))
    found, last, excess = run(
        arrays,
        np.array(start, dtype=np.int64),
        3 * len(start) + 256,
        cooling.moves,
        cooling.hot,
        cooling.cold,
        cooling.price / room,
        seed,
    )
    best = tuple(int(k) for k in found) if len(found) else None
    return Annealed(best, tuple(int(k) for k in last), float(excess) / room)
