"""Simulated annealing on the sequence of computes itself.

State: the sequence. Any sequence whose first computations are in document order is a schedule, because liveness follows
from it; so it is not confined to frontier-advancing schedules. Moves: give up a value that waits where memory is short
and compute it again later, with the inputs that it would be dearer to keep; drop a recomputation with those that served
only it; put one elsewhere; drop a few that are near one another and make up for the room. Energy: cost + price * bytes
over the budget, summed over the steps; the price rises while there is excess and falls while there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from remat_cli.graph.model import Graph
from remat_cli.kernels import sequence as kernel
from remat_cli.kernels.moves import advance
from remat_cli.mip import Floats, Ints

_SPARE_EVENTS = 48
"""How many more events a value may have than without recomputation."""
_RANGE = 30.0
"""By how much the price of excess may rise or fall within a run: the higher it is, the less a walk moves."""
_WORK = 30_000_000
_SLICE = 100_000
"""Most moves of a slice, and about how many times the length of the sequence in all: half a second."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A graph as tables of the kernel; costs in units of C0.

    Attributes:
        cost: float64[n].
        tables: The tables that no move changes, by their place in the header of the kernel's memory.
        room_bytes: The budget without fixed memory.
    """

    cost: Floats
    tables: dict[int, Ints]
    room_bytes: int

    @classmethod
    def of(cls, graph: Graph, room_bytes: int) -> Problem:
        """The tables of ``graph`` for a budget that leaves ``room_bytes`` beside the fixed memory."""
        base = graph.total_cost or 1.0
        outputs = set(graph.outputs)
        values = range(len(graph.size))
        tables = {
            kernel.OWN: [sum(node.outputs) + node.workspace - room_bytes for node in graph.nodes],
            kernel.SIZE: graph.size,
            kernel.PRODUCER: graph.producer,
            kernel.FIRST_VALUE: graph.first_value,
            kernel.INPUT_START: np.cumsum([0, *(len(node.inputs) for node in graph.nodes)]),
            kernel.INPUTS: [v for node in graph.nodes for v in node.inputs],
            kernel.OUTPUT: [v in outputs for v in values],
            kernel.FIXED: [not node.recompute for node in graph.nodes],
            kernel.CAPACITY: np.cumsum([0, *(len(readers) + 1 + _SPARE_EVENTS for readers in graph.readers)]),
        }
        return cls(
            cost=np.array([node.cost / base for node in graph.nodes], dtype=np.float64),
            tables={at: np.array(table, dtype=np.int64) for at, table in tables.items()},
            room_bytes=room_bytes,
        )


@dataclass(frozen=True, slots=True)
class Walk:
    """One run of annealing: the sequence at hand, and the best one so far.

    Attributes:
        numbers: int64, ``m`` of the kernel.
        reals: float64, ``f`` of the kernel.
        room_bytes: The budget without fixed memory.
    """

    numbers: Ints
    reals: Floats
    room_bytes: int

    @classmethod
    def of(cls, problem: Problem, start: Sequence[int], seed: int, price: float) -> Walk:
        """A run that starts from the sequence ``start``.

        Args:
            problem: The problem.
            start: A sequence of computes, within the budget or not.
            seed: Of the random numbers.
            price: What one room of excess memory over one step costs at first, as a share of C0.
        """
        nodes, values = len(problem.cost), len(problem.tables[kernel.SIZE])
        instances = 3 * len(start) + 256
        slots = instances + instances // 2 + 64
        lengths = {at: len(table) for at, table in problem.tables.items()} | {
            kernel.EVENTS: int(problem.tables[kernel.CAPACITY][-1]),
            kernel.COUNT: values,
            kernel.SEQ: slots,
            kernel.LEVEL: slots,
            kernel.LOG: 3 * kernel.LOG_SIZE,
        }
        starts = np.full(kernel.HEADER, instances, dtype=np.int64)
        for at, length in lengths.items():
            starts[at] = length
        starts[: kernel.OWN] = 0
        ends = np.cumsum(starts) + kernel.HEADER
        m = np.zeros(int(ends[-1]), dtype=np.int64)
        m[kernel.OWN : kernel.HEADER] = (ends - starts)[kernel.OWN :]
        for at, table in problem.tables.items():
            m[m[at] : m[at] + len(table)] = table
        m[m[kernel.SEQ] : m[kernel.SEQ] + slots] = -1
        m[m[kernel.LEVEL] : m[kernel.LEVEL] + slots] = kernel.HOLE
        m[m[kernel.SPARE] : m[kernel.SPARE] + instances] = np.arange(instances)[::-1]
        m[kernel.NODES], m[kernel.VALUES], m[kernel.INSTANCES] = nodes, values, instances
        m[kernel.FREE], m[kernel.SLOTS] = instances - nodes, nodes + 1
        m[kernel.RANDOM] = ((2 * seed + 1) * 0x9E3779B97F4A7C15) % 2**63 + 1
        prices = np.array([price, price / _RANGE, price * _RANGE]) / max(1, problem.room_bytes)
        f = np.concatenate([[0.0], prices, [np.inf], problem.cost])
        kernel.load(m, f, np.array(start, dtype=np.int64))
        return cls(m, f, problem.room_bytes)

    def advance(self, moves: int, hot: float, cold: float) -> None:
        """Try ``moves`` moves while the temperature, a share of C0, falls from ``hot`` to ``cold``.

        Deterministic for a seed. Releases the interpreter lock while it runs.
        """
        advance(self.numbers, self.reals, moves, hot, (cold / hot) ** (1.0 / moves))

    @property
    def best(self) -> tuple[int, ...] | None:
        """The cheapest sequence within the budget; None if none came up."""
        m = self.numbers
        start, length = m[kernel.FOUND], m[kernel.BEST]
        return tuple(m[start : start + length].tolist()) if length else None

    @property
    def best_cost(self) -> float:
        """What that costs, as a share of C0; infinite if there is none."""
        return float(self.reals[kernel.BEST_COST])

    @property
    def last(self) -> tuple[int, ...]:
        """The sequence at hand."""
        m = self.numbers
        slots, nodes = (
            m[m[at] :][: m[count]] for at, count in ((kernel.SEQ, kernel.SLOTS), (kernel.NODE, kernel.INSTANCES))
        )
        return tuple(nodes[slots[slots >= 0]].tolist())

    @property
    def cost(self) -> float:
        """What the sequence at hand costs, as a share of C0."""
        return float(self.reals[kernel.COST])

    @property
    def excess_bytes(self) -> int:
        """What the sequence at hand has over the budget, summed over its steps."""
        return int(self.numbers[kernel.EXCESS])

    @property
    def price(self) -> float:
        """What one room of excess over one step costs by now, as a share of C0."""
        return float(self.reals[kernel.PRICE] * max(1, self.room_bytes))


def slice_moves(steps: int) -> int:
    """Moves that take about half a second with a sequence of so many steps."""
    return max(1_000, min(_SLICE, 2_000 * steps, _WORK // max(1, steps)))
