"""Orders of small peak without recomputation: dynamic programming over sets of nodes that are done, cut to a beam.

What is resident depends only on the set of nodes that are done, not on their order, so of all ways to one set the best
is enough (Ahn et al., Ordering Chaos, MLSys 2020). Sets of k nodes are made from those of k - 1. While no more than
``width`` of them come up the search is exact; beyond that the least promising are dropped. Backwards it is the same:
sets of nodes still to come, grown from the end.

A node that can run now within the peak so far and leaves no more resident than before may run at once: later, with more
nodes done, it frees no less than it needs just the same, and everything that would have run before it finds as much
room as without it. So nothing else is tried there, which is what keeps the sets few.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from remat_cli.control import Control
from remat_cli.graph.model import Graph

MOST_STEPS = 400_000
"""Steps tried after which a search is given up, which bounds its time to some seconds."""


@dataclass(frozen=True, slots=True)
class Steps:
    """What running each node does to the memory.

    Attributes:
        own: int[n], bytes of outputs and workspace.
        kept: int[n], bytes of the outputs that somebody reads or that stay to the end.
        reads: The inputs that may die, as (bytes, readers as bits): [n][...].
        before: int[n], producers of what a node reads, as bits.
        after: int[n], readers of what it makes, as bits.
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
    """Consecutive nodes of an order that are put in another one, with what is done before (or after) them.

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
    """What makes one order better than another: the peak where it is above ``floor``, then the bytes over ``target``.

    Attributes:
        floor: Bytes without fixed memory; peaks below this are alike.
        target: Bytes without fixed memory.
        limit: Orders whose peak is above this are of no use.
    """

    floor: int
    target: int
    limit: int


@dataclass(frozen=True, slots=True)
class Beam:
    """What a search found.

    Attributes:
        nodes: The best order of the nodes of the stretch; None if it has none within the limit, or lost it.
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


# (peak, excess, level, set of nodes done, what could run before the last one, what led here)
_State = tuple[int, int, int, int, tuple[int, ...], "_Link | None"]
_Link = tuple[int, "_Link | None"]
_GIVEN_UP = Beam(None, 0, 0, False, given_up=True)


def search(steps: Steps, stretch: Stretch, aim: Aim, width: int, control: Control, *, backward: bool = False) -> Beam:
    """The best order of a stretch that the beam holds.

    Args:
        steps: What the nodes do.
        stretch: The nodes to put in order.
        aim: What is better.
        width: Most sets of one size to keep.
        control: Where it stops early, nothing is found; nor after :data:`MOST_STEPS`.
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
    """The nodes that can run once ``ran`` has, which ``freed`` waited for."""
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
