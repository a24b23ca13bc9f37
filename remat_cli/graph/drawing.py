"""Prepares graphs for drawings that can be read: blocks of nodes, and layers from left to right.

A block is a stretch of consecutive nodes of one phase, which may hold blocks again, so blocks never depend on each
other in a circle. Layers have the backward pass below the forward pass.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from remat_cli.graph.model import Graph, Node, Phase

_WHOLE = 120
"""This many nodes need no blocks: two rows of 60 in a window can be read; untuned."""
_MOST = 80
"""The largest number of blocks and nodes beside them, so that names fit into most; untuned."""
_FEWEST = 4
"""Fewer blocks in a phase say too little; untuned."""
_STRETCHES = 32
"""The number of blocks for nodes in which nothing repeats; untuned."""
_SEPARATOR = re.compile(r"[/.]|_(?=\d)")
_SWEEPS = 4


@dataclass(frozen=True, slots=True)
class Block:
    """The nodes ``first`` to ``end`` - 1.

    Attributes:
        name: For people: what their names begin with, or the first and the last name.
        first: The first node.
        end: The node after the last one.
        parts: Blocks and single nodes that make it up, in order; none for a single node.
    """

    name: str
    first: int
    end: int
    parts: tuple[Block, ...] = ()


_Stretch = tuple[str, int, int]


def blocks(graph: Graph) -> Block:
    """The whole of ``graph`` as one block, in which no block has many more than a hundred parts.

    Names give the blocks (``layer3.4`` holds ``layer3.4.conv1``) if they have such parts, else operations that repeat
    in the same order (``conv, bn, relu, conv, bn, relu, ...``), else stretches of equal length.
    """
    whole = _block(graph, graph.name, 0, len(graph.nodes))
    return replace(whole, parts=(Block(graph.nodes[0].id, 0, 1),)) if len(graph.nodes) == 1 else whole


def condensed(graph: Graph, parts: Sequence[Block]) -> Graph:
    """The graph between ``parts``: a node for each, with their costs and the bytes that they make in one value.

    What they read from elsewhere is left out.
    """
    place = {node: k for k, part in enumerate(parts) for node in range(part.first, part.end)}
    nodes = []
    for k, part in enumerate(parts):
        inside = range(part.first, part.end)
        read = {place.get(graph.producer[v], k) for i in inside for v in graph.nodes[i].inputs}
        cost = math.fsum(graph.nodes[i].cost for i in inside)
        output_bytes = sum(sum(graph.nodes[i].outputs) for i in inside)
        phase = graph.nodes[part.first].phase
        nodes.append(Node(part.name, cost, tuple(sorted(read - {k})), (output_bytes,), phase=phase))
    return replace(graph, nodes=tuple(nodes), outputs=())


def _block(graph: Graph, name: str, first: int, end: int) -> Block:
    if end - first <= _WHOLE:
        nodes = (Block(graph.nodes[i].id, i, i + 1) for i in range(first, end))
        return Block(name, first, end, tuple(nodes) if end - first > 1 else ())
    return Block(name, first, end, tuple(_block(graph, *stretch) for stretch in _stretches(graph, first, end)))


def _stretches(graph: Graph, first: int, end: int) -> Iterator[_Stretch]:
    """Stretches of one phase each: by names if that gives enough of them, else by operations."""
    for _, group in groupby(range(first, end), lambda i: graph.nodes[i].phase):
        run = list(group)
        most = max(1, _MOST * len(run) // (end - first))
        if len(run) > 1 and (found := _by_names(graph, run, most)):
            yield from found
        else:
            edges = _repeated(graph, run[0], run[-1] + 1, most)
            yield from (_named(graph, range(a, b)) for a, b in pairwise(edges))


def _by_names(graph: Graph, run: Sequence[int], most: int) -> list[_Stretch]:
    """Stretches with the same beginning of their names: the longest beginnings of which there are few enough."""
    best: list[_Stretch] = []
    cuts = {i: [match.start() for match in _SEPARATOR.finditer(graph.nodes[i].id)] for i in run}
    for depth in range(max(map(len, cuts.values()))):

        def beginning(i: int, depth: int = depth) -> tuple[str, int]:
            # A name with fewer parts stands for itself.
            return (graph.nodes[i].id[: cuts[i][depth]], -1) if depth < len(cuts[i]) else (graph.nodes[i].id, i)

        stretches = []
        for (name, _), group in groupby(run, beginning):
            nodes = list(group)
            stretches.append((name, nodes[0], nodes[-1] + 1) if len(nodes) > 1 else _named(graph, nodes))
        if _FEWEST <= len(stretches) <= most:
            best = stretches
    return best


def _named(graph: Graph, nodes: Sequence[int]) -> _Stretch:
    first, last = graph.nodes[nodes[0]].id, graph.nodes[nodes[-1]].id
    return (first if len(nodes) == 1 else f"{first} to {last}"), nodes[0], nodes[-1] + 1


def _repeated(graph: Graph, first: int, end: int, most: int) -> list[int]:
    """The edges of about ``most`` stretches from ``first`` to ``end``."""
    import numpy as np

    n = end - first
    if n <= most or n == 1:
        return list(range(first, end + 1))
    kinds: dict[tuple[object, ...], int] = {}
    signatures = [(node.op, len(node.inputs), len(node.outputs)) for node in graph.nodes[first:end]]
    kind = np.array([kinds.setdefault(one, len(kinds)) for one in signatures])
    best = (0, 0, 0)  # nodes that repeat, the period with a minus sign, where they begin
    for period in range(max(2, -(-n // most)), n // 2 + 1):
        other = np.flatnonzero(np.concatenate(([True], kind[period:] != kind[:-period], [True])))
        lengths = np.diff(other) - 1
        longest = int(lengths.argmax())
        if lengths[longest] >= period:  # at least twice
            best = max(best, (int(lengths[longest]) + period, -period, int(other[longest])))
    covered, period, begin = best[0], -best[1], first + best[2]
    if 2 * covered < n:  # most of it does not repeat
        return [*range(first, end, -(-n // min(most, _STRETCHES))), end]
    stop = begin + covered // period * period
    share = max(1, most // 4)
    left = _repeated(graph, first, begin, share) if begin > first else [first]
    right = _repeated(graph, stop, end, share) if end > stop else [end]
    return [*left, *range(begin + period, stop, period), *right]


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
