"""The layout of a graph in a drawing: layers from left to right, with the backward pass below the forward pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from remat_cli.graph.model import Graph, Phase

_SWEEPS = 4


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions of the nodes.

    Attributes:
        layer: int[n], from the left.
        y: float[n], upwards; nodes of one layer are 1 apart or more.
        layers: Number of layers.
    """

    layer: tuple[int, ...]
    y: tuple[float, ...]
    layers: int

    def path(self, producer: int, reader: int) -> tuple[tuple[float, float], ...]:
        """The line of an edge: straight between neighbouring layers, else an arc around the nodes in between."""
        (x, y), (to_x, to_y) = (self.layer[producer], self.y[producer]), (self.layer[reader], self.y[reader])
        span = abs(to_x - x)
        if span <= 1 or (y < 0) is not (to_y < 0):
            return (x, y), (to_x, to_y)
        rise = math.copysign(0.15 * math.log2(span), y)
        shares = [k / 8 for k in range(9)]
        return tuple((x + t * (to_x - x), y + t * (to_y - y) + 4 * t * (1 - t) * rise) for t in shares)


def layered(graph: Graph) -> Layout:
    """Place the nodes of ``graph``.

    A node is in the layer of its longest path from a source, to the right of the nodes that it reads. Nodes of the
    backward phase and of updates are below, in the layer that mirrors their longest path to a sink, so the backward
    pass runs from right to left. Within a layer, nodes are ordered by the mean position of their neighbours in the
    layers before and after, in a few sweeps in both directions (Sugiyama, Tagawa and Toda, 1981). Time is linear in the
    edges, except for sorting.
    """
    back = [node.phase in (Phase.BACKWARD, Phase.UPDATE) for node in graph.nodes]
    sources = [sorted({graph.producer[v] for v in node.inputs}) for node in graph.nodes]
    layer = _layers(back, sources)
    layers = max(layer, default=-1) + 1
    neighbours: list[list[int]] = [[] for _ in graph.nodes]
    for node, read in enumerate(sources):
        for other in read:
            if back[other] is back[node]:
                neighbours[node].append(other)
                neighbours[other].append(node)
    y = [0.0] * len(graph.nodes)
    for side in (False, True):
        rows: list[list[int]] = [[] for _ in range(layers)]
        for node, at in enumerate(layer):
            if back[node] is side:
                rows[at].append(node)
        _arrange(rows, neighbours, y)
    _part(back, y)
    return Layout(tuple(layer), tuple(y), layers)


def _layers(back: Sequence[bool], sources: Sequence[Sequence[int]]) -> list[int]:
    """The layer of every node: depth in the forward pass, mirrored height in the backward pass."""
    n = len(back)
    layer = [0] * n
    for node in range(n):
        if not back[node]:
            layer[node] = max((layer[s] + 1 for s in sources[node] if not back[s]), default=0)
    for node in reversed(range(n)):  # its readers have added their heights by now
        if back[node]:
            for source in sources[node]:
                if back[source]:
                    layer[source] = max(layer[source], layer[node] + 1)
    # The longer pass determines the width; the other is stretched to it, so that both meet at the right.
    there = max((at for at, side in zip(layer, back, strict=True) if not side), default=0)
    here = max((at for at, side in zip(layer, back, strict=True) if side), default=0)
    widest = max(there, here)
    return [
        at * widest // own if (own := here if side else there) else at for at, side in zip(layer, back, strict=True)
    ]


def _arrange(rows: list[list[int]], neighbours: Sequence[Sequence[int]], y: list[float]) -> None:
    """Order the nodes of every layer by the mean position of their neighbours, 1 apart and centred on that mean."""
    for row in rows:
        _spread(row, y, 0.0)
    for sweep in range(_SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wish = {
                node: sum(y[other] for other in neighbours[node]) / len(neighbours[node])
                if neighbours[node]
                else y[node]
                for node in row
            }
            row.sort(key=lambda node: (wish[node], node))
            _spread(row, y, sum(wish.values()) / len(row) if row else 0.0)


def _spread(row: Sequence[int], y: list[float], centre: float) -> None:
    for k, node in enumerate(row):
        y[node] = centre + k - (len(row) - 1) / 2


def _part(back: Sequence[bool], y: list[float]) -> None:
    """Move the forward pass above 0 and the backward pass below, if both exist."""
    if not any(back) or all(back):
        return
    low = min(at for at, side in zip(y, back, strict=True) if not side)
    high = max(at for at, side in zip(y, back, strict=True) if side)
    for node, side in enumerate(back):
        y[node] += -1 - high if side else 1 - low
