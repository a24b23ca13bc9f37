"""Orders of small peak without recomputation: dynamic programming over sets of finished nodes, limited to a beam.

The resident values depend only on the set of finished nodes, not on their order, so the best order of each set is
enough (Ahn et al., Ordering Chaos, MLSys 2020). Sets of k nodes are made from those of k - 1. While there are at most
``width`` of them the search is exact; beyond that the least promising are dropped. The backward search is the mirror
image: sets of nodes still to come, grown from the end.

A node that can run now within the peak so far, and leaves no more bytes resident than before, may run at once: it would
free as much later, and every node that would have run before it then has at least as much room. So no other node is
tried there, which keeps the number of sets small.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from remat_cli.control import Control
from remat_cli.graph.model import Graph

MOST_STEPS = 400_000
"""Steps after which a search is given up: a few seconds. Untuned."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The effect of each node on memory.

    Attributes:
        own: int[n], bytes of outputs and workspace.
        kept: int[n], bytes of the outputs that a node reads or that stay to the end.
        reads: The inputs that may die, as (bytes, readers as bits): [n][...].
        before: int[n], producers of its inputs, as bits.
        after: int[n], readers of its outputs, as bits.
        at_end: Bytes of the graph outputs.
    """

    own: tuple[int, ...]
    kept: tuple[int, ...]
    reads: tuple[tuple[tuple[int, int], ...], ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    at_end: int

    @classmethod
    def of(cls, graph: Graph) -> Steps:
        """The steps of ``graph``."""
        stays = set(graph.outputs)
        readers = [sum(1 << j for j in found) for found in graph.readers]
        kept, reads, before, after = [], [], [], []
        for i, node in enumerate(graph.nodes):
            made = graph.values_of(i)
            kept.append(sum(graph.size[v] for v in made if readers[v] or v in stays))
            reads.append(tuple((graph.size[v], readers[v]) for v in node.inputs if v not in stays and graph.size[v]))
            before.append(_bits(graph.producer[v] for v in node.inputs))
            after.append(reduce(or_, (readers[v] for v in made), 0))
        return cls(
            own=tuple(sum(node.outputs) + node.workspace for node in graph.nodes),
            kept=tuple(kept),
            reads=tuple(reads),
            before=tuple(before),
            after=tuple(after),
            at_end=sum(graph.size[v] for v in graph.outputs),
        )

    def forward(self, done: int, level: int, k: int) -> tuple[int, int]:
        """Bytes while node k runs after the nodes ``done``, which leave ``level`` bytes; and bytes after it."""
        now = done | 1 << k
        dead = sum(size for size, readers in self.reads[k] if not readers & ~now)
        return level + self.own[k], level + self.kept[k] - dead

    def backward(self, done: int, level: int, k: int) -> tuple[int, int]:
        """Bytes while node k runs right before the nodes ``done``, which need ``level`` bytes; and bytes before it."""
        born = sum(size for size, readers in self.reads[k] if not readers & done)
        start = level - self.kept[k] + born
        return start + self.own[k], start


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive nodes of an order that are to be reordered, with the set of nodes before (or after) them.

    Attributes:
        nodes: The nodes.
        done: Nodes before them; backwards, nodes after them; as bits.
        level: Bytes resident between ``done`` and them.
    """

    nodes: tuple[int, ...]
    done: int
    level: int


@dataclass(frozen=True, slots=True)
class Aim:
    """The objective for orders: the peak if it is above ``floor``, then the bytes over ``target``.

    Attributes:
        floor: Bytes without fixed memory; peaks below this count as equal.
        target: Bytes without fixed memory.
        limit: Orders with a higher peak are discarded.
    """

    floor: int
    target: int
    limit: int


@dataclass(frozen=True, slots=True)
class Beam:
    """The result of a search.

    Attributes:
        nodes: The best order of the stretch; None if none is within the limit, or if it was dropped.
        peak: Its peak in bytes, or the floor if that is larger; without fixed memory.
        excess: Its bytes over the target, summed over its steps.
        exact: Whether no set was dropped, so that no order has a smaller peak (or none keeps within the limit).
        given_up: Whether it ended early.
    """

    nodes: tuple[int, ...] | None
    peak: int
    excess: int
    exact: bool
    given_up: bool = False


# (peak, excess, level, set of finished nodes, the nodes that were ready before the last one, the path)
_State = tuple[int, int, int, int, tuple[int, ...], "_Link | None"]
_Link = tuple[int, "_Link | None"]
_GIVEN_UP = Beam(None, 0, 0, False, given_up=True)


def search(steps: Steps, stretch: Stretch, aim: Aim, width: int, control: Control, *, backward: bool = False) -> Beam:
    """The best order of a stretch that the beam contains.

    Args:
        steps: The effect of the nodes on memory.
        stretch: The nodes to reorder.
        aim: The objective.
        width: Most sets of one size to keep.
        control: If it stops early the search gives up, as it does after :data:`MOST_STEPS`.
        backward: Grow it from the end.
    """
    needs, frees = (steps.after, steps.before) if backward else (steps.before, steps.after)
    step = steps.backward if backward else steps.forward
    inside = _bits(stretch.nodes)
    first = tuple(k for k in stretch.nodes if not needs[k] & inside)
    layer: list[_State] = [(aim.floor, 0, stretch.level, stretch.done, first, None)]
    exact, work = True, 0
    for _ in stretch.nodes:
        following: dict[int, _State] = {}
        for peak, excess, level, done, could, link in layer:
            ready = could
            if link is not None:
                ready = _ready(could, link[0], frees[link[0]] & inside, needs, inside & ~done)
            work += len(ready)
            if work > MOST_STEPS or control.stopping():
                return _GIVEN_UP
            moves = [(k, *step(done, level, k)) for k in ready]
            free = next((move for move in moves if move[2] <= level and move[1] <= peak), None)
            for k, high, after in moves if free is None else (free,):
                now = done | 1 << k
                rank = (max(peak, high), excess + max(0, high - aim.target))
                if high <= aim.limit and (now not in following or rank < following[now][:2]):
                    following[now] = (*rank, after, now, ready, (k, link))
        layer = list(following.values())
        if len(layer) > width:
            exact = False
            layer.sort(key=lambda state: state[:3])
            del layer[width:]
    if not layer:
        return Beam(None, 0, 0, exact)
    peak, excess, *_, link = min(layer, key=lambda state: state[:2])
    nodes = _unwound(link)
    return Beam(nodes if backward else nodes[::-1], peak, excess, exact)


def _ready(could: tuple[int, ...], ran: int, freed: int, needs: Sequence[int], to_come: int) -> tuple[int, ...]:
    """The nodes that are ready after ``ran``; ``freed`` are the readers of its outputs, as bits."""
    left = [k for k in could if k != ran]
    while freed:
        lowest = freed & -freed
        k = lowest.bit_length() - 1
        if not needs[k] & to_come:
            left.append(k)
        freed ^= lowest
    return tuple(left)


def _unwound(link: _Link | None) -> tuple[int, ...]:
    """The nodes of a path, the last one first."""
    nodes = []
    while link is not None:
        node, link = link
        nodes.append(node)
    return tuple(nodes)


def _bits(indices: Iterable[int]) -> int:
    return reduce(or_, (1 << i for i in indices), 0)
