"""The MILP of the Checkmate paper, for nodes with any number of outputs.

Source: Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys 2020, eq. 9:
R[t,k] = node k is computed in row t, S[t,v] = value v is kept from row t-1 into row t, U[t,k] = memory in use
after node k has run in row t (or would have), FREE[t,v,k] = value v is freed right after node k in row t. In each row
nodes run in document order. Equation numbers in comments are the paper's.

Generalised to several outputs by giving S, FREE and the terms of U one entry per value. FREE[t,v,k] for the node k
that makes v is left out for nodes with one output, as in the paper (4.8), since such a node never runs without a
reader; a node with several outputs may leave some unread, and those must be freed at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from remat_cli.control import Control
from remat_cli.graph.closing import closed
from remat_cli.graph.model import Graph
from remat_cli.milp.compile import Compiled, under_construction
from remat_cli.milp.memory_scale import MemoryScale
from remat_cli.milp.statement import Statement
from remat_cli.mip import Row as LinearRow
from remat_cli.mip import linear


@dataclass(frozen=True, slots=True)
class Row:
    """One row of R: the nodes that it may compute, and the node that it must compute.

    Attributes:
        width: Nodes 0 .. width - 1 may be computed.
        required: The node that the row must compute; None if nothing is required.
        before: Nodes 0 .. before - 1 may have been computed in earlier rows.
    """

    width: int
    required: int | None
    before: int


@dataclass(frozen=True, slots=True)
class Formulation:
    """Which form of the MILP.

    Attributes:
        frontier: Row t computes node t for the first time (eq. 8a-c, "partitioned"). Otherwise any row may compute any
            node, and only nodes without readers have to be computed at all (eq. 1e).
        stage_split: Rows per stage: with k rows, a node may be computed up to k times within a stage (arXiv v1, 4.10).
        minimize_peak: Minimise the peak instead of the cost.
        ordered: Without the frontier: first computations in document order, which eq. 8 does not ask for.
    """

    frontier: bool = True
    stage_split: int = 1
    minimize_peak: bool = False
    ordered: bool = True


@dataclass(slots=True)
class CheckmateModel:
    """The Pyomo model with all that is needed to decode its solutions. Variables are referred to by number.

    Attributes:
        statement: The model; minimises cost / ``cost_scale`` (or the peak in units of ``memory``).
        graph: The graph, with its closing node if it needs one.
        rows: One per row of R.
        memory: The form of sizes in the rows.
        cost_scale: The objective is stated in this unit.
        R: Variable of (row, node).
        S: Variable of (row, value).
        U: Variable of (row, node).
        fixed: Value of the variables that are constant.
    """

    statement: Statement
    graph: Graph
    rows: tuple[Row, ...]
    budget_bytes: int
    memory: MemoryScale
    cost_scale: float
    R: dict[tuple[int, int], int] = field(default_factory=dict)
    S: dict[tuple[int, int], int] = field(default_factory=dict)
    U: dict[tuple[int, int], int] = field(default_factory=dict)
    fixed: dict[int, int] = field(default_factory=dict)

    @property
    def model(self) -> Any:
        """The ``ConcreteModel``."""
        return self.statement.model

    def compiled(self) -> Compiled:
        """The arrays."""
        return self.statement.compiled()

    def computed(self, row: int, node: int) -> int | None:
        """R[row, node] as a variable; None if it is a constant."""
        var = self.R[row, node]
        return None if var in self.fixed else var

    def kept(self, row: int, value: int) -> int | None:
        """S[row, value] as a variable; None if there is none."""
        return self.S.get((row, value))

    def choices(self) -> list[tuple[tuple[int, int], int | None]]:
        """Every (row, node) that a solution may compute, with its variable; None if it always does."""
        return [(pair, self.computed(*pair)) for pair, var in self.R.items() if self.fixed.get(var, 1) == 1]

    def fix(self, variable: int, value: int) -> None:
        """Make a variable constant."""
        self.fixed[variable] = value
        self.statement.variables[variable].fix(value)


def rows_of(graph: Graph, formulation: Formulation) -> tuple[Row, ...]:
    """The rows of R for ``graph`` (already closed)."""
    n = len(graph.nodes)
    if not formulation.frontier:
        return tuple(Row(n, None, n if t else 0) for t in range(n * formulation.stage_split))
    rows: list[Row] = []
    for t in range(n):
        rows.extend(Row(t, None, t) for _ in range(formulation.stage_split - 1) if t)
        rows.append(Row(t + 1, t, t))
    return tuple(rows)


def build(graph: Graph, budget_bytes: int, formulation: Formulation, control: Control) -> CheckmateModel:
    """State the MILP.

    Args:
        graph: The graph.
        budget_bytes: Fixed memory included; if the peak is minimised, used for scaling only.
        formulation: The form of the MILP.
        control: Checked while building.

    Raises:
        LimitReached, Interrupted: If the control stops while the model is built.
    """
    graph = closed(graph)
    stated = CheckmateModel(
        statement=Statement.named(f"checkmate {graph.name}", control),
        graph=graph,
        rows=rows_of(graph, formulation),
        budget_bytes=budget_bytes,
        memory=MemoryScale.of(graph, budget_bytes - graph.fixed_memory),
        cost_scale=graph.total_cost or 1.0,
    )
    with under_construction():
        peak = stated.statement.amounts("peak", [0])[0] if formulation.minimize_peak else None
        _variables(stated, formulation)
        stated.statement.add_rows("dependencies", _dependencies(stated))
        stated.statement.add_rows("retention", _retention(stated))
        stated.statement.add_rows("coverage", _coverage(stated, formulation))
        _memory(stated, peak)
        if peak is not None:
            stated.statement.minimise([peak], [1.0])
        else:  # (1a) total cost in units of one run of everything
            costs = [graph.nodes[k].cost / stated.cost_scale for _, k in stated.R]
            stated.statement.minimise(list(stated.R.values()), costs)
    return stated


def _variables(stated: CheckmateModel, formulation: Formulation) -> None:
    """R and S, with the known entries of R fixed."""
    graph, statement = stated.graph, stated.statement
    stated.R = statement.binaries("R", [(t, k) for t, row in enumerate(stated.rows) for k in range(row.width)])
    kept = [(t, v) for t, row in enumerate(stated.rows) for v in range(graph.first_value[row.before])]
    stated.S = statement.binaries("S", kept)
    for t, row in enumerate(stated.rows):
        if row.required is not None:
            stated.fix(stated.R[t, row.required], 1)
    if formulation.frontier:
        # `recompute: false`: only in the row that requires the node (its first computation).
        for (_, k), var in stated.R.items():
            if not graph.nodes[k].recompute and var not in stated.fixed:
                stated.fix(var, 0)


def _dependencies(stated: CheckmateModel) -> Iterator[LinearRow]:
    """(1b) R[t,k] <= R[t,i] + S[t,v] for every value v of node i that k reads."""
    graph, R, S = stated.graph, stated.R, stated.S
    for t, row in enumerate(stated.rows):
        for k in range(row.width):
            for v in graph.nodes[k].inputs:
                terms = [(1.0, R[t, k]), (-1.0, R[t, graph.producer[v]])]
                if (t, v) in S:
                    terms.append((-1.0, S[t, v]))
                yield linear(-math.inf, terms, 0.0)


def _retention(stated: CheckmateModel) -> Iterator[LinearRow]:
    """(1c) S[t,v] <= R[t-1,i] + S[t-1,v] for every value v of node i."""
    graph, R, S = stated.graph, stated.R, stated.S
    for (t, v), kept in S.items():
        terms = [(1.0, kept)]
        if (t - 1, graph.producer[v]) in R:
            terms.append((-1.0, R[t - 1, graph.producer[v]]))
        if (t - 1, v) in S:
            terms.append((-1.0, S[t - 1, v]))
        yield linear(-math.inf, terms, 0.0)


def _coverage(stated: CheckmateModel, formulation: Formulation) -> Iterator[LinearRow]:
    """(1e) Without the frontier: nodes without readers run, in document order, and some nodes only once."""
    if formulation.frontier:
        return
    graph, R = stated.graph, stated.R
    stages = range(len(stated.rows))
    for k, node in enumerate(graph.nodes):
        if not any(graph.readers[v] for v in graph.values_of(k)):
            yield linear(1.0, [(1.0, R[t, k]) for t in stages], math.inf)
        if not node.recompute:
            yield linear(-math.inf, [(1.0, R[t, k]) for t in stages], 1.0)
        if k and formulation.ordered:
            # First computations in document order: k not before k - 1.
            for t in stages:
                yield linear(-math.inf, [(1.0, R[t, k]), *((-1.0, R[s, k - 1]) for s in range(t + 1))], 0.0)


def _free_sites(graph: Graph, width: int) -> Iterator[tuple[int, int]]:
    """(v, k): value v may be freed right after node k."""
    for k in range(width):
        for v in graph.nodes[k].inputs:
            yield v, k
        values = graph.values_of(k)
        for v in values:
            if len(values) > 1 or not graph.readers[v]:
                yield v, k


def _memory(stated: CheckmateModel, peak: int | None) -> None:
    """(2), (3), (7a-c): FREE and U, and the budget; workspace has a row of its own beside the recurrence."""
    graph, statement = stated.graph, stated.statement
    sites = [(t, v, k) for t, row in enumerate(stated.rows) for v, k in _free_sites(graph, row.width)]
    free = statement.binaries("FREE", sites)
    limit = stated.memory.down(stated.budget_bytes - graph.fixed_memory)
    stated.U = statement.amounts("U", list(stated.R), limit if peak is None else None)
    statement.add_rows("free", _free_rows(stated, free))
    statement.add_rows("usage", _usage_rows(stated, free))
    statement.add_rows("budget", _workspace_rows(stated, limit) if peak is None else _peak_rows(stated, peak))


def _free_rows(stated: CheckmateModel, free: dict[tuple[int, int, int], int]) -> Iterator[LinearRow]:
    """(7b-c) FREE[t,v,k] = 1 exactly when k runs, v is not kept, and no later reader of v runs in row t."""
    graph, R, S = stated.graph, stated.R, stated.S
    for (t, v, k), var in free.items():
        # hazards = (1 - R[t,k]) + S[t+1,v] + sum of R[t,j] over later readers j; FREE = 1 iff there are none.
        hazards = [(-1.0, R[t, k])]
        if (t + 1, v) in S:
            hazards.append((1.0, S[t + 1, v]))
        hazards.extend((1.0, R[t, j]) for j in graph.readers[v] if k < j < stated.rows[t].width)
        most = float(len(hazards))
        yield linear(0.0, [(1.0, var), *hazards], math.inf)  # 1 - FREE <= hazards
        yield linear(-math.inf, [(most, var), *hazards], most - 1.0)  # most * (1 - FREE) >= hazards


def _usage_rows(stated: CheckmateModel, free: dict[tuple[int, int, int], int]) -> Iterator[LinearRow]:
    """(2), (3) U[t,0] = kept + out_0 R[t,0]; U[t,k] = U[t,k-1] - freed after k-1 + out_k R[t,k]."""
    graph, R, S, U = stated.graph, stated.R, stated.S, stated.U
    # A node's outputs are rounded one by one, as they are freed.
    size = [stated.memory.down(size) for size in graph.size]
    freed_after: dict[tuple[int, int], list[tuple[float, int]]] = {}
    for (t, v, k), var in free.items():
        freed_after.setdefault((t, k), []).append((size[v], var))
    kept: dict[int, list[tuple[float, int]]] = {}
    for (t, v), var in S.items():
        kept.setdefault(t, []).append((-size[v], var))
    for (t, k), var in U.items():
        terms = [(1.0, var), (-sum(size[v] for v in graph.values_of(k)), R[t, k])]
        if k == 0:
            terms += kept.get(t, [])
        else:
            terms += [(-1.0, U[t, k - 1]), *freed_after.get((t, k - 1), [])]
        yield linear(0.0, terms, 0.0)


def _workspace_rows(stated: CheckmateModel, limit: float) -> Iterator[LinearRow]:
    """U[t,k] + workspace of k, if it runs, within the budget."""
    for (t, k), var in stated.U.items():
        workspace = stated.memory.down(stated.graph.nodes[k].workspace)
        if workspace:
            yield linear(-math.inf, [(1.0, var), (workspace, stated.R[t, k])], limit)


def _peak_rows(stated: CheckmateModel, peak: int) -> Iterator[LinearRow]:
    """The peak is at least every U[t,k] and its workspace."""
    for (t, k), var in stated.U.items():
        workspace = stated.memory.down(stated.graph.nodes[k].workspace)
        yield linear(-math.inf, [(1.0, var), (-1.0, peak), *([(workspace, stated.R[t, k])] if workspace else [])], 0.0)
