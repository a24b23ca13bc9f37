"""The cover bound: a small MILP whose optimum no schedule in document order undercuts, whatever it does in between.

x_i = 1 if node i is computed more than once. Take the first computation of node t: of the values made before t, read
after it and not by t itself, enough bytes must be given up and made again later for the rest to fit beside the working
set of t. Each value given up costs another computation of its node.

For schedules in any order only those values count that are made before t and read after it whatever the order is.
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
from remat_cli.mip import Builder, LinearModel, Row, linear

Impossible = Literal["impossible"]
IMPOSSIBLE: Impossible = "impossible"
"""What :func:`build` returns when no schedule in document order, or in any order, fits the budget."""

_MOST_TERMS = 100_000
"""Terms that are stated."""


def build(graph: Graph, budget_bytes: int, *, any_order: bool = False) -> LinearModel | Impossible | None:
    """The model, which minimises the cost of recomputation (C0 left out) in units of C0.

    Args:
        graph: The graph.
        budget_bytes: Fixed memory included.
        any_order: Whether the bound is to hold for schedules in any topological order.

    Returns:
        The model; None if no stage is over the budget, so that the bound is C0; :data:`IMPOSSIBLE` if at some
        stage giving up everything that may be recomputed does not make enough room.
    """
    graph = closed(graph)
    rows = cover_rows(graph, budget_bytes, any_order=any_order)
    if not rows:
        return None
    if any(sum(parts.values()) < need for need, parts in rows):
        return IMPOSSIBLE
    rows = rows[:: 1 + sum(len(parts) for _, parts in rows) // _MOST_TERMS]  # fewer rows are a bound, too
    used = sorted({i for _, parts in rows for i in parts})
    scale = graph.total_cost or 1.0
    model = Builder()
    x = dict(zip(used, model.binaries(graph.nodes[i].cost / scale for i in used), strict=True))
    model.rows = [Row([x[i] for i in parts], [b / need for b in parts.values()], 1.0, math.inf) for need, parts in rows]
    return model.build()


def cover_rows(graph: Graph, budget_bytes: int, *, any_order: bool = False) -> list[tuple[int, dict[int, int]]]:
    """For every stage over the budget the bytes to give up, and the bytes that each node offers, capped at that.

    Args:
        graph: With its closing node.
        budget_bytes: Fixed memory included.
        any_order: Whether the rows are to hold for schedules in any topological order.
    """
    stages = enumerate(always_waiting(graph) if any_order else _waiting(graph))
    return _undominated([row for t, waiting in stages if (row := _row(graph, waiting, budget_bytes, t)) is not None])


def least_peak_in_any_order(graph: Graph) -> int:
    """Bytes below which no schedule stays, whatever its order, fixed memory included.

    At the first computation of some node its working set is there, and everything that is made before and read later in
    any order and may not be made again.
    """
    closing = closed(graph)
    needs = []
    for t, waiting in enumerate(always_waiting(closing)):
        beside, parts = _stage(closing, waiting)
        needs.append(working_set(closing, t) + beside - sum(parts.values()))
    return graph.fixed_memory + max(needs)


@dataclass(frozen=True, slots=True)
class Prices:
    """What computing nodes more than once costs at least, beyond what any schedule must pay.

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
    """The dual of the cover bound's relaxation; whatever a solver answers, prices made of it hold.

    Attributes:
        model: The arrays. The first columns are the weights of the rows.
        graph: With its closing node.
        rows: The cover rows.
    """

    model: LinearModel
    graph: Graph
    rows: tuple[tuple[int, dict[int, int]], ...]

    def prices(self, values: Sequence[float]) -> Prices:
        """Prices from the answer of a solver, of which the weights are read; or from any weights, one per row.

        With x_i = 1 for every node computed more than once, every row y >= 0 gives sum c x >= sum y + sum (c - A'y) x,
        and p x = p - p (1 - x) where the price p = c - A'y is negative.
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
        graph: With its closing node.
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
    """Bytes of the values that wait, and what of those each node could make again."""
    parts: dict[int, int] = {}
    for v in waiting:
        maker = graph.producer[v]
        if graph.nodes[maker].recompute:
            parts[maker] = parts.get(maker, 0) + graph.size[v]
    return sum(graph.size[v] for v in waiting), parts


def _row(graph: Graph, waiting: Sequence[int], budget_bytes: int, t: int) -> tuple[int, dict[int, int]] | None:
    """Bytes to give up at stage t, and the bytes that each node offers, capped at that; None if everything fits."""
    beside, parts = _stage(graph, waiting)
    need = beside + working_set(graph, t) - (budget_bytes - graph.fixed_memory)
    if need <= 0:
        return None
    return need, {i: min(size, need) for i, size in parts.items() if size}


def _undominated(rows: list[tuple[int, dict[int, int]]]) -> list[tuple[int, dict[int, int]]]:
    """``rows`` without those that are the same as the one before."""
    kept: list[tuple[int, dict[int, int]]] = []
    for row in rows:
        if not kept or kept[-1] != row:
            kept.append(row)
    return kept
