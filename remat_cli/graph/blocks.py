"""Large graphs as a few blocks of nodes, each of which may hold blocks again, for drawings that can be read.

A block is a stretch of consecutive nodes of one phase, so blocks never depend on each other in a circle.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from remat_cli.graph.model import Graph, Node

_WHOLE = 120
"""This many nodes need no blocks: two rows of 60 in a window can be read; untuned."""
_MOST = 80
"""The largest number of blocks and nodes beside them, so that names fit into most; untuned."""
_FEWEST = 4
"""Fewer blocks in a phase say too little; untuned."""
_STRETCHES = 32
"""The number of blocks for nodes in which nothing repeats; untuned."""
_SEPARATOR = re.compile(r"[/.]|_(?=\d)")


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
        made = sum(sum(graph.nodes[i].outputs) for i in inside)
        phase = graph.nodes[part.first].phase
        nodes.append(Node(part.name, cost, tuple(sorted(read - {k})), (made,), phase=phase))
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

        found = []
        for (name, _), group in groupby(run, beginning):
            nodes = list(group)
            found.append((name, nodes[0], nodes[-1] + 1) if len(nodes) > 1 else _named(graph, nodes))
        if _FEWEST <= len(found) <= most:
            best = found
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
    told = [(node.op, len(node.inputs), len(node.outputs)) for node in graph.nodes[first:end]]
    kind = np.array([kinds.setdefault(one, len(kinds)) for one in told])
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
