"""Schedules of chains by sweeps: run forward to a level, keep it, serve the levels above, visit it, restart below.

On a chain (each forward node reads the one before and nothing else) the recursion of ``visits_bound`` with the real
size of each kept value, instead of the smallest, gives the cheapest schedule of this kind. All live bytes are counted:
gradients, values kept for another visit, workspace. If all sizes are equal both recursions agree, and the schedule is
optimal among all (tests compare them at every budget); otherwise it is a first schedule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from remat_cli.graph.model import Graph
from remat_cli.strategies.chains.segments import (
    LONGEST_S,
    MOST_LEVELS,
    Segments,
    Units,
    filled,
    highest_visited,
    prefix_sums,
)


def sweeps(graph: Graph, split: int, room: int, *, seconds: float = LONGEST_S) -> tuple[int, ...] | None:
    """The cheapest schedule by sweeps within ``room`` bytes beside the fixed memory.

    Args:
        graph: The graph.
        split: Number of nodes in the forward part; the others run once each, in order.
        room: Bytes.
        seconds: Approximate time limit; with less time bytes are counted in larger units.

    Returns:
        Nodes by index; None if the forward part is no chain that is visited from the end to the start, or nothing fits.
    """
    levels = _visited_levels(graph, split)
    if levels is None or not _is_chain(graph, split):
        return None
    need = _Need.of(graph, split, levels)
    order = need.order(room, seconds)
    if order is None:
        return None
    computes: list[int] = []
    following = split
    for low, k, r in order:
        while following < len(graph.nodes) and levels[following - split] > r:
            computes.append(following)
            following += 1
        computes.extend(range(low, k))
    return (*computes, *range(following, len(graph.nodes)))


def _is_chain(graph: Graph, split: int) -> bool:
    """Whether each forward node reads only the one before, may be recomputed, and makes no graph output."""
    if not 2 <= split <= MOST_LEVELS or any(graph.producer[v] < split for v in graph.outputs):
        return False
    return all(
        node.recompute and {graph.producer[v] for v in node.inputs} == ({i - 1} if i else set())
        for i, node in enumerate(graph.nodes[:split])
    )


def _visited_levels(graph: Graph, split: int) -> list[int] | None:
    """For each node of the rest the level (from 1) that it visits, or that of the visit before; None if levels rise.

    The first node must visit the last level, so that the whole forward part runs before it.
    """
    levels: list[int] = []
    for node in graph.nodes[split:]:
        read = [graph.producer[v] + 1 for v in node.inputs if graph.producer[v] < split]
        current = levels[-1] if levels else split
        if read and min(read) > current:
            return None
        levels.append(min(read) if read else current)
    return levels if levels and levels[0] == split else None


@dataclass(frozen=True, slots=True)
class _Need:
    """Bytes that the steps of a schedule by sweeps need, per level 1 .. N (index 0 unused).

    Attributes:
        costs: Cost of computing each level.
        kept: Bytes of its values that other nodes read.
        running: Bytes of outputs and workspace while it is computed.
        visit: Peak of the visits to it, without the kept values of lower levels; None if there is no visit.
        pending: Bytes resident while lower levels are computed on the way to its first visit.
    """

    costs: tuple[float, ...]
    kept: tuple[int, ...]
    running: tuple[int, ...]
    visit: tuple[int | None, ...]
    pending: tuple[int, ...]

    @classmethod
    def of(cls, graph: Graph, split: int, levels: list[int]) -> _Need:
        """Count the live bytes around every node of the rest."""
        visit: list[int | None] = [None] * (split + 1)
        pending = [0] * (split + 1)
        last = {v: readers[-1] for v, readers in enumerate(graph.readers) if readers and readers[-1] >= split}
        last.update(dict.fromkeys(graph.outputs, len(graph.nodes)))
        above: dict[int, int] = {}  # values of levels above the current one that are still to be read
        below = sorted((v for v in last if graph.producer[v] < split), reverse=True)
        made: dict[int, int] = {}
        for v, level in enumerate(levels, start=split):
            above = {value: size for value, size in above.items() if last[value] >= v}
            made = {value: size for value, size in made.items() if last[value] >= v}
            while below and graph.producer[below[0]] + 1 > level:
                value = below.pop(0)
                if last[value] >= v:
                    above[value] = graph.size[value]
            live = sum(above.values()) + sum(made.values())
            if visit[level] is None:
                pending[level] = live
            here = sum(graph.size[w] for w in below if graph.producer[w] + 1 == level and last[w] >= v)
            need = live + here + sum(graph.nodes[v].outputs) + graph.nodes[v].workspace
            visit[level] = max(need, visit[level] or 0)
            made.update({w: graph.size[w] for w in graph.values_of(v) if w in last})
        forward = graph.nodes[:split]
        return cls(
            tuple(node.cost for node in forward),
            (0, *(sum(graph.size[v] for v in graph.values_of(i) if graph.readers[v]) for i in range(split))),
            (0, *(sum(node.outputs) + node.workspace for node in forward)),
            tuple(visit),
            tuple(pending),
        )

    def order(self, room: int, seconds: float) -> list[tuple[int, int, int]] | None:
        """The best splits for a budget, see ``Segments.order``; None if nothing fits."""
        visited = [k for k, need in enumerate(self.visit) if need is not None]
        spare = [room - (need or 0) for need in self.visit]
        if min(spare) < 0:
            return None
        others = (*self.running, *(need or 0 for need in self.visit), *self.pending)
        coarse = Units.of(self.kept, max(spare[k] for k in visited), len(self.costs), others, seconds=seconds)
        segments, table = filled(lambda units: self._segments(room, spare, visited, units), coarse, seconds)
        return segments.order(table)

    def _segments(self, room: int, spare: list[int], visited: list[int], units: Units) -> Segments:
        """The programme in given units, if ``spare`` bytes are free beside the visits to each level."""
        n = len(self.costs)
        size = [math.ceil(kept / units.bytes) for kept in self.kept]
        hold = np.tile(np.array(size, dtype=np.int64), (n + 1, 1))
        sweep = np.zeros((n + 1, n + 1), dtype=np.int64)
        for low in range(n):
            highest = 0
            for k in range(low + 1, n + 1):
                highest = max(highest, self.running[k] + (self.kept[k - 1] if k - 1 > low else 0))
                sweep[low, k] = (room - highest) // units.bytes
        return Segments(
            prefix=prefix_sums(self.costs),
            tail=np.zeros(n + 1),
            top=highest_visited(visited, n),
            hold=hold,
            sweep=sweep,
            pending=np.array([math.ceil(need / units.bytes) for need in self.pending], dtype=np.int64),
            visit=np.array([s // units.bytes for s in spare], dtype=np.int64),
            width=units.count + 1,
        )
