"""States the retention MILP: the optimal frontier-advancing schedule with neither FREE nor U.

R[t,i] = node i is recomputed in stage t (its first computation, in stage i, is a constant); S[t,v] = value v is kept
from stage t-1 into stage t. While node t runs in stage t, the resident values are those that t reads, those that it
writes, and those kept into stage t+1. So one row per stage over S alone is exact there (the *frontier rows*). The
memory while a node k < t is recomputed in stage t takes another row (``milp/in_stage_rows``). These are stated only for
steps that a solution violates, because there are n^2 of them and few ever bind.

The model is stated over a *support*: the stages in which each node may be recomputed. Between two consecutive stages in
which a value can be made or read, S does not change, so there is one variable for each such gap.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice

from remat_cli.control import Control
from remat_cli.graph.model import Graph, closed
from remat_cli.milp.memory_scale import MemoryScale
from remat_cli.milp.support import Support, full_support, support_within, widened
from remat_cli.mip import Block, Builder, LinearModel, Names, Row, linear
from remat_cli.tolerances import SUM_ROUNDING

_DENSE_MOST = 400_000
"""Most terms of frontier rows that sum what is kept; beyond, they use a running sum over the stages. Untuned."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """The stages in which one value can be made or read; between two of them S is one variable.

    Attributes:
        events: Stages, ascending: the first computation, and every stage in which it may be recomputed or read.
        kept: One variable per gap, by number: ``kept[k]`` is S[t,v] for ``events[k] < t <= events[k + 1]``.
    """

    events: tuple[int, ...]
    kept: tuple[int, ...]

    def into(self, stage: int) -> int | None:
        """S[stage, v]: whether the value is kept into ``stage``; None if no reader can need it there."""
        k = bisect_left(self.events, stage) - 1
        return self.kept[k] if 0 <= k < len(self.kept) else None


@dataclass(slots=True)
class RetentionModel:
    """The model under construction, with all that is needed to decode its solutions; variables are columns.

    Attributes:
        builder: Columns and rows; minimises cost / ``cost_scale``.
        graph: The graph, with its closing node if it needs one.
        support: The stages in which nodes may be recomputed.
        budget_bytes: Fixed memory included.
        memory: The form of sizes in the rows.
        cost_scale: The objective is stated in this unit.
        R: Variable of (stage, node), first computations left out.
        gaps: One per value.
        stated_steps: (stage, node) of the in-stage rows so far.
        running: For every stage the variable of the memory kept past it, in units of ``memory``, and the terms by which
            it differs from the stage before; empty if the frontier rows sum directly.
        frontier: The frontier rows.
        columns: Number of columns, including those of in-stage rows.
    """

    builder: Builder
    graph: Graph
    support: Support
    budget_bytes: int
    memory: MemoryScale
    cost_scale: float
    R: dict[tuple[int, int], int] = field(default_factory=dict)
    gaps: list[Gaps] = field(default_factory=list)
    stated_steps: set[tuple[int, int]] = field(default_factory=set)
    running: list[tuple[int, list[tuple[float, int]]]] = field(default_factory=list)
    frontier: range = range(0)
    columns: int = 0

    def model(self) -> LinearModel:
        """The arrays, without in-stage rows."""
        model = self.builder.build()
        return replace(model, column_names=self.names(model.columns))

    def names(self, columns: int) -> Sequence[str]:
        """The names of the first ``columns``, such as ``R[3,2]``, as they stand in model files."""

        @cache  # names are rarely asked for, and take long to make
        def known() -> list[str]:
            kept = (f"S[{e},{v}]" for v, gaps in enumerate(self.gaps) for e in gaps.events[1:])
            return [*(f"R[{t},{i}]" for t, i in self.R), *kept, *(f"M[{t}]" for t in range(len(self.running)))]

        return Names(range(columns), lambda k: known()[k] if k < len(known()) else f"w[{k}]")

    def computed(self, stage: int, node: int) -> int | None:
        """R[stage, node] as a variable; None for a first computation, or outside the support."""
        return self.R.get((stage, node))

    def kept(self, stage: int, value: int) -> int | None:
        """S[stage, value] as a variable; None if it is 0."""
        return self.gaps[value].into(stage)

    def choices(self) -> list[tuple[tuple[int, int], int | None]]:
        """Every (stage, node) that a solution may compute, with its variable; None for first computations."""
        return [*(((i, i), None) for i in range(len(self.graph.nodes))), *self.R.items()]

    def block(self, added: int, rows: Iterable[Row]) -> Block:
        """``rows`` to append, over the columns so far and ``added`` new ones."""
        self.columns += added
        return Block(self.columns - added, added, tuple(rows))

    @property
    def room(self) -> float:
        """Budget without fixed memory, in units of ``memory``."""
        return self.memory.down(self.budget_bytes - self.graph.fixed_memory)

    @property
    def size(self) -> list[float]:
        """Size of every value, in units of ``memory``."""
        return [self.memory.down(size) for size in self.graph.size]


def build(
    graph: Graph,
    budget_bytes: int,
    support_depth: float | None,
    control: Control,
    *,
    cost_scale: float | None = None,
    also: Iterable[tuple[int, int]] = (),
    support: Support | None = None,
) -> RetentionModel:
    """State the model with all frontier rows and no in-stage row.

    Args:
        graph: The graph.
        budget_bytes: Fixed memory included.
        support_depth: For :func:`support_within`; None for :func:`full_support`.
        control: Checked while building.
        cost_scale: Unit of the objective; None for C0.
        also: Further (stage, node) at which a node may be recomputed.
        support: Support to use instead, for the graph with its closing node.

    Raises:
        LimitReached, Interrupted: If the control stops meanwhile.
    """
    graph = closed(graph)
    if support is None:
        support = full_support(graph) if support_depth is None else support_within(graph, support_depth)
    support = widened(graph, support, also)
    stated = RetentionModel(
        builder=Builder(offset=graph.total_cost / (cost_scale or graph.total_cost or 1.0)),
        graph=graph,
        support=support,
        budget_bytes=budget_bytes,
        memory=MemoryScale.of(graph, budget_bytes - graph.fixed_memory),
        cost_scale=cost_scale or graph.total_cost or 1.0,
    )
    _variables(stated)
    _run_memory(stated)
    stated.columns = len(stated.builder.cost)
    rows = stated.builder.rows
    for stating in (_dependencies, _retention, _memory):
        rows.extend(control.watched(stating(stated)))
    first = len(rows)
    rows.extend(control.watched(_frontier(stated)))
    stated.frontier = range(first, len(rows))
    return stated


def _variables(stated: RetentionModel) -> None:
    graph, support, builder = stated.graph, stated.support, stated.builder
    pairs = [(t, i) for i, stages in enumerate(support) for t in stages]
    columns = builder.binaries(graph.nodes[i].cost / stated.cost_scale for _, i in pairs)
    stated.R = dict(zip(pairs, columns, strict=True))
    events = [_events(graph, support, v) for v in range(len(graph.size))]
    kept = iter(builder.binaries([0.0] * sum(len(stages) - 1 for stages in events)))
    stated.gaps = [Gaps(stages, tuple(islice(kept, len(stages) - 1))) for stages in events]


def _events(graph: Graph, support: Support, value: int) -> tuple[int, ...]:
    """Stages in which ``value`` can be made or read, up to the last in which it can be read."""
    read: set[int] = set()
    for j in graph.readers[value]:
        read.add(j)
        read.update(support[j])
    last = max(read, default=-1)
    maker = graph.producer[value]
    return tuple(sorted({maker, *read, *(t for t in support[maker] if t < last)}))


def _dependencies(stated: RetentionModel) -> Iterator[Row]:
    """R[t,j] <= R[t,i] + S[t,v] for every value v of node i that j reads; R[j,j] = 1."""
    graph, R = stated.graph, stated.R
    for j, node in enumerate(graph.nodes):
        for v in node.inputs:
            i = graph.producer[v]
            into = stated.gaps[v].into
            for t in (j, *stated.support[j]):
                sources = [var for var in (R.get((t, i)), into(t)) if var is not None]
                signs = [-1.0] * len(sources)
                if t == j:
                    yield Row(sources, signs, -math.inf, -1.0)
                else:
                    yield Row([R[t, j], *sources], [1.0, *signs], -math.inf, 0.0)


def _retention(stated: RetentionModel) -> Iterator[Row]:
    """S[t+1,v] <= S[t,v] + R[t,i] for every value v of node i, at the stages t in which v can be made or read."""
    for v, gaps in enumerate(stated.gaps):
        maker = stated.graph.producer[v]
        for k in range(1, len(gaps.kept)):
            again = stated.R.get((gaps.events[k], maker))
            before = [gaps.kept[k - 1]] if again is None else [gaps.kept[k - 1], again]
            yield Row([gaps.kept[k], *before], [1.0, *[-1.0] * len(before)], -math.inf, 0.0)


def _frontier(stated: RetentionModel) -> Iterator[Row]:
    """Inputs, outputs and workspace of t, and all other values kept into stage t+1, fit the budget."""
    graph = stated.graph
    waiting = _waiting_by_running_sum(stated) if stated.running else _waiting_directly(stated)
    for t, (terms, most) in enumerate(waiting):
        node = graph.nodes[t]
        own = sum(graph.size[v] for v in node.inputs) + sum(node.outputs) + node.workspace
        room = stated.room - stated.memory.down(own)
        if most > room:  # else the row holds for every solution
            yield linear(-math.inf, terms, room)


def _waiting_directly(stated: RetentionModel) -> Iterator[tuple[list[tuple[float, int]], float]]:
    """For every stage t the sum of values kept into stage t+1 and neither read nor written by t, and its maximum."""
    graph, sizes = stated.graph, stated.size
    kept: list[list[tuple[float, int]]] = [[] for _ in graph.nodes]
    for v, gaps in enumerate(stated.gaps):
        size = sizes[v]
        if size == 0:
            continue
        readers = set(graph.readers[v])
        for k, var in enumerate(gaps.kept):
            for t in range(gaps.events[k], gaps.events[k + 1]):
                if t not in readers and t != graph.producer[v]:
                    kept[t].append((size, var))
    for terms in kept:
        yield terms, math.fsum(size for size, _ in terms)


def _waiting_by_running_sum(stated: RetentionModel) -> Iterator[tuple[list[tuple[float, int]], float]]:
    """The same by the running sum: all values kept past t minus those that t reads and writes; few terms per stage."""
    graph, size = stated.graph, stated.size
    most = [0.0] * (len(graph.nodes) + 1)
    for v, gaps in enumerate(stated.gaps):
        if gaps.kept:
            most[gaps.events[0]] += size[v]
            most[gaps.events[-1]] -= size[v]
    level = 0.0
    for t, (var, _) in enumerate(stated.running):
        own = [v for v in {*graph.nodes[t].inputs, *graph.values_of(t)} if size[v]]
        terms = [(-size[v], kept) for v in sorted(own) if (kept := stated.kept(t + 1, v)) is not None]
        level += most[t]
        # Rounded up, because a rounding error must not drop a row that is needed.
        yield [(1.0, var), *terms], level + math.fsum(c for c, _ in terms) + SUM_ROUNDING * (1.0 + level)


def _memory(stated: RetentionModel) -> Iterator[Row]:
    """Kept past t = kept past t-1 + the changes at t."""
    before = None
    for var, changes in stated.running:
        terms = [(1.0, var), *((-c, x) for c, x in changes)]
        yield linear(0.0, terms if before is None else [*terms, (-1.0, before)], 0.0)
        before = var


def _run_memory(stated: RetentionModel) -> None:
    """Give every stage a variable for the memory kept past it, if the frontier rows would be too long otherwise."""
    graph = stated.graph
    if sum(gaps.events[-1] - gaps.events[0] for gaps in stated.gaps) <= _DENSE_MOST:
        return
    stated.running.extend((column, []) for column in stated.builder.amounts([0.0] * len(graph.nodes)))
    for size, gaps in zip(stated.size, stated.gaps, strict=True):
        for k, var in enumerate(gaps.kept if size else ()):
            stated.running[gaps.events[k]][1].append((size, var))
            stated.running[gaps.events[k + 1]][1].append((-size, var))
