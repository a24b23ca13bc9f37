"""The cheapest schedule in any order, by Dijkstra's algorithm over states, from the end of schedules to the beginning.

A state says which nodes are still to be computed for the first time (a set with the inputs of all its nodes), and which
values what follows needs. A step back computes one node: its values are no longer needed, and its inputs are. If no
other node of the set reads it, this is its first computation; else it is a recomputation, which costs something. So no
state holds a value without need, and no step frees one.

If the first computation of a node fits, and needs no more bytes before it than after it, only this step is tried. The
proof is in ``docs/mathematics.md``, "Another order".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from remat_cli.control import Control
from remat_cli.graph.arrays import arrays_of
from remat_cli.graph.model import Graph
from remat_cli.mip import Ints

if TYPE_CHECKING:  # numba takes 0.3 s to import
    from remat_cli.kernels.reordering import States

MOST_NODES = 256
"""Nodes of the largest graph. `moccasin/G2` (250) is proven at 75% of its no-remat peak after 9 s; on `moccasin/G3`
(500) the bound is next to nothing after 20 s (by hand)."""
_FEW_STATES, _MOST_BYTES = 2**14, 2**29
"""States to have room for at first, and bytes for them at last: those of 60 nodes are full after about 20 s."""
_QUEUED = 2
"""Entries of the queue for each state, since a state gets another one when it becomes cheaper."""
_BY_STATE = ("key", "cost", "held", "left", "following", "step", "done")
_HURRIES, _HURRY_BYTES = (4.0, 1.0, 0.3, 0.1), 2**25
"""What is expected to be recomputed, in units of C0, in searches for a first schedule; and bytes for states of these.
Untuned."""
_AT_ONCE = 10_000
"""States between two looks at the clock: a tenth of a second."""


@dataclass(frozen=True, slots=True)
class Cheapest:
    """The result of a search of all schedules.

    Attributes:
        computes: The cheapest schedule found, within the budget; None if none was found.
        bound: No schedule within the budget recomputes for less, in units of C0; infinite if none fits.
        states: States that were looked at.
    """

    computes: tuple[int, ...] | None
    bound: float
    states: int


def cheapest_in_any_order(
    graph: Graph,
    budget_bytes: int,
    control: Control,
    *,
    ceiling: float,
    most_bytes: int = _MOST_BYTES,
    found: Callable[[tuple[int, ...]], None] = lambda computes: None,
) -> Cheapest:
    """The cheapest schedule in any order, or the best one found and a bound.

    Args:
        graph: The graph; its nodes run in one queue.
        budget_bytes: Fixed memory included.
        control: Stops it early.
        ceiling: Schedules that recompute for as much, in units of C0, are of no interest.
        most_bytes: Memory for states; it takes no more than this, and a little at least.
        found: Gets every schedule, each cheaper than the one before.
    """
    from remat_cli.kernels.reordering import EXHAUSTED

    computes, looked = None, 0
    for hurry in (*_HURRIES, 0.0):
        urge, room_for_states = hurry / max(1, len(graph.nodes)), min(most_bytes, _HURRY_BYTES) if hurry else most_bytes
        states, end = _search(graph, budget_bytes - graph.fixed_memory, control, ceiling, urge, room_for_states)
        looked += int(states.totals[2])
        if end >= 0:
            computes, ceiling = _sequence(states, end), float(states.cost[end])
            found(computes)
        if end == EXHAUSTED or (end >= 0 and not hurry):
            return Cheapest(computes, ceiling, looked)
    return Cheapest(computes, min(ceiling, float(states.price[0])), looked)


def _search(
    graph: Graph, room: int, control: Control, ceiling: float, urge: float, most_bytes: int
) -> tuple[States, int]:
    """Search until a schedule is found, or nothing is left to look at, or ``most_bytes`` are full; see the kernel.

    Returns:
        The states, and where the search ended.
    """
    from remat_cli.kernels.reordering import EXHAUSTED, FULL, PAUSED, enter, search

    arrays, states, end = arrays_of(graph), _first(graph), PAUSED
    if states.held[0] > room:
        return states, EXHAUSTED
    enter(states, urge)
    while end == PAUSED and not control.stopping():
        end = search(arrays, states, room, ceiling, urge, _AT_ONCE)
        if end == FULL and 2 * sum(array.nbytes for array in states) <= most_bytes:
            states, end = _larger(states, urge), PAUSED
    return states, end


def _first(graph: Graph) -> States:
    """The last state alone: every node is to be computed, and the graph outputs are needed."""
    from remat_cli.kernels.reordering import WORD, States

    n = len(graph.nodes)
    words = (n + len(graph.size) - 1) // WORD + 1

    def sets(of: Iterable[Iterable[int]]) -> Ints:
        numbers = [sum(1 << bit for bit in set(bits)) for bits in of]
        parts = [[number >> WORD * w & (1 << WORD) - 1 for w in range(words)] for number in numbers]
        return np.array(parts, dtype=np.int64)

    key = np.zeros((_FEW_STATES, words), dtype=np.int64)
    key[0] = sets([(*range(n), *(n + v for v in graph.outputs))])[0]
    held = np.zeros(_FEW_STATES, dtype=np.int64)
    held[0] = sum(graph.size[v] for v in graph.outputs)
    left = np.full(_FEW_STATES, n, dtype=np.int64)
    return States(
        readers=sets((j for v in graph.values_of(i) for j in graph.readers[v]) for i in range(n)),
        made=sets((n + v for v in graph.values_of(i)) for i in range(n)),
        read=sets((n + v for v in node.inputs) for node in graph.nodes),
        key=key,
        cost=np.zeros(_FEW_STATES),
        held=held,
        left=left,
        following=np.full(_FEW_STATES, -1, dtype=np.int64),
        step=np.zeros(_FEW_STATES, dtype=np.int64),
        done=np.zeros(_FEW_STATES, dtype=np.bool_),
        table=_table(_FEW_STATES),
        queue=np.zeros(_QUEUED * _FEW_STATES, dtype=np.int64),
        price=np.zeros(_QUEUED * _FEW_STATES),
        level=np.zeros(n, dtype=np.int64),
        totals=np.array([1, 0, 0], dtype=np.int64),
    )


def _table(size: int) -> Ints:
    """An empty hash table for so many states, at most half full."""
    return np.full(2 * size, -1, dtype=np.int64)


def _larger(states: States, urge: float) -> States:
    """The same states, with room for twice as many."""
    from remat_cli.kernels.reordering import enter

    size = 2 * len(states.cost)
    grown: dict[str, Any] = {name: getattr(states, name) for name in _BY_STATE}
    grown = {name: np.concatenate([array, np.zeros_like(array)]) for name, array in grown.items()}
    queue, price = np.zeros(_QUEUED * size, dtype=np.int64), np.zeros(_QUEUED * size)
    states.totals[1] = 0
    larger = states._replace(**grown, table=_table(size), queue=queue, price=price)
    enter(larger, urge)
    return larger


def _sequence(states: States, at: int) -> tuple[int, ...]:
    """The computed nodes from state ``at`` to the end."""
    computes = []
    while states.following[at] >= 0:
        computes.append(int(states.step[at]))
        at = states.following[at]
    return tuple(computes)
