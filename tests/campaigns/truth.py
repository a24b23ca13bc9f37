"""The truth about tiny graphs, read from their documents. Shares no code with remat, nor with ``bruteforce``.

A state is what has been computed so far and which values are in memory, both as bits. Dijkstra's algorithm over all
states gives the least cost within a budget. The same search with the largest memory so far as its key gives the least
peak.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

ANY_ORDER, DOCUMENT_ORDER, FRONTIER = "any-order", "document-order", "frontier"
"""The sets of schedules that are searched, as docs/mathematics.md names them."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node; values are numbers from 0, in the order of the document."""

    id: str
    cost: float
    inputs: tuple[int, ...]
    makes: tuple[int, ...]
    workspace: int
    recompute: bool


@dataclass(frozen=True, slots=True)
class Instance:
    """What a graph document says, with all defaults in place."""

    nodes: tuple[Node, ...]
    sizes: tuple[int, ...]
    outputs: tuple[int, ...]
    fixed: int
    names: dict[str, int] = field(compare=False)
    """Every value's number by its full name, ``id:k``."""

    @classmethod
    def of(cls, document: dict[str, Any]) -> Instance:
        """The instance of a valid document in which sizes are numbers."""
        names: dict[str, int] = {}
        sizes: list[int] = []
        nodes: list[Node] = []
        for entry in document["nodes"]:
            made = entry["outputs"] if "outputs" in entry else [entry["memory"]]
            inputs = tuple(sorted({names[_full(name)] for name in entry["inputs"]}))
            makes = tuple(range(len(sizes), len(sizes) + len(made)))
            names |= {f"{entry['id']}:{k}": value for k, value in enumerate(makes)}
            sizes += made
            nodes.append(
                Node(
                    entry["id"],
                    float(entry["cost"]),
                    inputs,
                    makes,
                    entry.get("workspace", 0),
                    entry.get("recompute", True),
                )
            )
        listed = document.get("outputs", [f"{nodes[-1].id}:{k}" for k in range(len(nodes[-1].makes))])
        outputs = tuple(sorted({names[_full(name)] for name in listed}))
        return cls(tuple(nodes), tuple(sizes), outputs, document.get("fixed_memory", 0), names)

    @property
    def states(self) -> int:
        """About how many states a search in any order may see."""
        return 2 ** (len(self.nodes) + len(self.sizes))


def _full(name: str) -> str:
    return name if ":" in name and name.rpartition(":")[2].isdigit() else f"{name}:0"


@functools.lru_cache(256)
def least_cost(instance: Instance, budget: int, schedules: str) -> float | None:
    """Least cost of any of these schedules within ``budget`` bytes, fixed memory included; None if none fits."""
    return next(_search(instance, budget - instance.fixed, schedules, peak=False), None)


@functools.lru_cache(256)
def least_peak(instance: Instance, schedules: str) -> int:
    """The smallest budget within which one of these schedules fits."""
    room = sum(instance.sizes) + max(node.workspace for node in instance.nodes)
    return instance.fixed + int(next(_search(instance, room, schedules, peak=True)))


def _search(instance: Instance, room: int, schedules: str, *, peak: bool) -> Iterator[float]:
    """The key of the cheapest final state, if there is one."""
    nodes, n = instance.nodes, len(instance.nodes)
    needs = [_bits(node.inputs) for node in nodes]
    makes = [_bits(node.makes) for node in nodes]
    outputs, everything = _bits(instance.outputs), (1 << n) - 1
    in_order = schedules != ANY_ORDER
    tie = itertools.count()
    # (key, tie, nodes computed, values in memory, bytes of those, first node that the stage may still compute)
    queue: list[tuple[float, int, int, int, int, int]] = [(0, next(tie), 0, 0, 0, 0)]
    seen: set[tuple[int, int, int]] = set()
    while queue:
        key, _, done, resident, held, place = heapq.heappop(queue)
        if (done, resident, place) in seen:
            continue
        seen.add((done, resident, place))
        if done == everything and outputs & ~resident == 0:
            yield key
            return
        for value, size in enumerate(instance.sizes):
            if resident >> value & 1:
                heapq.heappush(queue, (key, next(tie), done, resident & ~(1 << value), held - size, place))
        for i, node in enumerate(nodes):
            again = bool(done >> i & 1)
            if again and not (node.recompute and i >= place):
                continue
            if not again and in_order and done & ((1 << i) - 1) != (1 << i) - 1:
                continue
            if needs[i] & ~resident or makes[i] & resident:
                continue
            after = held + sum(instance.sizes[value] for value in node.makes)
            if after + node.workspace > room:
                continue
            reached = max(key, after + node.workspace) if peak else key + node.cost
            following = i + 1 if again and schedules == FRONTIER else 0
            heapq.heappush(queue, (reached, next(tie), done | 1 << i, resident | makes[i], after, following))


def _bits(numbers: Iterable[int]) -> int:
    return sum(1 << number for number in numbers)


def peak_of(instance: Instance, computes: Sequence[int]) -> int:
    """Peak of a sequence of computes, everything freed as early as possible, fixed memory included."""
    last_made: dict[int, int] = {}
    frees: list[list[int]] = [[] for _ in range(len(computes) + 1)]
    until: dict[tuple[int, int], int] = {}
    for at, i in enumerate(computes):
        for value in instance.nodes[i].inputs:
            until[value, last_made[value]] = at
        for value in instance.nodes[i].makes:
            last_made[value] = at
            until[value, at] = at
    for value in instance.outputs:
        until[value, last_made[value]] = len(computes)
    for (value, _), end in until.items():
        frees[end].append(value)
    live = highest = 0
    for at, i in enumerate(computes):
        live += sum(instance.sizes[value] for value in instance.nodes[i].makes)
        highest = max(highest, live + instance.nodes[i].workspace)
        live -= sum(instance.sizes[value] for value in frees[at])
    return instance.fixed + highest


def working_set(instance: Instance) -> int:
    """The largest memory that some node needs to run, or that the outputs take; no schedule can do with less."""
    needs = [sum(instance.sizes[v] for v in (*n.inputs, *n.makes)) + n.workspace for n in instance.nodes]
    return instance.fixed + max(*needs, sum(instance.sizes[value] for value in instance.outputs))
