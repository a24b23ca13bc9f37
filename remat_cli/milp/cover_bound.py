"""States the cover bound: a small MILP whose optimum no schedule in document order can undercut by recomputing less.

x_i = 1 if node i runs more than once. Consider the first computation of node t. Of the values made before t, read after
t and not read by t itself, enough bytes must be dropped and recomputed later that the rest fits beside the working set
of t. Every dropped value costs another computation of its node. This is a multi-row knapsack cover.

For schedules in any order only those values count that are made before t and read after t in every order.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from remat_cli.control import Control
from remat_cli.graph.analysis import last_readers, no_remat_profile, working_set
from remat_cli.graph.model import Graph, closed
from remat_cli.graph.order import always_waiting
from remat_cli.milp.memory_scale import FINEST, MemoryScale
from remat_cli.mip import Builder, LinearModel, Row, linear

Impossible = Literal["impossible"]
IMPOSSIBLE: Impossible = "impossible"
"""The result of :func:`build` if no schedule in document order, or in any order, fits the budget."""

_MOST_TERMS = 100_000
"""Most terms to state. Untuned."""


def build(graph: Graph, budget_bytes: int, *, any_order: bool = False) -> LinearModel | Impossible | None:
    """The model, which minimises the cost of recomputation (C0 left out) in units of C0.

    If ``any_order``, the bound holds for schedules in any topological order.

    Returns:
        The model; None if no stage is over the budget, so that the bound is C0; :data:`IMPOSSIBLE` if at some stage
        dropping all recomputable values does not free enough.
    """
    graph = closed(graph)
    rows = cover_rows(graph, budget_bytes, any_order=any_order)
    if not rows:
        return None
    if any(sum(parts.values()) < need for need, parts in rows):
        return IMPOSSIBLE
    rows = rows[:: 1 + sum(len(parts) for _, parts in rows) // _MOST_TERMS]  # fewer rows give a bound too
    used = sorted({i for _, parts in rows for i in parts})
    scale = graph.total_cost or 1.0
    model = Builder()
    x = dict(zip(used, model.binaries(graph.nodes[i].cost / scale for i in used), strict=True))
    model.rows = [
        Row([x[i] for i in parts], [max(b / need, FINEST) for b in parts.values()], 1.0, math.inf)
        for need, parts in rows
    ]
    return model.build()


def cover_rows(graph: Graph, budget_bytes: int, *, any_order: bool = False) -> list[tuple[int, dict[int, int]]]:
    """For every stage over the budget the bytes to free, and the bytes that each node can free, capped at that.

    If ``any_order``, the rows hold for schedules in any topological order; the graph has its closing node.
    """
    stages = enumerate(always_waiting(graph) if any_order else _waiting(graph))
    return _undominated([row for t, waiting in stages if (row := _row(graph, waiting, budget_bytes, t)) is not None])


def least_peak_in_any_order(graph: Graph) -> int:
    """A lower bound in bytes on the peak of schedules in any order, fixed memory included.

    At the first computation of a node its working set is resident, and so is every value that in every order is made
    before and read later, and that may not be recomputed.
    """
    closing = closed(graph)
    needs = []
    for t, waiting in enumerate(always_waiting(closing)):
        waiting_bytes, parts = _stage(closing, waiting)
        needs.append(working_set(closing, t) + waiting_bytes - sum(parts.values()))
    return graph.fixed_memory + max(needs)


@dataclass(frozen=True, slots=True)
class Prices:
    """Lower bounds on the cost of recomputing nodes, beyond what every schedule must pay.

    Attributes:
        base: No schedule within the budget costs less than C0 + ``base``; in the graph's cost unit.
        of_node: A schedule that recomputes the nodes of a set costs at least C0 + ``base`` + the sum over the set ...
        of_omission: ... + the sum of these over all other nodes + the cost of each computation beyond a node's second.
    """

    base: float
    of_node: tuple[float, ...]
    of_omission: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PriceModel:
    """The dual of the cover bound's relaxation; prices from any of its points are valid, optimal or not.

    Attributes:
        model: The arrays. The first columns are the weights of the rows.
        graph: The graph with its closing node.
        rows: The cover rows.
    """

    model: LinearModel
    graph: Graph
    rows: tuple[tuple[int, dict[int, int]], ...]

    def prices(self, values: Sequence[float]) -> Prices:
        """Prices from a solver's answer, of which only the weights are used; or from any weights, one per row.

        With x_i = 1 for every node that runs more than once, weights y >= 0 of the rows give
        sum c x >= sum y + sum (c - A'y) x, and p x = p - p (1 - x) where the price p = c - A'y is negative.
        """
        scale = self.graph.total_cost or 1.0
        left = [node.cost for node in self.graph.nodes]
        base = 0.0
        for (need, parts), value in zip(self.rows, values[: len(self.rows)], strict=True):
            weight = max(0.0, float(value)) * scale
            base += weight
            for i, size in parts.items():
                left[i] -= weight * size / need
        return Prices(
            base=base + sum(min(0.0, price) for price in left),
            of_node=tuple(max(0.0, price) for price in left),
            of_omission=tuple(max(0.0, -price) for price in left),
        )


def price_model(graph: Graph, budget_bytes: int) -> PriceModel:
    """The dual of the relaxed cover bound, to be minimised in units of C0; the graph has its closing node."""
    rows = cover_rows(graph, budget_bytes)
    scale = graph.total_cost or 1.0
    offered: dict[int, list[tuple[float, int]]] = {}
    for index, (need, parts) in enumerate(rows):
        for i, size in parts.items():
            offered.setdefault(i, []).append((size / need, index))
    model = Builder()
    weights = model.amounts([-1.0] * len(rows))
    excess = model.amounts([1.0] * len(offered))
    for (i, shares), own in zip(sorted(offered.items()), excess, strict=True):
        terms = [*((share, weights[index]) for share, index in shares), (-1.0, own)]
        model.rows.append(linear(-math.inf, terms, graph.nodes[i].cost / scale))
    return PriceModel(model.build(), graph, tuple(rows))


def _waiting(graph: Graph) -> Iterable[Sequence[int]]:
    """For every node t the values made before t, read after it in document order, and not read by t."""
    last = last_readers(graph)
    for t, node in enumerate(graph.nodes):
        yield [v for v in range(graph.first_value[t]) if last[v] > t and v not in node.inputs]


def _stage(graph: Graph, waiting: Sequence[int]) -> tuple[int, dict[int, int]]:
    """Bytes of the values that wait, and how many of them each node can recompute."""
    parts: dict[int, int] = {}
    for v in waiting:
        maker = graph.producer[v]
        if graph.nodes[maker].recompute:
            parts[maker] = parts.get(maker, 0) + graph.size[v]
    return sum(graph.size[v] for v in waiting), parts


def _row(graph: Graph, waiting: Sequence[int], budget_bytes: int, t: int) -> tuple[int, dict[int, int]] | None:
    """Bytes to free at stage t, and the bytes that each node can free, capped at that; None if everything fits."""
    waiting_bytes, parts = _stage(graph, waiting)
    need = waiting_bytes + working_set(graph, t) - (budget_bytes - graph.fixed_memory)
    if need <= 0:
        return None
    # The cap strengthens the row: a node that frees more than is needed may not count for more than all of it.
    return need, {i: min(size, need) for i, size in parts.items() if size}


def _undominated(rows: list[tuple[int, dict[int, int]]]) -> list[tuple[int, dict[int, int]]]:
    """``rows`` without those equal to the row before."""
    kept: list[tuple[int, dict[int, int]]] = []
    for row in rows:
        if not kept or kept[-1] != row:
            kept.append(row)
    return kept


def dense_terms(graph: Graph) -> int:
    """Upper bound on the terms of the plain cover bound: the stages that each value waits through, summed."""
    return sum(last - graph.producer[v] for v, last in enumerate(last_readers(graph)))


def least_peak(graph: Graph) -> int:
    """A lower bound in bytes on the peak of schedules in document order, fixed memory included.

    At the first computation of a node its working set is resident, and so is every value made before and read later
    that may not be recomputed.
    """
    return graph.fixed_memory + max(stage.need - stage.most for stage in stages_of(closed(graph), graph.fixed_memory))


@dataclass(frozen=True, slots=True)
class Stage:
    """The requirement of stage t, for the running sums of :func:`build_running`.

    Attributes:
        need: Bytes that must be dropped; negative if memory is free.
        most: Bytes that can be dropped.
        made: Recomputable values that begin to wait at t.
        read: Recomputable values that t is the last to read.
        own: Recomputable values that wait past t but do not count at t, since t reads or writes them.
    """

    need: int
    most: int
    made: tuple[int, ...]
    read: tuple[int, ...]
    own: tuple[int, ...]


def stages_of(graph: Graph, budget_bytes: int) -> Iterator[Stage]:
    """Every stage of ``graph``, which must have its closing node, in order."""
    last = last_readers(graph)
    again = [graph.nodes[i].recompute and size > 0 for i, size in zip(graph.producer, graph.size, strict=True)]
    ending: list[list[int]] = [[] for _ in range(len(graph.nodes) + 1)]
    for v, t in enumerate(last):
        ending[t].append(v)
    in_use = no_remat_profile(graph)
    spare = 0  # bytes of recomputable values made by now and read later
    for t, node in enumerate(graph.nodes):
        begun = [v for v in graph.values_of(t) if last[v] > t]
        read = [v for v in ending[t] if graph.producer[v] < t]
        spare += sum(graph.size[v] for v in begun if again[v]) - sum(graph.size[v] for v in read if again[v])
        own = [v for v in (*node.inputs, *graph.values_of(t)) if last[v] > t]
        yield Stage(
            need=in_use[t] - budget_bytes,
            most=spare - sum(graph.size[v] for v in own if again[v]),
            made=tuple(v for v in begun if again[v]),
            read=tuple(v for v in read if again[v]),
            own=tuple(v for v in own if again[v]),
        )


def build_running(graph: Graph, budget_bytes: int, control: Control) -> LinearModel | Impossible | None:
    """The model for large graphs: a few terms for each stage instead of one for each live value.

    The bytes dropped across stage t are a variable: that of stage t-1, plus the values made at t, minus those that t is
    the last to read. The rows are those of :func:`build` without the cap on a node that frees more than is needed: they
    have the same integer solutions and a slightly weaker relaxation. It minimises the cost of recomputation (C0 left
    out) in units of C0.

    Returns:
        The model; None if no stage is over the budget, so that the bound is C0; :data:`IMPOSSIBLE` if at some stage
        dropping all recomputable values does not free enough.

    Raises:
        LimitReached, Interrupted: If the control stops meanwhile.
    """
    graph = closed(graph)
    stages = list(stages_of(graph, budget_bytes))
    if all(stage.need <= 0 for stage in stages):
        return None
    if any(stage.most < stage.need for stage in stages):
        return IMPOSSIBLE
    memory = MemoryScale.of(graph, budget_bytes - graph.fixed_memory)
    used = sorted({graph.producer[v] for stage in stages for v in stage.made})
    scale = graph.total_cost or 1.0
    model = Builder()
    x = dict(zip(used, model.binaries(graph.nodes[i].cost / scale for i in used), strict=True))
    dropped = model.amounts([0.0] * len(stages))

    def terms(values: tuple[int, ...], sign: float) -> list[tuple[float, int]]:
        return [(sign * memory.up(graph.size[v]), x[graph.producer[v]]) for v in values]

    def rows() -> Iterator[Row]:
        for t, stage in enumerate(stages):
            before = [(-1.0, dropped[t - 1])] if t else []
            yield linear(0.0, [(1.0, dropped[t]), *before, *terms(stage.made, -1.0), *terms(stage.read, 1.0)], 0.0)
            if stage.need > 0:
                yield linear(memory.down(stage.need), [(1.0, dropped[t]), *terms(stage.own, -1.0)], math.inf)

    model.rows.extend(control.watched(rows()))
    return model.build()
