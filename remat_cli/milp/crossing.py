"""States the crossing MILP: keep, recompute, or copy to the host and back, with the time that copies take.

Some stages are *cuts*: k_1 < ... < k_m. A stage is the part of a plan that ends with the first computation of a node;
block b is the stages after k_b up to k_(b+1). At each cut the values that cross it are kept or absent; in each block
values may be computed again or come back from the host. Written for every plan whose first computations are in document
order, with any copies:

* S[b,v]: v is on the device while k_b runs. These values and what k_b itself needs fit the budget.
* R[b,i]: node i is computed again in block b. P[b,v]: v comes back in block b.
* S[b+1,v] <= S[b,v] + R[b,i] + P[b,v] for v of node i made by k_b; the same sum is at least 1 for what the first
  computations of block b read, and at least R[b,j] for what node j reads.
* D[b], the time that block b takes, is at least the cost of its computations. The time of the plan is their sum, and
  what the copies after the last computation take.

A relaxation would compute half of a node again in one block and half in another, each with half of its inputs. So for
every cut k_b but the last, E[b,i] <= 1 says that i is computed again after it, in any block, and Q[b,v] <= 1 that v
comes back after it. E[b,i] is at most the sum of R[c,i] over the blocks from b on, Q likewise. S[b,v] + E[b,i] + Q[b,v]
is at least 1 for all that is read after k_b and made before, and at least E[b,j] for what node j reads.

With every stage a cut and without copies these are the rows of the retention MILP, over all stages, without in-stage
rows. Copies add *windows*. Let r be the first node after k_b, in document order, that reads v. If v is absent at k_b,
and its node is not computed again until r, then it comes back after k_b and before r, and its copy out has ended before
k_b. The latter holds as well for what only recomputations read, if it comes back and is not computed again first.
Copies in one direction run one after another, so

* those that come back after k_b for readers up to node j fit between the end of k_b and the start of j;
* those copied out of nodes from i on, and absent at k_b, fit between the end of i and the start of k_b.

With unlimited bandwidth nothing but the memory rows is left: a value can always leave and come back, so a plan without
recomputation exists as soon as every node's own working set fits.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from remat_cli.graph.model import Graph, closed
from remat_cli.mip import Builder, Floats, LinearModel, Row
from remat_cli.plan.host import Host

_VIOLATED = 1e-6
"""Rows violated by less than this share of C0 are not added. Untuned."""
_LONGEST = 1e6
"""A longer copy, in multiples of C0, counts as this long: solvers refuse very large coefficients. Untuned."""


@dataclass(slots=True)
class Crossing:
    """The model under construction, and its variables by what they mean.

    Attributes:
        graph: The graph with its closing node, if it needs one.
        cuts: Nodes, ascending.
        room_bytes: The budget without fixed memory.
        out_time: Time of a copy out of each value, as a share of C0; infinite if it may not be copied.
        in_time: Time of a copy back.
        host_bytes: Host memory; None for no limit.
        builder: Columns and rows.
        kept: Column of S[b,v]; None where it is 1.
        again: Column of R[b,i].
        back: Column of P[b,v].
        absent: Column of "absent at cut b, and back before its next reader", by (b, v).
        returns: Column of the copy back of a stretch, if it comes after cut b, by (b, v).
        sent: Column of "copied out before cut b", by (b, v); cut m + 1 is the end.
        waits: Column of the time in each block beyond its computations; the last is that after all computations.
        computing: Cost of the first computations of each block.
        before: For every node the cost of the first computations of its block up to and with it.
    """

    graph: Graph
    cuts: tuple[int, ...]
    room_bytes: int
    out_time: tuple[float, ...]
    in_time: tuple[float, ...]
    host_bytes: int | None
    builder: Builder = field(default_factory=Builder)
    kept: dict[tuple[int, int], int | None] = field(default_factory=dict)
    again: dict[tuple[int, int], int] = field(default_factory=dict)
    back: dict[tuple[int, int], int] = field(default_factory=dict)
    absent: dict[tuple[int, int], int] = field(default_factory=dict)
    returns: dict[tuple[int, int], int] = field(default_factory=dict)
    sent: dict[tuple[int, int], int] = field(default_factory=dict)
    waits: range = range(0)
    computing: list[float] = field(default_factory=list)
    before: list[float] = field(default_factory=list)

    def model(self) -> LinearModel:
        """The model; its objective is the time beyond C0, as a share of C0."""
        return self.builder.build()

    def block(self, node: int) -> int:
        """The block in which ``node`` is computed first; blocks count from 0."""
        return bisect_left(self.cuts, node)

    def next_reader(self, b: int, v: int) -> int | None:
        """The first node after cut b that reads v."""
        readers = self.graph.readers[v]
        place = bisect_left(readers, self.cuts[b - 1] + 1)
        return readers[place] if place < len(readers) else None

    def duration(self, first: int, last: int, *, tail: bool = False) -> tuple[list[tuple[float, int]], float]:
        """The time of blocks ``first`` to ``last`` as terms and a constant, as a share of C0.

        Args:
            first: The first block.
            last: The last block.
            tail: Whether the time after the last computation counts too.
        """
        scale = self.graph.total_cost or 1.0
        terms = [(self.graph.nodes[i].cost / scale, x) for (b, i), x in self.again.items() if first <= b <= last]
        terms += [(1.0, self.waits[b]) for b in range(first, last + 1)]
        if tail:
            terms.append((1.0, self.waits[-1]))
        return terms, math.fsum(self.computing[first : last + 1])

    def within(self, copies: Sequence[tuple[float, int]], first: int, last: int, less: float, *, tail: bool) -> Row:
        """The row that ``copies`` take no more time than blocks ``first`` to ``last`` less ``less``."""
        terms, constant = self.duration(first, last, tail=tail)
        columns = [x for _, x in copies] + [x for _, x in terms]
        coefficients = [c for c, _ in copies] + [-c for c, _ in terms]
        return Row(columns, coefficients, -math.inf, constant - less)


def build(graph: Graph, budget_bytes: int, host: Host | None, cuts: Sequence[int] | None = None) -> Crossing:
    """State the model with the windows between cuts; the others are for :func:`windows`.

    Args:
        graph: The graph; with a host, its costs are times.
        budget_bytes: Fixed memory included; every node's own working set fits.
        host: Bandwidths, latency and memory; None for no copies.
        cuts: Nodes, ascending; None for all but the last.
    """
    whole = closed(graph)
    if cuts is None:
        cuts = range(len(whole.nodes) - 1)
    scale = graph.total_cost or 1.0
    out, back = ((), ()) if host is None else host.times(graph.size, graph.cost_unit)
    allowed = [host is not None and graph.may_offload(v) for v in range(len(graph.size))]
    stated = Crossing(
        graph=whole,
        cuts=tuple(cuts),
        room_bytes=budget_bytes - graph.fixed_memory,
        out_time=tuple(min(_LONGEST, out[v] / scale) if may else math.inf for v, may in enumerate(allowed)),
        in_time=tuple(min(_LONGEST, back[v] / scale) if may else math.inf for v, may in enumerate(allowed)),
        host_bytes=None if host is None else host.memory_bytes,
    )
    _blocks(stated)
    for b in range(1, len(stated.cuts) + 1):
        _columns(stated, b)
    rows = stated.builder.rows
    rows.extend(_memory(stated))
    rows.extend(_sources(stated))
    rows.extend(_suffixes(stated))
    rows.extend(_copies(stated))
    rows.extend(_first_windows(stated))
    return stated


def _blocks(stated: Crossing) -> None:
    graph, blocks = stated.graph, len(stated.cuts) + 1
    scale = graph.total_cost or 1.0
    computing: list[list[float]] = [[] for _ in range(blocks)]
    for i, node in enumerate(graph.nodes):
        costs = computing[stated.block(i)]
        costs.append(node.cost / scale)
        stated.before.append(math.fsum(costs))
    stated.computing = [math.fsum(costs) for costs in computing]
    stated.waits = stated.builder.amounts([1.0] * (blocks + 1))


def _columns(stated: Crossing, b: int) -> None:
    """The columns of cut b, for values that can be read after it."""
    graph, cut = stated.graph, stated.cuts[b - 1]
    own = {*graph.nodes[cut].inputs, *graph.values_of(cut)}
    scale = graph.total_cost or 1.0
    useful = [False] * len(graph.size)
    for i in range(cut, -1, -1):
        for v in graph.values_of(i):
            useful[v] = any(
                j > cut or (graph.nodes[j].recompute and any(useful[u] for u in graph.values_of(j)))
                for j in graph.readers[v]
            )
    builder = stated.builder
    for i in range(cut + 1):
        wanted = [v for v in graph.values_of(i) if useful[v]]
        if wanted and graph.nodes[i].recompute:
            [stated.again[b, i]] = builder.binaries([graph.nodes[i].cost / scale])
        for v in wanted:
            if v in own or graph.size[v] == 0:
                stated.kept[b, v] = None
                continue
            [stated.kept[b, v]] = builder.binaries([0.0])
            if math.isfinite(stated.in_time[v]):
                [stated.back[b, v]] = builder.binaries([0.0])
                if stated.next_reader(b, v) is not None:
                    [stated.absent[b, v]] = builder.amounts([0.0])
    # What is not copied at cut b may be so at a later one, and what has left once need not leave again.
    for v in {v for c, v in stated.back if c <= b} | {v for c, v in stated.sent if c == b - 1}:
        [stated.sent[b, v]] = builder.amounts([0.0])
    if b == len(stated.cuts):
        for v in {v for _, v in stated.back}:
            [stated.sent[b + 1, v]] = builder.amounts([0.0])


def _source(stated: Crossing, b: int, v: int) -> list[tuple[float, int]] | None:
    """S[b,v] + R[b,i] + P[b,v] as terms; None if it is at least 1 anyway."""
    kept = stated.kept.get((b, v), -1)
    if kept is None:
        return None
    columns = (kept, stated.again.get((b, stated.graph.producer[v]), -1), stated.back.get((b, v), -1))
    return [(1.0, x) for x in columns if x >= 0]


def _memory(stated: Crossing) -> Iterator[Row]:
    """What a cut reads and writes, and what is kept past it, fits the room; what is absent fits the host."""
    graph, room = stated.graph, max(1, stated.room_bytes)
    by_cut: dict[int, list[tuple[float, int]]] = {}
    for (b, v), x in stated.kept.items():
        if x is not None:
            by_cut.setdefault(b, []).append((graph.size[v] / room, x))
    for b, terms in by_cut.items():
        node = graph.nodes[stated.cuts[b - 1]]
        own = sum(graph.size[v] for v in node.inputs) + sum(node.outputs) + node.workspace
        free = (stated.room_bytes - own) / room
        if math.fsum(c for c, _ in terms) > free:
            yield Row([x for _, x in terms], [c for c, _ in terms], -math.inf, free)
    if stated.host_bytes is None:
        return
    away: dict[int, list[tuple[float, int]]] = {}
    for (b, v), x in stated.absent.items():
        away.setdefault(b, []).append((graph.size[v] / room, x))
    for terms in away.values():
        yield Row([x for _, x in terms], [c for c, _ in terms], -math.inf, stated.host_bytes / room)


def _sources(stated: Crossing) -> Iterator[Row]:
    """What is read, and what is kept, is there."""
    graph = stated.graph
    ends = [*stated.cuts[1:], len(graph.nodes) - 1]
    for b, cut in enumerate(stated.cuts, 1):
        read = {v for j in range(cut + 1, ends[b - 1] + 1) for v in graph.nodes[j].inputs if graph.producer[v] <= cut}
        for v in sorted(read):
            terms = _source(stated, b, v)
            if terms is not None:
                yield Row([x for _, x in terms], [c for c, _ in terms], 1.0, math.inf)
    for (b, j), again in stated.again.items():
        for v in graph.nodes[j].inputs:
            terms = _source(stated, b, v)
            if terms is not None:
                yield Row([again, *(x for _, x in terms)], [1.0, *(-c for c, _ in terms)], -math.inf, 0.0)
    for (b, v), kept in stated.kept.items():
        if b == 1 or kept is None or graph.producer[v] > stated.cuts[b - 2]:
            continue
        terms = _source(stated, b - 1, v)
        if terms is not None:
            yield Row([kept, *(x for _, x in terms)], [1.0, *(-c for c, _ in terms)], -math.inf, 0.0)


def _suffixes(stated: Crossing) -> Iterator[Row]:
    """What is read after a cut is there at the cut, or made or brought back after it, in whichever blocks."""
    graph, last = stated.graph, len(stated.cuts)
    makers: dict[int, list[int]] = {}
    for b, i in stated.again:
        makers.setdefault(b, []).append(i)
    for b, cut in enumerate(stated.cuts[:-1], 1):
        again: dict[int, int] = {}
        back: dict[int, int] = {}
        for found, columns, wanted in (
            (again, stated.again, makers.get(b, [])),
            (back, stated.back, [v for c, v in stated.back if c == b]),
        ):
            for x in wanted:
                after = [columns[c, x] for c in range(b, last + 1) if (c, x) in columns]
                [found[x]] = stated.builder.amounts([0.0])
                yield Row([found[x]], [1.0], -math.inf, 1.0)
                yield Row([found[x], *after], [1.0, *(-1.0 for _ in after)], -math.inf, 0.0)
        yield from _left(stated, b, again, back)
        readers = range(cut + 1, len(graph.nodes))
        sources: dict[int, list[int]] = {}
        for v in {v for j in (*readers, *again) for v in graph.nodes[j].inputs if graph.producer[v] <= cut}:
            kept = stated.kept.get((b, v), -1)
            if kept is not None:
                columns_of = (kept, again.get(graph.producer[v], -1), back.get(v, -1))
                sources[v] = [x for x in columns_of if x >= 0]
        for v in sorted({v for j in readers for v in graph.nodes[j].inputs} & sources.keys()):
            yield Row(sources[v], [1.0] * len(sources[v]), 1.0, math.inf)
        for j, x in again.items():
            for v in graph.nodes[j].inputs:
                if v in sources:
                    yield Row([x, *sources[v]], [1.0, *(-1.0 for _ in sources[v])], -math.inf, 0.0)


def _left(stated: Crossing, b: int, again: dict[int, int], back: dict[int, int]) -> Iterator[Row]:
    """What comes back after cut b, and is neither there nor computed again after it, has left before it.

    Args:
        stated: The model.
        b: The cut.
        again: Column of E[b,i].
        back: Column of Q[b,v].
    """
    for v, x in back.items():
        kept, maker = stated.kept[b, v], stated.graph.producer[v]
        if kept is not None:
            instead = [stated.sent[b, v], kept, *([again[maker]] if maker in again else [])]
            yield Row([*instead, x], [*(1.0 for _ in instead), -1.0], 0.0, math.inf)


def _copies(stated: Crossing) -> Iterator[Row]:
    """When a value must have left, and must come back."""
    graph, builder = stated.graph, stated.builder
    later: dict[tuple[int, int], int] = {}  # the return of a stretch, by value and reader
    for b, v in sorted(stated.absent, reverse=True):
        x, reader = stated.absent[b, v], stated.next_reader(b, v)
        kept = stated.kept[b, v]
        assert reader is not None
        assert kept is not None
        blocks = range(b, stated.block(reader) + 1)
        again = [stated.again[c, graph.producer[v]] for c in blocks if (c, graph.producer[v]) in stated.again]
        columns = [x, kept, *again]
        yield Row(columns, [1.0] * len(columns), 1.0, math.inf)
        # The copy back of a stretch comes after cut b if the value is absent there, or at a later cut.
        following = later.get((v, reader))
        returns = x
        if following is not None:
            [returns] = builder.amounts([0.0])
            yield Row([returns, x], [1.0, -1.0], 0.0, math.inf)
            yield Row([returns, following], [1.0, -1.0], 0.0, math.inf)
        later[v, reader] = stated.returns[b, v] = returns
    for (b, v), sent in stated.sent.items():
        for earlier in (stated.absent.get((b, v)), stated.sent.get((b - 1, v))):
            if earlier is not None:
                yield Row([sent, earlier], [1.0, -1.0], 0.0, math.inf)
    last = len(stated.cuts) + 1
    for (c, v), back in stated.back.items():
        yield Row([stated.sent[last, v], back], [1.0, -1.0], 0.0, math.inf)
        made: list[int] = []
        for b in range(c, 0, -1):
            made += [stated.again[b, graph.producer[v]]] if (b, graph.producer[v]) in stated.again else []
            kept = stated.kept.get((b, v))
            if kept is not None:
                columns = [stated.sent[b, v], kept, *made, back]
                yield Row(columns, [*(1.0 for _ in columns[1:]), -1.0], 0.0, math.inf)


def _first_windows(stated: Crossing) -> Iterator[Row]:
    """The windows between cuts, and those to the end of the plan, which count all that comes back."""
    last = len(stated.cuts)
    for b in range(1, last + 1):
        for c in range(b):
            first = 0 if c == 0 else stated.cuts[c - 1] + 1
            row = _out_window(stated, first, b)
            if row is not None:
                yield row
        for end in range(b, last + 1):
            j = stated.cuts[end] if end < last else len(stated.graph.nodes) - 1
            row = _in_window(stated, b, j)
            if row is not None:
                yield row
        copies = [(stated.in_time[v], x) for (c, v), x in stated.back.items() if c >= b and stated.in_time[v] > 0]
        if copies:
            yield stated.within(copies, b, last, 0.0, tail=True)
    row = _out_window(stated, 0, last + 1)
    if row is not None:
        yield row


def _out_window(stated: Crossing, first: int, b: int) -> Row | None:
    """Copies of what nodes from ``first`` on make, absent at cut b; b one past the last cut stands for the end."""
    graph, blocks = stated.graph, len(stated.cuts) + 1
    copies = [
        (stated.out_time[v], x)
        for (c, v), x in stated.sent.items()
        if c == b and graph.producer[v] >= first and stated.out_time[v] > 0
    ]
    if not copies:
        return None
    # From the end of the first of these nodes to the start of the cut.
    if b == blocks:
        return stated.within(copies, stated.block(first), blocks - 1, stated.before[first], tail=True)
    cut = graph.nodes[stated.cuts[b - 1]].cost / (graph.total_cost or 1.0)
    return stated.within(copies, stated.block(first), b - 1, stated.before[first] + cut, tail=False)


def _in_window(stated: Crossing, b: int, j: int) -> Row | None:
    """Copies back after cut b, for readers up to node j."""
    copies: list[tuple[float, int]] = []
    seen: set[tuple[int, int]] = set()
    for c, v in sorted(stated.returns):
        reader = stated.next_reader(c, v)
        if c < b or reader is None or reader > j or (v, reader) in seen or stated.in_time[v] <= 0:
            continue
        seen.add((v, reader))
        copies.append((stated.in_time[v], stated.returns[c, v]))
    if not copies:
        return None
    block, whole = stated.block(j), j == len(stated.graph.nodes) - 1
    cost = stated.graph.nodes[j].cost / (stated.graph.total_cost or 1.0)
    less = stated.computing[block] - stated.before[j] + cost
    return stated.within(copies, b, block, 0.0 if whole else less, tail=whole)


def windows(stated: Crossing, values: Floats) -> list[Row]:
    """For every cut the windows that a solution violates most: one for copies out, and one for copies back."""
    graph, windows = stated.graph, []
    for b in range(1, len(stated.cuts) + 2):
        firsts = sorted({graph.producer[v] for c, v in stated.sent if c == b})
        rows = [_out_window(stated, first, b) for first in firsts]
        windows.append(_worst(rows, values))
    for b in range(1, len(stated.cuts) + 1):
        readers = sorted({r for c, v in stated.returns if c >= b and (r := stated.next_reader(c, v)) is not None})
        windows.append(_worst([_in_window(stated, b, j) for j in readers], values))
    return [row for row in windows if row is not None]


def _worst(rows: Sequence[Row | None], values: Floats) -> Row | None:
    most, worst = _VIOLATED, None
    for row in rows:
        if row is None:
            continue
        over = float(np.dot(row.coefficients, values[list(row.columns)])) - row.upper
        if over > most:
            most, worst = over, row
    return worst
