"""States the stage-cut MILP: what to keep across a few stages, the *cuts*, and what to recompute between them.

If a few stages need far more memory than the others, as the loss of a training step often does, what is kept across
them decides most of a schedule. The optimum is a bound on every schedule in document order; the proofs are in
``docs/mathematics.md``, "Bottleneck stages".

Let t_1 < ... < t_K be the cuts. Block k is the part of the schedule after the first computation of node t_k, up to and
including that of t_(k+1), or to the end. S[k,v] = value v, made before t_k, is resident while t_k is first computed and
is used after that; R[k,i] = node i < t_k is recomputed in block k. Minimise sum c_i R[k,i], subject to, for v of node
i < t_k,

    S[k,v] + R[k,i] >= 1             where a node of block k reads v, or v is a graph output and k = K;
    R[k,j] <= S[k,v] + R[k,i]        where node j < t_k reads v;
    S[k+1,v] <= S[k,v] + R[k,i];
    sum of the sizes of S[k,v] that t_k does not read <= room - what t_k reads and writes - its workspace.

The memory of recomputation in a block and that of all other stages is ignored, but for two refinements:

* **Inside a stage.** In a block that is one stage, between the cuts t - 1 and t, P[k,v] = 1 if value v is live through
  it: resident at both cuts, or at the first one and read by t, and not recomputed in between. While node i is
  recomputed in the block, all such values fit beside the working set of i. (Only in such a block may node t_k be
  computed again.)
* **At a recomputation.** Such a stage t may have one more cut (t, i): the last computation of node i < t in the stage,
  or, if there is none, right after the first computation of t - 1. It parts the stage into two blocks; in the second
  one i is not recomputed. At this cut the working set of i counts if i is recomputed in the first of the two.

**Spans.** The relaxation of these rows is weak where there are many blocks: half of a value, kept, lets half of another
be made again in one block and its other half in the next one. So the rows are stated for runs of blocks as well,
*spans*, as if the cuts inside a span were not there: Y[a,b,i] <= sum of R[k,i] for k in a..b, at most 1, stands for R
in the rows of the span, S[a,v] for S[k,v], and S[b+1,v] for S[k+1,v]. No integral solution is lost (proof in
``docs/mathematics.md``), and the relaxation is no longer below that of an earlier model with fewer cuts.

With one cut this is the choice that partitioners of training steps make, such as AOTAutograd's knapsack over the values
that the forward pass saves. With all stages as cuts it is the retention model without in-stage rows.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import pairwise

from remat_cli.control import Control
from remat_cli.graph.analysis import working_set
from remat_cli.graph.model import Graph
from remat_cli.milp.memory_scale import MemoryScale
from remat_cli.mip import Builder, Floats, LinearModel, Row, linear

_NEGLIGIBLE_COST = 1e-4
"""Share of C0 that a node costs at most whose value is derived. Untuned; in `resnet50` they cost .15% together."""

Span = tuple[int, int]
"""The first and the last of some consecutive blocks."""

Cut = tuple[int, int]
"""(t, t) for the first computation of node t; (t, i) for the last computation of node i < t in stage t, which needs the
cuts (t - 1, t - 1) and (t, t) too. There is one of the second kind in a stage at most."""


@dataclass(frozen=True, slots=True)
class CostToGo:
    """What some nodes are recomputed for at least after a first computation, less what each kept value spares.

    Attributes:
        first: The node that is first computed.
        nodes: The nodes whose recomputation counts.
        constant: The cost if nothing is kept, as a share of C0.
        spared: What each value that is kept spares at most.
    """

    first: int
    nodes: AbstractSet[int]
    constant: float
    spared: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class CutModel:
    """The model with all that is needed to decode its solutions.

    Attributes:
        builder: Columns and rows; they minimise the cost of recomputation, as a share of C0.
        graph: The graph.
        cuts: Cuts, ascending.
        room_bytes: The budget without fixed memory.
        memory: The form of sizes in the rows.
        seen: Nodes whose recomputation is seen inside a stage.
        kept: Column of S, by (k, value).
        recomputed: Column of R, by (k, node); nodes that may run only once have none, nor have those of
            derived values without S.
        recomputed_in: Column of Y, by (span, node), for spans of several blocks.
        live_through: Column of P, by (k, value), for blocks in one stage; None where it is 1.
        omitted: The (k, value) that have no S, because the value is derived.
        tail: Columns that pay for the tail, if its costs to go are stated: one for what the blocks do not see, and R.
    """

    builder: Builder
    graph: Graph
    cuts: tuple[Cut, ...]
    room_bytes: int
    memory: MemoryScale
    seen: AbstractSet[int]
    kept: dict[tuple[int, int], int] = field(default_factory=dict)
    recomputed: dict[tuple[int, int], int] = field(default_factory=dict)
    recomputed_in: dict[tuple[Span, int], int] = field(default_factory=dict)
    live_through: dict[tuple[int, int], int | None] = field(default_factory=dict)
    omitted: set[tuple[int, int]] = field(default_factory=set)
    tail: list[int] = field(default_factory=list)

    @property
    def model(self) -> LinearModel:
        """The arrays."""
        return self.builder.build()

    def frontier(self, k: int) -> int:
        """The last node whose first computation comes up to cut k."""
        t, i = self.cuts[k]
        return t if i == t else t - 1

    def block(self, k: int) -> range:
        """The nodes that are first computed in block k."""
        end = self.frontier(k + 1) + 1 if k + 1 < len(self.cuts) else len(self.graph.nodes)
        return range(self.frontier(k) + 1, end)

    def within_one_stage(self, k: int) -> bool:
        """Whether block k lies within one stage."""
        return k + 1 < len(self.cuts) and self.cuts[k + 1][0] == self.frontier(k) + 1

    def has_inside_rows(self, k: int) -> bool:
        """Whether block k lies within one stage and has rows for the recomputations inside it."""
        return self.within_one_stage(k) and (bool(self.seen) or self.cuts[k + 1][1] < self.cuts[k + 1][0])

    def recomputable(self, k: int) -> int:
        """The nodes before this one may be recomputed in block k."""
        t, i = self.cuts[k]
        return self.frontier(k) + 1 if i < t or self.within_one_stage(k) else t

    def again(self, span: Span, i: int) -> int | None:
        """Column that says whether node i is recomputed in a span; None if it cannot be."""
        return self.recomputed.get((span[0], i)) if span[0] == span[1] else self.recomputed_in.get((span, i))

    def sources(self, span: Span, v: int) -> list[tuple[float, int]] | None:
        """Terms of which one must be 1 for v to be resident in a span; None if v is made after the cut before it.

        A derived value without S is there if the value that it is made of is.
        """
        kept, again = self.column(span[0], v), self.again(span, self.graph.producer[self.representative(span[0], v)])
        if kept is None:
            return None
        return [(1.0, kept)] if again is None else [(1.0, kept), (1.0, again)]

    def representative(self, k: int, v: int) -> int:
        """Value v, or the one that it is derived from and that stands for it at cut k."""
        while (k, v) in self.omitted:
            (v,) = self.graph.nodes[self.graph.producer[v]].inputs
        return v

    def column(self, k: int, v: int) -> int | None:
        """Column of S for value v at cut k, or for the one that stands for it; None if v is made after it."""
        return self.kept.get((k, self.representative(k, v)))

    def paid_to_go(self, values: Floats) -> float:
        """What a solution ``values: float64[columns]`` pays for the tail; 0 if no costs to go are stated."""
        return math.fsum(self.builder.cost[column] * values[column] for column in self.tail)

    def working_set(self, i: int) -> float:
        """Working set of node i in the unit of the rows."""
        values = {*self.graph.nodes[i].inputs, *self.graph.values_of(i)}
        return sum(self.size(v) for v in values) + self.memory.down(self.graph.nodes[i].workspace)

    def size(self, v: int) -> float:
        """Size of value v in that unit."""
        return self.memory.down(self.graph.size[v])

    @property
    def room(self) -> float:
        """The room in that unit."""
        return self.memory.down(self.room_bytes)

    def computes(self, values: Floats) -> tuple[int, ...]:
        """The schedule of a solution ``values: float64[columns]``.

        A node is recomputed right before its first reader, and its values stay to the next cut if they are kept there.
        """
        graph = self.graph
        kept: list[set[int]] = [set() for _ in range(len(self.cuts) + 1)]
        for (k, v), column in self.kept.items():
            if values[column] > 0.5 or not graph.nodes[graph.producer[v]].recompute:
                kept[k].add(v)
        first = self.frontier(0)
        computes = list(range(first + 1))
        there = set(range(graph.first_value[first + 1]))
        for k in range(len(self.cuts)):
            there = {v for v in there if v in kept[k] or not ((k, v) in self.kept or (k, v) in self.omitted)}
            block = self.block(k)
            if not block and k + 1 < len(self.cuts):
                computes += self._up_to(k, values, kept[k + 1], there)
            for j in block:
                # What is kept across the next cut must exist by then.
                last = k + 1 < len(self.cuts) and j == block[-1]
                required = kept[k + 1].difference(graph.values_of(j)) if last else ()
                computes += self._made_for([*graph.nodes[j].inputs, *sorted(required)], there)
                computes.append(j)
                there.update(graph.values_of(j))
        computes += self._made_for(graph.outputs, there)
        return tuple(computes)

    def _up_to(self, k: int, values: Floats, found: set[int], there: set[int]) -> list[int]:
        """The recomputations of block k, which ends with one: that comes last, unless another one reads it."""
        i = self.cuts[k + 1][1]
        column = self.recomputed.get((k, i))
        if column is None or values[column] <= 0.5:
            return self._made_for(sorted(found), there)
        steps = self._made_for([*sorted(found), *self.graph.values_of(i)], there)
        inputs = {self.graph.producer[v] for j in steps for v in self.graph.nodes[j].inputs}
        if i in steps and i not in inputs:
            steps.remove(i)
            steps.append(i)
        return steps

    def _made_for(self, wanted: Sequence[int], there: set[int]) -> list[int]:
        """The nodes to recompute for the values ``wanted``, in order; their values are added to ``there``."""
        graph, todo = self.graph, list(wanted)
        chosen: set[int] = set()
        while todo:
            v = todo.pop()
            if v not in there and graph.producer[v] not in chosen:
                chosen.add(graph.producer[v])
                todo.extend(graph.nodes[graph.producer[v]].inputs)
        there.update(v for i in chosen for v in graph.values_of(i))
        return sorted(chosen)


def derived_values(graph: Graph, most: float = _NEGLIGIBLE_COST) -> frozenset[int]:
    """The values that one node makes from one value that is no larger, for at most this share of C0."""
    found: set[int] = set()
    for i, node in enumerate(graph.nodes):
        made, read = graph.values_of(i), set(node.inputs)
        if node.recompute and len(made) == len(read) == 1 and node.cost <= most * graph.total_cost:
            found.update(v for v in made for u in read if graph.size[u] <= graph.size[v])
    return frozenset(found)


def build(
    graph: Graph,
    cuts: Sequence[Cut],
    room_bytes: int,
    control: Control,
    *,
    seen: AbstractSet[int] | None = None,
    derived: AbstractSet[int] = frozenset(),
    rounds: Sequence[int] = (),
    to_go: Sequence[CostToGo] = (),
) -> CutModel:
    """State the model.

    Args:
        graph: The graph.
        cuts: Cuts, ascending, at least one; the first is the first computation of a node. Each has a working set within
            the room.
        room_bytes: The budget without fixed memory.
        control: Checked while building.
        seen: Nodes whose recomputation is seen inside a stage; None for all. With fewer the model is smaller, and
            its bound may be lower.
        derived: Derived values; their nodes cost nothing in the model, so its bound may be lower. With them it is
            smaller.
        rounds: For every cut the round in which it was added, for rows for spans, which make the model several times
            as large; empty for none.
        to_go: Costs to go, all after the first computation of the same node, which is a cut.

    Raises:
        LimitReached, Interrupted: If the control stops meanwhile.
    """
    scale = graph.total_cost or 1.0
    builder = Builder()
    nodes = frozenset(range(len(graph.nodes))) if seen is None else seen
    stated = CutModel(builder, graph, tuple(cuts), room_bytes, MemoryScale.of(graph, room_bytes), nodes)
    stated.omitted.update(_omitted(stated, derived))
    steps = [
        (k, i)
        for k, (t, last) in enumerate(cuts)
        for i in range(stated.recomputable(k))
        if graph.nodes[i].recompute and not i == last < t and (k, graph.first_value[i]) not in stated.omitted
    ]
    free = {graph.producer[v] for v in derived}
    costs = [0.0 if i in free else graph.nodes[i].cost / scale for _, i in steps]
    stated.recomputed.update(zip(steps, builder.binaries(costs), strict=True))
    pairs = ((k, v) for k in range(len(cuts)) for v in range(graph.first_value[stated.recomputable(k)]))
    places = [place for place in pairs if place not in stated.omitted]
    stated.kept.update(zip(places, builder.binaries([0.0] * len(places)), strict=True))
    builder.rows.extend(control.watched(_rows(stated, rounds)))
    builder.rows.extend(_to_go(stated, to_go))
    return stated


def _to_go(stated: CutModel, to_go: Sequence[CostToGo]) -> Iterator[Row]:
    """A column for what is recomputed in the tail more often than the blocks of the model see, and its rows."""
    for one in to_go:
        first = stated.cuts.index((one.first, one.first))
        if not stated.tail:
            stated.tail.extend(stated.builder.amounts([1.0]))
            again = stated.recomputed.items()
            stated.tail.extend(column for (k, i), column in again if k >= first and i in one.nodes)
        paid = [(stated.builder.cost[column], column) for column in stated.tail]
        spared: dict[int, float] = {}
        for v, cost in one.spared.items():
            if (column := stated.column(first, v)) is not None:
                spared[column] = spared.get(column, 0.0) + cost
        yield linear(one.constant, [*paid, *((cost, column) for column, cost in spared.items())], math.inf)


def _omitted(stated: CutModel, derived: AbstractSet[int]) -> Iterator[tuple[int, int]]:
    """The (k, value) for which no S is needed."""
    graph, left = stated.graph, set(derived)
    for k, (_, i) in enumerate(stated.cuts):
        if stated.has_inside_rows(k):
            return
        left -= {*graph.nodes[i].inputs, *graph.values_of(i)}
        yield from ((k, v) for v in left if v < graph.first_value[stated.recomputable(k)])


def _rows(stated: CutModel, rounds: Sequence[int]) -> Iterator[Row]:
    for k in range(len(stated.cuts)):
        yield from _span(stated, (k, k))
    yield from _room(stated)
    for k in range(len(stated.cuts)):
        if stated.has_inside_rows(k):
            yield from _live_through(stated, k)
            yield from _inside(stated, k)
    for span, parts in spans(rounds).items():
        yield from _joined(stated, span, parts)
        yield from _span(stated, span)


def spans(rounds: Sequence[int]) -> dict[Span, tuple[Span, ...]]:
    """The blocks of the models of earlier rounds, and all pairs of neighbours among them, with the parts of each.

    So the relaxation is at least that of every earlier model.

    Args:
        rounds: For every cut the round in which it was added.
    """
    found: dict[Span, tuple[Span, ...]] = {}
    finer = [(k, k) for k in range(len(rounds))]
    for last in sorted({*rounds}, reverse=True):
        starts = [k for k, added in enumerate(rounds) if added <= last]
        blocks = [(k, end - 1) for k, end in pairwise([*starts, len(rounds)])]
        for span in blocks:
            parts = tuple(part for part in finer if span[0] <= part[0] and part[1] <= span[1])
            if len(parts) > 1:
                found.setdefault(span, parts)
        for first, second in pairwise(blocks):
            found.setdefault((first[0], second[1]), (first, second))
        finer = blocks
    return found


def _joined(stated: CutModel, span: Span, parts: Sequence[Span]) -> Iterator[Row]:
    """Columns of Y, and their rows: what is recomputed in a span is so in one of its parts."""
    for i in range(stated.recomputable(span[0])):
        if (span[0], stated.graph.first_value[i]) in stated.omitted:
            continue
        of = [column for part in parts if (column := stated.again(part, i)) is not None]
        if of:
            (column,) = stated.builder.amounts([0.0])
            stated.builder.upper[column] = 1.0
            stated.recomputed_in[span, i] = column
            yield linear(-math.inf, [(1.0, column), *((-1.0, one) for one in of)], 0.0)


def _span(stated: CutModel, span: Span) -> Iterator[Row]:
    """Rows for what is read in a span: by first computations, as a graph output, by recomputations, and after it."""
    graph, (first, last) = stated.graph, span
    read = {v for k in range(first, last + 1) for j in stated.block(k) for v in graph.nodes[j].inputs}
    if last == len(stated.cuts) - 1:
        read.update(graph.outputs)
    end = stated.recomputable(first)
    sources = {v: stated.sources(span, v) for v in range(graph.first_value[end])}
    for v in sorted(read):
        if (terms := sources.get(v)) is not None:
            yield linear(1.0, terms, math.inf)
    for j in range(end):
        if (column := stated.again(span, j)) is not None:
            for v in graph.nodes[j].inputs:
                if (terms := sources[v]) is not None:
                    yield linear(0.0, [*terms, (-1.0, column)], math.inf)
    for v, terms in sources.items():
        if terms is not None and (kept := stated.kept.get((last + 1, v))) is not None:
            yield linear(0.0, [*terms, (-1.0, kept)], math.inf)


def _room(stated: CutModel) -> Iterator[Row]:
    """Memory rows at the cuts."""
    graph = stated.graph
    for k, (t, i) in enumerate(stated.cuts):
        own = {*graph.nodes[i].inputs, *graph.values_of(i)}
        others = [v for v in range(graph.first_value[t]) if v not in own and (k, v) in stated.kept and graph.size[v]]
        terms = [(stated.size(v), stated.kept[k, v]) for v in others]
        if i == t:
            yield linear(-math.inf, terms, stated.memory.down(stated.room_bytes - working_set(graph, t)))
        elif (again := stated.recomputed.get((k - 1, i))) is not None:
            yield linear(-math.inf, [*terms, (stated.working_set(i), again)], stated.room)


def _live_through(stated: CutModel, k: int) -> Iterator[Row]:
    """Columns of P in block k, which lies within one stage, and their rows."""
    graph, (t, i) = stated.graph, stated.cuts[k + 1]
    inputs = graph.nodes[t].inputs if i == t else ()
    for v in range(graph.first_value[t]):
        if not graph.size[v]:
            continue
        before, after, again = stated.kept[k, v], stated.kept[k + 1, v], stated.recomputed.get((k, graph.producer[v]))
        read = v in inputs
        if again is None:
            stated.live_through[k, v] = None if read else after
            continue
        (live,) = stated.builder.binaries([0.0])
        stated.live_through[k, v] = live
        yield linear(-math.inf, [(1.0, live), (-1.0, before)], 0.0)
        yield linear(1.0 if read else -math.inf, [(1.0, live), (1.0, again)], 1.0)
        if not read:
            yield linear(0.0, [(1.0, live), (1.0, again), (-1.0, after)], math.inf)
            yield linear(-math.inf, [(1.0, live), (-1.0, after)], 0.0)


def _inside(stated: CutModel, k: int) -> Iterator[Row]:
    """Memory rows for the recomputations in block k, which lies within one stage."""
    graph, (t, last) = stated.graph, stated.cuts[k + 1]
    inputs = graph.nodes[t].inputs if last == t else ()
    for i in range(t):
        again = stated.recomputed.get((k, i))
        if again is None or i not in stated.seen:
            continue
        own = {*graph.nodes[i].inputs, *graph.values_of(i)}
        room, read = stated.room - stated.working_set(i), 0.0
        most = stated.room - stated.working_set(t) if last == t else stated.room
        terms: list[tuple[float, int]] = []
        for v in range(graph.first_value[t]):
            if v in own or (k, v) not in stated.live_through:
                continue
            column, size = stated.live_through[k, v], stated.size(v)
            if column is None:
                room -= size
                continue
            terms.append((size, column))
            read += size if v in inputs else 0.0
        if room < 0:
            yield linear(-math.inf, [(1.0, again)], 0.0)
            continue
        # Even if i is not recomputed, what is live through the stage and not read by t fits beside t.
        most = min(math.fsum(size for size, _ in terms), read + most)
        if most > room:
            yield linear(-math.inf, [*terms, (most - room, again)], most)
            for size, column in terms:
                if size > room:
                    yield linear(-math.inf, [(1.0, column), (1.0, again)], 1.0)


def missing_cuts(cuts: Sequence[Cut], t: int, i: int) -> list[Cut]:
    """The cuts that show the model a computation of node i in stage t, except those that are in ``cuts``.

    For t = i it is the first computation of the node.

    Returns:
        None are left if the model sees it already, or if the stage has a cut at another recomputation.
    """
    if i == t:
        wanted = [(t, t)]
    else:
        wanted = [(s, s) for s in (t - 1, t) if s >= 0]
        if all(cut in cuts for cut in wanted) and not any(s == t and k < t for s, k in cuts):
            wanted = [(t, i)]
    return [cut for cut in wanted if cut not in cuts]
