"""Maximum flows by Dinic's algorithm over arrays, compiled by numba.

(Dinic, "Algorithm for solution of a problem of maximum flow in a network with power estimation", Soviet Mathematics
Doklady 11, 1970.) Capacities are 64-bit integers: sums of bytes exceed 32 bits, the limit of SciPy's flows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from remat_cli.kernels.compiling import entry, inner
from remat_cli.mip import Bools, Ints


def sink_side(tails: Ints, heads: Ints, capacities: Ints, count: int, source: int, sink: int) -> Bools:
    """Vertices from which the sink can still be reached under a maximum flow: the smallest sink side of a minimum cut.

    Args:
        tails: int64[m], the vertex where each arc starts.
        heads: int64[m], the vertex where it ends.
        capacities: int64[m], not negative; the value of a minimum cut must fit 64 bits.
        count: Number of vertices.
        source: Vertex where the flow starts.
        sink: Vertex where it ends.

    Returns:
        bool[count]; the same for every maximum flow.
    """
    m = len(tails)
    ends = np.concatenate([tails, heads])
    order = np.argsort(ends, kind="stable")
    place = np.empty(2 * m, dtype=np.int64)
    place[order] = np.arange(2 * m)
    start = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(ends, minlength=count), out=start[1:])
    to = np.concatenate([heads, tails])[order]
    left = np.concatenate([capacities, np.zeros(m, dtype=np.int64)])[order]
    back = np.concatenate([place[m:], place[:m]])[order]
    distance = np.empty(count, dtype=np.int64)
    room = Room(*(np.empty(count, dtype=np.int64) for _ in Room._fields))
    _maximise(start, to, left, back, source, sink, distance, room)
    side: Bools = distance >= 0
    return side


class Room(NamedTuple):
    """Working arrays: int64[count] each."""

    queue: Ints
    following: Ints
    way: Ints


@inner
def _distances(start: Any, to: Any, left: Any, back: Any, sink: int, distance: Any, queue: Any) -> None:
    """Arcs on the shortest residual path from every vertex to the sink; -1 if there is none."""
    distance[:] = -1
    distance[sink] = 0
    queue[0] = sink
    first, last = 0, 1
    while first < last:
        v = queue[first]
        first += 1
        for a in range(start[v], start[v + 1]):
            u = to[a]
            if distance[u] < 0 and left[back[a]] > 0:
                distance[u] = distance[v] + 1
                queue[last] = u
                last += 1


@inner
def _copy(source: Any, target: Any) -> None:
    """Copy the beginning of ``source`` to ``target``: numba takes two seconds to compile that for slices."""
    for k in range(len(target)):
        target[k] = source[k]


@entry
def _maximise(
    start: Ints, to: Ints, left: Ints, back: Ints, source: int, sink: int, distance: Ints, room: Room
) -> None:
    """Augment along shortest paths until there is none; ``distance`` gets the final residual distances to the sink."""
    following, way = room.following, room.way
    while True:
        _distances(start, to, left, back, sink, distance, room.queue)
        if distance[source] < 0:
            return
        _copy(start, following)
        depth, v = 0, source
        while True:
            if v == sink:
                amount, tightest = left[way[0]], 0
                for k in range(1, depth):
                    if left[way[k]] < amount:
                        amount, tightest = left[way[k]], k
                for k in range(depth):
                    left[way[k]] -= amount
                    left[back[way[k]]] += amount
                depth = tightest  # the path up to its first saturated arc can be used again
                v = to[back[way[depth]]]
            while following[v] < start[v + 1]:
                a = following[v]
                if left[a] > 0 and distance[to[a]] == distance[v] - 1:
                    break
                following[v] += 1
            if following[v] < start[v + 1]:
                way[depth] = following[v]
                v = to[way[depth]]
                depth += 1
            elif depth == 0:
                break
            else:
                depth -= 1
                v = to[back[way[depth]]]
                following[v] += 1
