"""The lifetimes of values in memory as bands: stacked in the order of allocation, exact at every statement."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from remat_cli.graph.model import Graph
from remat_cli.plan.model import Allocate, Compute, Deallocate, Statement
from remat_cli.plan.occupancy import Kind, fetched_registers

_MOST_BANDS = 400
"""More are too thin to be seen; untuned."""
_MOST_STEPS = 20_000
"""Steps of all bands together: a browser still draws them at once, and the page stays small; untuned."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """One instance of a value in memory.

    Attributes:
        value: The value.
        first: The statement that allocates it.
        end: The statement that frees it; the number of statements if it stays to the end.
        kind: Where it comes from; ``RECOMPUTED`` if its node was computed before, ``FETCHED`` if a copy
            fills it.
    """

    value: int
    first: int
    end: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Band:
    """A lifetime in the drawing.

    Attributes:
        lifetime: The lifetime.
        steps: ``(statement, bytes)``: from that statement on, its lower edge is so high. When a band below it ends, it
            sinks by the size of that one.
    """

    lifetime: Lifetime
    steps: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Bands:
    """The largest lifetimes, stacked on the fixed memory, and the rest on top of them.

    Attributes:
        lifetimes: All of them, in the order of allocation.
        drawn: Those with bands, in the same order.
        tops: int[statements], the upper edge of the bands at each statement.
        rest: For each kind, int[statements]: bytes of its lifetimes without a band. What is above all of them, up to
            the memory in use, is workspace.
    """

    lifetimes: tuple[Lifetime, ...]
    drawn: tuple[Band, ...]
    tops: tuple[int, ...]
    rest: Mapping[Kind, tuple[int, ...]]


def lifetimes(graph: Graph, statements: Sequence[Statement]) -> tuple[Lifetime, ...]:
    """Every instance of a value in memory, in the order of allocation.

    A second allocation of a register is ignored, and so is a free of an unknown one, as in the replay.
    """
    begun: dict[str, tuple[int, int, Kind]] = {}
    ends: dict[str, int] = {}
    computed: set[int] = set()
    fetched = fetched_registers(statements)
    for at, statement in enumerate(statements):
        match statement:
            case Allocate(register, value) if register not in begun:
                node = graph.producer[value]
                phase = graph.nodes[node].phase
                kind = Kind.RECOMPUTED if node in computed else Kind.PLAIN if phase is None else Kind(phase.value)
                kind = Kind.FETCHED if register in fetched else kind
                begun[register] = value, at, kind
            case Deallocate(register) if register in begun:
                ends.setdefault(register, at)
            case Compute(node):
                computed.add(node)
    last = len(statements)
    return tuple(Lifetime(v, first, ends.get(name, last), kind) for name, (v, first, kind) in begun.items())


def bands(graph: Graph, statements: Sequence[Statement]) -> Bands:
    """Stack the largest values of ``statements``: as many as can be seen and drawn."""
    lived = lifetimes(graph, statements)
    largest = [k for k, life in enumerate(lived) if graph.size[life.value] and life.end > life.first]
    largest.sort(key=lambda k: (-graph.size[lived[k].value], lived[k].first - lived[k].end, k))
    most = min(len(largest), _MOST_BANDS)
    while True:
        drawn, tops = _stack(graph, [lived[k] for k in sorted(largest[:most])], len(statements))
        if sum(len(band.steps) for band in drawn) <= _MOST_STEPS:
            break
        most //= 2
    chosen = set(largest[:most])
    left = [life for k, life in enumerate(lived) if k not in chosen]
    return Bands(lived, drawn, tops, _sums(graph, left, len(statements)))


def _sums(graph: Graph, lived: Sequence[Lifetime], statements: int) -> dict[Kind, tuple[int, ...]]:
    """Bytes of ``lived`` at each statement, by kind."""
    changes: dict[Kind, list[int]] = {}
    for life in lived:
        if graph.size[life.value]:
            own = changes.setdefault(life.kind, [0] * (statements + 1))
            own[life.first] += graph.size[life.value]
            own[life.end] -= graph.size[life.value]
    return {
        kind: tuple(accumulate(own[:-1])) for kind, own in sorted(changes.items(), key=lambda k: [*Kind].index(k[0]))
    }


def _stack(graph: Graph, lived: Sequence[Lifetime], statements: int) -> tuple[tuple[Band, ...], tuple[int, ...]]:
    steps: list[list[tuple[int, int]]] = [[] for _ in lived]
    begins = {life.first: k for k, life in enumerate(lived)}
    ends = {life.end: k for k, life in enumerate(lived) if life.end < statements}
    stacked: list[int] = []  # those in memory, from the lowest, which were allocated first
    top = graph.fixed_memory
    tops = []
    for at in range(statements):
        if (k := begins.get(at)) is not None:
            steps[k].append((at, top))
            top += graph.size[lived[k].value]
            stacked.append(k)
        if (k := ends.get(at)) is not None:
            size = graph.size[lived[k].value]
            place = bisect_left(stacked, k)
            del stacked[place]
            for above in stacked[place:]:
                steps[above].append((at, steps[above][-1][1] - size))
            top -= size
        tops.append(top)
    return tuple(Band(life, tuple(own)) for life, own in zip(lived, steps, strict=True)), tuple(tops)
