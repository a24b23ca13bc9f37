"""The cheapest schedule in any order, by Dijkstra's algorithm over states (``strategies/states``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from remat_cli.control import Control
from remat_cli.graph.model import Graph
from remat_cli.strategies.states import Search

MOST_NODES = 256
"""Nodes of the largest graph. `moccasin/G2` (250) is proven at 75% of its no-remat peak after 9 s; on `moccasin/G3`
(500) the bound is next to nothing after 20 s (by hand)."""
_MOST_BYTES = 2**29
"""Bytes for states: those of 60 nodes are full after about 20 s."""
_HURRIES, _HURRY_BYTES = (4.0, 1.0, 0.3, 0.1), 2**25
"""What is expected to be recomputed, in units of C0, in searches for a first schedule; and bytes for states of these.
Untuned."""


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
    computes, looked = None, 0
    for hurry in (*_HURRIES, 0.0):
        search = Search.of(
            graph,
            budget_bytes - graph.fixed_memory,
            in_order=False,
            ceiling=ceiling,
            most_bytes=min(most_bytes, _HURRY_BYTES) if hurry else most_bytes,
            urge=hurry / max(1, len(graph.nodes)),
        )
        end = search.next(control)
        looked += int(search.states.totals[2])
        if end is not None:
            computes, ceiling = search.sequence(end), float(search.states.cost[end])
            found(computes)
        if search.exhausted or (end is not None and not hurry):
            return Cheapest(computes, ceiling, looked)
    return Cheapest(computes, min(ceiling, search.bound), looked)
