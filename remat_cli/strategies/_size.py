"""Whether a model with a variable for every node and stage can be built at all, said before it is tried."""

from __future__ import annotations

import os

from remat_cli.control import Control
from remat_cli.graph.model import Graph
from remat_cli.strategies.base import NotFound
from remat_cli.units import format_bytes, format_count

_BYTES, _SECONDS = 2_500, 30e-6
"""What a variable of the paper's model takes with its rows, in Pyomo and as arrays; measured on networks."""
_MARGIN = 2.0
"""Only what would take so many times the time that is left is not begun."""


def too_large(graph: Graph, control: Control, passes: int = 1) -> NotFound | None:
    """Why the model of Checkmate's equation 9 for ``graph`` is not worth building; None if it is.

    It has R, S and U for about n^2/2 pairs of a stage and a node, and FREE for each read: the estimate is a tenth too
    high on networks.

    Args:
        graph: The graph.
        control: The clock.
        passes: How often a stage is gone through.
    """
    n = len(graph.nodes)
    variables = passes * (n + 1) * (2 * n + len(graph.size) + graph.edges) / 2
    takes_bytes, takes_s = int(_BYTES * variables), _SECONDS * variables
    remaining, memory = control.remaining_s(), _memory_bytes()
    too_much = memory is not None and takes_bytes > memory
    if not too_much and (remaining is None or takes_s <= _MARGIN * remaining):
        return None
    instead = "auto, whose models grow with what may be worth computing again, or a heuristic"
    return NotFound(
        f"the model would have about {format_count(variables)} variables, and building it would take about "
        f"{format_bytes(takes_bytes)} and {_duration(takes_s)}",
        hint=f"take {instead}" if too_much else f"allow a longer --time-limit, or take {instead}",
    )


def _memory_bytes() -> int | None:
    """Memory of this machine, where the system tells."""
    if not hasattr(os, "sysconf"):
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _duration(seconds: float) -> str:
    """``40 seconds``, ``7 minutes``, ``3 hours``."""
    if seconds < 1:
        return "less than a second"
    for name, length in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {name}"
    return f"{seconds:.0f} seconds"
