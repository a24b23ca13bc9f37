"""The memory of a plan over time, by kind of value and as bands of lifetimes: the data behind drawings of a plan."""

from bisect import bisect_left, insort
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from remat_cli.graph.model import Graph
from remat_cli.plan.model import Allocate, Compute, Deallocate, Prefetch, Statement

NAMED = 6
"""The number of largest values that are named for each moment."""
_MOST_BANDS = 400
"""More are too thin to be seen; untuned."""
_MOST_STEPS = 20_000
"""Steps of all bands together: a browser still draws them at once, and the page stays small; untuned."""


class Kind(StrEnum):
    """The origin of bytes. Recomputed values are ``RECOMPUTED``, returned ones ``FETCHED``, whatever their phase."""

    FIXED = "fixed memory"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    UPDATE = "update"
    PLAIN = "first computed"
    RECOMPUTED = "recomputed"
    FETCHED = "from host"
    WORKSPACE = "workspace"


@dataclass(frozen=True, slots=True)
class Moment:
    """Memory at one statement, which stands for itself and its neighbours.

    Attributes:
        first: The first of the statements that it stands for.
        statement: The one among them with the most memory in use (the first such).
        bytes: Bytes of each kind at that statement; kinds with none are left out.
        largest: ``(value, bytes, recomputed?)`` of the largest values there.
        values: Number of values there.
        node: The node that is computed there, or next; None after the last one.
        doing: The kind of the computations among those statements: ``RECOMPUTED`` if any of them is one.
    """

    first: int
    statement: int
    bytes: dict[Kind, int]
    largest: tuple[tuple[int, int, bool], ...]
    values: int
    node: int | None
    doing: Kind


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The memory of a plan over time.

    Attributes:
        statements: Number of statements of the plan.
        each: Number of statements per moment; the last moment may have fewer.
        moments: In order.
    """

    statements: int
    each: int
    moments: tuple[Moment, ...]

    def kinds(self) -> tuple[Kind, ...]:
        """The kinds that occur, in the order for stacking."""
        return tuple(kind for kind in Kind if any(kind in moment.bytes for moment in self.moments))

    def runs(self, kind: Kind) -> tuple[tuple[int, int], ...]:
        """The intervals of statements that compute ``kind``, half-open."""
        runs: list[tuple[int, int]] = []
        for moment in self.moments:
            if moment.doing is kind:
                end = min(moment.first + self.each, self.statements)
                if runs and runs[-1][1] == moment.first:
                    runs[-1] = runs[-1][0], end
                else:
                    runs.append((moment.first, end))
        return tuple(runs)


def kind_of(graph: Graph, node: int, computed: Container[int]) -> Kind:
    """The kind of a computation of ``node`` after those of ``computed``."""
    if node in computed:
        return Kind.RECOMPUTED
    phase = graph.nodes[node].phase
    return Kind.PLAIN if phase is None else Kind(phase.value)


def occupancy(graph: Graph, statements: Sequence[Statement], profile: Sequence[int], at_most: int = 2000) -> Occupancy:
    """The values in memory while ``statements`` run, in at most ``at_most`` moments.

    If there are more statements, a moment stands for several neighbours. It has the exact bytes of the one with the
    most memory in use, so no maximum is lost.

    ``profile`` is the memory in use at each statement, from the replay; it selects the statement for each moment.
    """
    each = max(1, -(-len(statements) // at_most))
    lived = lifetimes(graph, statements)
    begins, ends = {life.first: life for life in lived}, {life.end: life for life in lived}
    by_size: list[tuple[int, int, Kind]] = []
    used: dict[Kind, int] = {Kind.FIXED: graph.fixed_memory}
    computed: set[int] = set()
    nodes = _next_nodes(statements)
    moments = []
    doing = Kind.PLAIN
    for first in range(0, len(statements), each):
        group = range(first, min(first + each, len(statements)))
        top = max(group, key=profile.__getitem__)
        todo: set[Kind] = set()
        for at in group:
            statement = statements[at]
            if isinstance(node := nodes[at], int):
                todo.add(kind_of(graph, node, computed))
            if (life := begins.get(at)) is not None:
                size = graph.size[life.value]
                used[life.kind] = used.get(life.kind, 0) + size
                insort(by_size, (-size, life.value, life.kind))
            if (life := ends.get(at)) is not None:
                size = graph.size[life.value]
                used[life.kind] -= size
                del by_size[bisect_left(by_size, (-size, life.value, life.kind))]
            used[Kind.WORKSPACE] = 0
            if isinstance(statement, Compute):
                computed.add(statement.node)
                used[Kind.WORKSPACE] = graph.nodes[statement.node].workspace
            if at == top:
                largest = tuple((v, -size, kind is Kind.RECOMPUTED) for size, v, kind in by_size[:NAMED])
                seen, values = {kind: used[kind] for kind in Kind if used.get(kind)}, len(by_size)
        if todo:
            doing = Kind.RECOMPUTED if Kind.RECOMPUTED in todo else min(todo, key=list(Kind).index)
        moments.append(Moment(first, top, seen, largest, values, nodes[top], doing))
    return Occupancy(len(statements), each, tuple(moments))


def _next_nodes(statements: Sequence[Statement]) -> list[int | None]:
    """For every statement the node that is computed there, or next."""
    nodes: list[int | None] = []
    following: int | None = None
    for statement in reversed(statements):
        if isinstance(statement, Compute):
            following = statement.node
        nodes.append(following)
    return nodes[::-1]


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
    """The largest lifetimes, stacked in the order of allocation on the fixed memory, and the rest on top of them.

    They are exact at every statement.

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
    fetched = {statement.register for statement in statements if isinstance(statement, Prefetch)}
    for at, statement in enumerate(statements):
        match statement:
            case Allocate(register, value) if register not in begun:
                kind = Kind.FETCHED if register in fetched else kind_of(graph, graph.producer[value], computed)
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
