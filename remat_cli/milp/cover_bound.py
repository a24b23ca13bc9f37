"""The cover bound: a small MILP whose optimum no schedule in document order undercuts, whatever it does in between.

x_i = 1 if node i is computed more than once. Take the first computation of node t: of the values made before t, read
after it and not by t itself, enough bytes must be given up and made again later for the rest to fit beside the working
set of t. Each value given up costs another computation of its node.
"""

from __future__ import annotations

from typing import Any

from remat_cli.graph.analysis import last_readers
from remat_cli.graph.model import Graph
from remat_cli.milp import _pyomo as pyo
from remat_cli.milp.checkmate import closed

IMPOSSIBLE = "impossible"
"""What :func:`build` returns when no schedule in document order fits the budget."""


def build(graph: Graph, budget_bytes: int) -> Any:
    """The model, which minimises the cost of recomputation (C0 left out) in units of C0.

    Args:
        graph: The graph.
        budget_bytes: Fixed memory included.

    Returns:
        A ``ConcreteModel``; None if no stage is over the budget, so that the bound is C0; :data:`IMPOSSIBLE` if at some
        stage giving up everything that may be recomputed does not make enough room.
    """
    graph = closed(graph)
    last = last_readers(graph)
    stages = range(len(graph.nodes))
    rows = _undominated([row for t in stages if (row := _row(graph, last, budget_bytes, t)) is not None])
    if not rows:
        return None
    if any(sum(parts.values()) < need for need, parts in rows):
        return IMPOSSIBLE
    model = pyo.ConcreteModel(name=f"cover {graph.name}")
    used = sorted({i for _, parts in rows for i in parts})
    model.x = pyo.Var(used, domain=pyo.Binary)
    x = dict(model.x.items())
    bodies = [
        (
            1.0,
            pyo.LinearExpression(linear_coefs=[b / need for b in parts.values()], linear_vars=[x[i] for i in parts]),
            None,
        )
        for need, parts in rows
    ]
    model.rows = pyo.Constraint(range(len(bodies)), rule=lambda _, index: bodies[index])
    scale = graph.total_cost or 1.0
    model.objective = pyo.Objective(
        expr=pyo.LinearExpression(
            linear_coefs=[graph.nodes[i].cost / scale for i in used], linear_vars=list(x.values())
        )
    )
    return model


def _stage(graph: Graph, last: list[int], t: int) -> tuple[int, int, dict[int, int]]:
    """Working set of t, bytes that wait beside it to be read later, and what of those each node could make again."""
    node = graph.nodes[t]
    parts: dict[int, int] = {}
    waiting = 0
    for v in range(graph.first_value[t]):
        if last[v] > t and v not in node.inputs:
            waiting += graph.size[v]
            maker = graph.producer[v]
            if graph.nodes[maker].recompute:
                parts[maker] = parts.get(maker, 0) + graph.size[v]
    own = sum(graph.size[v] for v in node.inputs) + sum(node.outputs) + node.workspace
    return own, waiting, parts


def _row(graph: Graph, last: list[int], budget_bytes: int, t: int) -> tuple[int, dict[int, int]] | None:
    """Bytes to give up at stage t, and the bytes that each node offers, capped at that; None if everything fits."""
    own, waiting, parts = _stage(graph, last, t)
    need = waiting + own - (budget_bytes - graph.fixed_memory)
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
