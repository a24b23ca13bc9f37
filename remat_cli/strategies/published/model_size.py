"""Whether a model with a variable for every node and stage can be built, estimated before it is tried."""

from __future__ import annotations

import os

from remat_cli.control import Control
from remat_cli.errors import Worded
from remat_cli.graph.model import Graph
from remat_cli.strategies.base import NotFound
from remat_cli.strategies.published.instances import instance_counts, last_stages
from remat_cli.units import format_bytes, format_count

_BYTES, _SECONDS = 2_500, 30e-6
"""Bytes and seconds for a variable of the paper's model with its rows, in Pyomo and as arrays; measured on networks."""
_MARGIN = 2.0
"""A model is refused if it is estimated to take this multiple of the time left: the estimate is rough."""
_PER_PAIR, _PER_CONSTRAINT_S, _PER_TIME_S, _PER_CONSTRAINT_BYTES = 2.7, 13e-6, 1.2e-7, 4_000
"""Constraints for each pair of instances, and what each and each time of a start takes in CP-SAT; measured."""


def too_large(graph: Graph, control: Control, passes: int = 1) -> NotFound | None:
    """Why the model of Checkmate's equation 9 for ``graph`` is not worth building; None if it is.

    It has R, S and U for about n^2/2 pairs of a stage and a node, and FREE for each read: the estimate is a tenth too
    high on networks.

    Args:
        graph: The graph.
        control: The clock.
        passes: Passes through a stage.
    """
    n = len(graph.nodes)
    variables = passes * (n + 1) * (2 * n + len(graph.size) + graph.edges) / 2
    what = f"{format_count(variables)} variables"
    return _refused(what, int(_BYTES * variables), _SECONDS * variables, _MARGIN, control)


def too_many_intervals(graph: Graph, control: Control, instances: int) -> NotFound | None:
    """Why the retention intervals of Moccasin for ``graph`` are not worth stating; None if they are.

    What takes time to state are constraints, a few for each pair of instances of which one reads the other, and the
    times at which each instance may start.

    Args:
        graph: The graph.
        control: The clock.
        instances: How often a node may be computed in all.
    """
    counts = instance_counts(graph, instances)
    pairs = sum(counts[graph.producer[v]] * counts[i] for i, node in enumerate(graph.nodes) for v in node.inputs)
    times = sum((counts[i] - 1) * (last - i) for i, last in enumerate(last_stages(graph)))
    constraints = _PER_PAIR * pairs
    takes_s = _PER_CONSTRAINT_S * constraints + _PER_TIME_S * times
    what = f"{format_count(constraints)} constraints"
    return _refused(what, int(_PER_CONSTRAINT_BYTES * constraints), takes_s, 1.0, control)


def _refused(what: str, takes_bytes: int, takes_s: float, margin: float, control: Control) -> NotFound | None:
    """The refusal of a model that takes more memory than there is, or ``margin`` times the time that is left."""
    remaining, memory = control.remaining_s(), _memory_bytes()
    too_much = memory is not None and takes_bytes > memory
    if not too_much and (remaining is None or takes_s <= margin * remaining):
        return None
    instead = "auto, whose models grow only with useful recomputations, or a heuristic"
    return NotFound(
        f"the model would have about {what}, and building it would take about {format_bytes(takes_bytes)} and "
        f"{_duration(takes_s)}",
        hint=f"take {instead}"
        if too_much
        else Worded(
            f"allow a longer time_limit_s, or take {instead}", f"allow a longer --time-limit, or take {instead}"
        ),
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
