"""When nodes can run, and whether a model of all that can be built, estimated before it is tried."""

from __future__ import annotations

import os

from remat_cli.control import Control
from remat_cli.errors import Worded
from remat_cli.graph.model import Graph
from remat_cli.strategies.base import NotFound
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


def event(node: int, stage: int) -> int:
    """Time at which ``node`` runs in ``stage``; ``node <= stage``, and no two pairs share one."""
    return stage * (stage + 1) // 2 + node


def last_stages(graph: Graph) -> list[int]:
    """Last stage in which each node can have a use: int[n].

    That is n, the closing stage, for every node from which a graph output may be recomputed. For others it is the last
    stage of their readers.
    """
    n = len(graph.nodes)
    last = list(range(n))
    for v in graph.outputs:
        last[graph.producer[v]] = n
    for j in range(n - 1, -1, -1):
        # A reader that may run only once reads in its own stage alone.
        latest = last[j] if graph.nodes[j].recompute else j
        for v in graph.nodes[j].inputs:
            last[graph.producer[v]] = max(last[graph.producer[v]], latest)
    return last


def instance_counts(graph: Graph, most: int) -> list[int]:
    """Instances of each node: ``most``, or the number of stages in which it can have a use if that is less; int[n]."""
    return [
        min(most, 1 + last - o) if node.recompute else 1
        for o, (node, last) in enumerate(zip(graph.nodes, last_stages(graph), strict=True))
    ]
