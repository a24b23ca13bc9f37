"""The cover bound: a small MILP whose optimum is a lower bound on the recomputation of all schedules in document order.

x_i = 1 if node i runs more than once. Consider the first computation of node t. Of the values made before t, read after
t and not read by t itself, enough bytes must be dropped and recomputed later that the rest fits beside the working set
of t. Every dropped value costs another computation of its node. This is a multi-row knapsack cover.

For schedules in any order only those values count that are made before t and read after t in every order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from remat_cli.graph.analysis import last_readers, working_set
from remat_cli.graph.closing import closed
from remat_cli.graph.model import Graph
from remat_cli.graph.order import always_waiting
from remat_cli.milp.memory_scale import FINEST
from remat_cli.mip import Builder, LinearModel, Row, linear

Impossible = Literal["impossible"]
IMPOSSIBLE: Impossible = "impossible"
"""The result of :func:`build` if no schedule in document order, or in any order, fits the budget."""

_MOST_TERMS = 100_000
"""Most terms to state. Untuned."""


def build(graph: Graph, budget_bytes: int, *, any_order: bool = False) -> LinearModel | Impossible | None:
    """The model, which minimises the cost of recomputation (C0 left out) in units of C0.

    Args:
        graph: The graph.
        budget_bytes: Fixed memory included.
        any_order: Whether the bound must hold for schedules in any topological order.

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

    Args:
        graph: The graph with its closing node.
        budget_bytes: Fixed memory included.
        any_order: Whether the rows must hold for schedules in any topological order.
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
        beside, parts = _stage(closing, waiting)
        needs.append(working_set(closing, t) + beside - sum(parts.values()))
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
    """The dual of the relaxed cover bound, to be minimised in units of C0.

    Args:
        graph: The graph with its closing node.
        budget_bytes: Fixed memory included.
    """
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
    beside, parts = _stage(graph, waiting)
    need = beside + working_set(graph, t) - (budget_bytes - graph.fixed_memory)
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
