"""The search of states of a graph, from the end of schedules to their beginning, in any order or the document's.

A state says which nodes are still to be computed for the first time (a set with all nodes that must come before them),
and which values what follows needs. A step back computes one node: its values are no longer needed, and its inputs are.
If no other node of the set comes after it, this is its first computation; else it is a recomputation, which costs
something. So no state holds a value without need, and no step frees one.

If the first computation of a node fits, and needs no more bytes before it than after it, only this step is tried. A
state is left out if one with a value less costs no more. All states of a coarse graph, in which some values stand for
others, bound what comes before each state. The proofs are in ``docs/mathematics.md``, "All states".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from remat_cli.control import Control
from remat_cli.graph.arrays import arrays_of
from remat_cli.graph.model import Graph
from remat_cli.mip import Ints

if TYPE_CHECKING:  # numba takes 0.3 s to import
    from remat_cli.kernels.states import Coarse, States

_FEW_STATES = 2**14
"""States to have room for at first."""
_QUEUED = 2
"""Entries of the queue for each state, since a state gets another one when it becomes cheaper."""
_EDGES = 8
"""Steps for each listed state to have room for."""
_BY_STATE = ("key", "cost", "ahead", "held", "left", "following", "step", "done")
_AT_ONCE = 10_000
"""States between two looks at the clock: a tenth of a second."""


@dataclass(slots=True)
class Search:
    """A search that can be continued.

    Attributes:
        graph: The graph; its nodes run in one queue.
        room: Bytes without fixed memory.
        states: The states so far.
        coarse: Bounds on what comes before them.
        least_left: States with so many nodes left are searched for.
        ceiling: Schedules that recompute for as much, in units of C0, are left out.
        urge: How much the price of a state grows with each node left, in units of C0.
        most_bytes: Memory for states; it takes no more than this, and a little at least.
        exhausted: Whether nothing is left to look at.
    """

    graph: Graph
    room: int
    states: States
    coarse: Coarse
    least_left: int
    ceiling: float
    urge: float
    most_bytes: int
    exhausted: bool = False

    @classmethod
    def of(
        cls,
        graph: Graph,
        room: int,
        *,
        in_order: bool,
        ceiling: float,
        most_bytes: int,
        coarse: Coarse | None = None,
        least_left: int = 0,
        urge: float = 0.0,
    ) -> Search:
        """At the end of schedules; ``in_order`` if first computations come in document order."""
        from remat_cli.kernels.states import enter

        states = _last(graph, in_order)
        search = cls(graph, room, states, coarse or _no_coarse(), least_left, ceiling, urge, most_bytes)
        search.exhausted = bool(states.held[0] > room)
        enter(states, urge)
        return search

    def next(self, control: Control) -> int | None:
        """The next state with ``least_left`` nodes left, by price; None if there is none, or memory or time are up."""
        from remat_cli.kernels.states import EXHAUSTED, FULL, PAUSED, search

        arrays, end = arrays_of(self.graph), PAUSED
        while end == PAUSED and not self.exhausted and not control.stopping():
            end = search(
                arrays, self.states, self.coarse, self.room, self.least_left, self.ceiling, self.urge, _AT_ONCE
            )
            self.exhausted = end == EXHAUSTED
            if end == FULL and 2 * _bytes(self.states) <= self.most_bytes:
                self.states, end = _larger(self.states, self.urge), PAUSED
        return end if end >= 0 else None

    @property
    def bound(self) -> float:
        """No state that was not returned yet costs less, with what comes before it; without ``urge`` only."""
        return self.ceiling if self.exhausted else min(self.ceiling, float(self.states.price[0]))

    def sequence(self, at: int) -> tuple[int, ...]:
        """The computed nodes from state ``at`` to the end."""
        computes = []
        while self.states.following[at] >= 0:
            computes.append(int(self.states.step[at]))
            at = self.states.following[at]
        return tuple(computes)

    def values(self, at: int) -> frozenset[int]:
        """The values that are needed at state ``at``."""
        from remat_cli.kernels.states import WORD

        bits = sum(int(word) << WORD * w for w, word in enumerate(self.states.key[at]))
        return frozenset(v for v in range(len(self.graph.size)) if bits >> len(self.graph.nodes) + v & 1)


@dataclass(frozen=True, slots=True)
class CoarseStates:
    """All states of a coarse graph, and what comes before them.

    Attributes:
        nodes: Number of nodes.
        states: The states.
    """

    nodes: int
    states: States

    def of(self, image: Ints) -> Coarse:
        """For a graph whose values have the ``image: int64[V]`` in the coarse graph, -1 where there is none."""
        from remat_cli.kernels.states import Coarse

        bits = np.where(image >= 0, image + self.nodes, -1).astype(np.int64)
        words = self.states.key.shape[1]
        nodes = _sets([range(self.nodes)], words)[0]
        return Coarse(bits, self.states.key, self.states.ahead, self.states.table, nodes, np.zeros_like(nodes))


def coarse_states(
    graph: Graph, room: int, control: Control, *, least_left: int, most_bytes: int
) -> CoarseStates | None:
    """All states of a coarse graph in document order, and what comes before them; None if they are too many.

    Args:
        graph: The coarse graph; it has the nodes of the other one.
        room: Bytes without fixed memory.
        control: Stops it early.
        least_left: What comes before states with so many nodes left is free.
        most_bytes: As of :class:`Search`.
    """
    from remat_cli.kernels.states import EXHAUSTED, FULL, PAUSED, enter, explore, settle

    none = np.zeros(0, dtype=np.int64)
    states = _last(graph, in_order=True)._replace(
        cost=np.zeros(0), following=none, step=none, queue=none, price=np.zeros(0)
    )
    starts, edges = np.zeros(_FEW_STATES + 1, dtype=np.int64), np.zeros(_EDGES * _FEW_STATES, dtype=np.int64)
    enter(states, 0.0)
    arrays, end = arrays_of(graph), PAUSED
    while end != EXHAUSTED:
        if control.stopping():
            return None
        end = explore(arrays, states, room, least_left, starts, edges, _AT_ONCE)
        if end == FULL:
            if 2 * (_bytes(states) + edges.nbytes + starts.nbytes) > most_bytes:
                return None
            states, starts, edges = _larger(states, 0.0), _twice(starts), _twice(edges)
    while settle(arrays, states, starts, edges):
        if control.stopping():
            return None
    return CoarseStates(len(graph.nodes), states)


def _no_coarse() -> Coarse:
    from remat_cli.kernels.states import Coarse

    none = np.zeros(0, dtype=np.int64)
    return Coarse(none, np.zeros((1, 1), dtype=np.int64), np.zeros(0), none, none, none)


def _last(graph: Graph, in_order: bool) -> States:
    """The last state alone: every node is to be computed, and the graph outputs are needed."""
    from remat_cli.kernels.states import WORD, States

    n = len(graph.nodes)
    words = (n + len(graph.size) - 1) // WORD + 1

    def after(i: int) -> Iterable[int]:
        return range(i + 1, n) if in_order else (j for v in graph.values_of(i) for j in graph.readers[v])

    key = np.zeros((_FEW_STATES, words), dtype=np.int64)
    key[0] = _sets([(*range(n), *(n + v for v in graph.outputs))], words)[0]
    held = np.zeros(_FEW_STATES, dtype=np.int64)
    held[0] = sum(graph.size[v] for v in graph.outputs)
    return States(
        readers=_sets((after(i) for i in range(n)), words),
        made=_sets(((n + v for v in graph.values_of(i)) for i in range(n)), words),
        read=_sets(((n + v for v in node.inputs) for node in graph.nodes), words),
        key=key,
        cost=np.zeros(_FEW_STATES),
        ahead=np.zeros(_FEW_STATES),
        held=held,
        left=np.full(_FEW_STATES, n, dtype=np.int64),
        following=np.full(_FEW_STATES, -1, dtype=np.int64),
        step=np.zeros(_FEW_STATES, dtype=np.int64),
        done=np.zeros(_FEW_STATES, dtype=np.bool_),
        table=_table(_FEW_STATES),
        queue=np.zeros(_QUEUED * _FEW_STATES, dtype=np.int64),
        price=np.zeros(_QUEUED * _FEW_STATES),
        level=np.zeros(n, dtype=np.int64),
        totals=np.array([1, 0, 0], dtype=np.int64),
    )


def _sets(of: Iterable[Iterable[int]], words: int) -> Ints:
    """Sets of bits as rows of so many words."""
    from remat_cli.kernels.states import WORD

    numbers = [sum(1 << bit for bit in set(bits)) for bits in of]
    parts = [[number >> WORD * w & (1 << WORD) - 1 for w in range(words)] for number in numbers]
    return np.array(parts, dtype=np.int64)


def _table(size: int) -> Ints:
    """An empty hash table for so many states, at most half full."""
    return np.full(2 * size, -1, dtype=np.int64)


def _bytes(states: States) -> int:
    return sum(array.nbytes for array in states)


def _twice(array: Ints) -> Ints:
    return np.concatenate([array, np.zeros_like(array)])


def _larger(states: States, urge: float) -> States:
    """The same states, with room for twice as many."""
    from remat_cli.kernels.states import enter

    grown: dict[str, Any] = {name: _twice(getattr(states, name)) for name in _BY_STATE}
    queued: dict[str, Any] = {name: np.zeros_like(_twice(getattr(states, name))) for name in ("queue", "price")}
    states.totals[1] = 0
    larger = states._replace(**grown, **queued, table=_table(len(grown["held"])))
    enter(larger, urge)
    return larger
