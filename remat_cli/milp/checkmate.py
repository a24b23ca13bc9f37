"""States the MILP of the Checkmate paper in Pyomo, equation by equation, for nodes with any number of outputs.

Source: Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys 2020, eq. 9:
R[t,k] = node k is computed in row t, S[t,v] = value v is kept from row t-1 into row t, U[t,k] = memory in use
after node k has run in row t (or would have), FREE[t,v,k] = value v is freed right after node k in row t. In each row
nodes run in document order. Equation numbers are the paper's.

Generalised to several outputs by giving S, FREE and the terms of U one entry per value. FREE[t,v,k] for the node k
that makes v is left out for nodes with one output, as in the paper (4.8), since such a node never runs without a
reader; a node with several outputs may leave some unread, and those must be freed at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyomo.core as pyo

from remat_cli.control import Control
from remat_cli.graph.model import Graph, closed
from remat_cli.milp.compile import compile_model, without_garbage_collection
from remat_cli.milp.memory_scale import MemoryScale
from remat_cli.mip import Ints, LinearModel

Expression = Any
"""An expression of Pyomo."""
Index = tuple[int, ...]
Relations = Iterator[tuple[Hashable, Any]]
"""Equations or inequalities between expressions, each with the index under which its constraint has it."""


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


@dataclass(frozen=True, slots=True)
class Problem:
    """What the equations are about.

    Attributes:
        graph: The graph, with its closing node if it needs one.
        rows: One per row of R.
        formulation: The form of the MILP.
        budget_bytes: Fixed memory included.
        memory: The form of sizes in the equations.
        cost_scale: The objective is stated in this unit.
    """

    graph: Graph
    rows: tuple[Row, ...]
    formulation: Formulation
    budget_bytes: int
    memory: MemoryScale
    cost_scale: float

    @classmethod
    def of(cls, graph: Graph, budget_bytes: int, formulation: Formulation) -> Problem:
        """The problem for ``graph``, which is closed here."""
        graph = closed(graph)
        return cls(
            graph=graph,
            rows=rows_of(graph, formulation),
            formulation=formulation,
            budget_bytes=budget_bytes,
            memory=MemoryScale.of(graph, budget_bytes - graph.fixed_memory),
            cost_scale=graph.total_cost or 1.0,
        )

    @property
    def room(self) -> float:
        """Budget without fixed memory, in units of ``memory``."""
        return self.memory.down(self.budget_bytes - self.graph.fixed_memory)

    def sizes(self) -> list[float]:
        """Size of every value, in units of ``memory``; each is rounded by itself, as it is freed."""
        return [self.memory.down(size) for size in self.graph.size]

    def workspaces(self) -> list[float]:
        """Workspace of every node, in units of ``memory``."""
        return [self.memory.down(node.workspace) for node in self.graph.nodes]

    def computations(self) -> list[tuple[int, int]]:
        """Every (row, node) of R."""
        return [(t, k) for t, row in enumerate(self.rows) for k in range(row.width)]

    def kept(self) -> list[tuple[int, int]]:
        """Every (row, value) of S; (1d) and (8b) leave the others out."""
        return [(t, v) for t, row in enumerate(self.rows) for v in range(self.graph.first_value[row.before])]

    def frees(self) -> list[tuple[int, int, int]]:
        """Every (row, value, node) of FREE: the value may be freed right after the node."""
        graph = self.graph
        after: list[list[int]] = []
        for k, node in enumerate(graph.nodes):
            own = graph.values_of(k)
            after.append([*node.inputs, *(v for v in own if len(own) > 1 or not graph.readers[v])])
        return [(t, v, k) for t, row in enumerate(self.rows) for k in range(row.width) for v in after[k]]


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


@dataclass(frozen=True, slots=True)
class CheckmateModel:
    """The MILP as arrays, with the columns of its variables.

    Attributes:
        problem: What the equations are about.
        model: The arrays; minimises cost / ``cost_scale`` (or the peak in units of ``memory``).
        R: Column of (row, node); those that are constant left out.
        S: Column of (row, value).
        U: Column of (row, node).
        always: The (row, node) whose R is always 1.
        budget_rows: int64[...], the rows that keep U and workspace within the budget.
    """

    problem: Problem
    model: LinearModel
    R: dict[tuple[int, int], int]
    S: dict[tuple[int, int], int]
    U: dict[tuple[int, int], int]
    always: frozenset[tuple[int, int]]
    budget_rows: Ints

    @property
    def graph(self) -> Graph:
        """The graph, with its closing node if it needs one."""
        return self.problem.graph

    @property
    def budget_bytes(self) -> int:
        """Fixed memory included."""
        return self.problem.budget_bytes

    @property
    def memory(self) -> MemoryScale:
        """The form of sizes."""
        return self.problem.memory

    @property
    def cost_scale(self) -> float:
        """Unit of the objective."""
        return self.problem.cost_scale

    def computed(self, row: int, node: int) -> int | None:
        """Column of R[row, node]; None if it is a constant."""
        return self.R.get((row, node))

    def kept(self, row: int, value: int) -> int | None:
        """Column of S[row, value]; None if there is none."""
        return self.S.get((row, value))

    def choices(self) -> list[tuple[tuple[int, int], int | None]]:
        """Every (row, node) that a solution may compute, with its column; None if it always does."""
        return [*((pair, None) for pair in self.always), *self.R.items()]


def build(graph: Graph, budget_bytes: int, formulation: Formulation, control: Control) -> CheckmateModel:
    """State the MILP and compile it to arrays.

    If the peak is minimised, the budget is used for scaling only. ``control`` is checked while stating.

    Raises:
        LimitReached, Interrupted: If the control stops while the MILP is stated.
    """
    problem = Problem.of(graph, budget_bytes, formulation)
    stated = state(problem, control)
    compiled = compile_model(stated)
    return CheckmateModel(
        problem=problem,
        model=compiled.model,
        R=compiled.columns_of(stated.R),
        S=compiled.columns_of(stated.S),
        U=compiled.columns_of(stated.U),
        always=frozenset(pair for pair, variable in stated.R.items() if variable.fixed and variable.value == 1),
        budget_rows=compiled.rows_of.get("budget", np.zeros(0, dtype=np.int64)),
    )


def state(problem: Problem, control: Control) -> Any:
    """The MILP as a ``ConcreteModel``, with one constraint for each equation.

    Raises:
        LimitReached, Interrupted: If the control stops meanwhile.
    """
    graph, frontier = problem.graph, problem.formulation.frontier
    with without_garbage_collection():
        model = pyo.ConcreteModel(name=f"checkmate {graph.name}")
        if problem.formulation.minimize_peak:
            model.peak = pyo.Var(domain=pyo.NonNegativeReals)
        most = None if problem.formulation.minimize_peak else problem.room
        model.R = pyo.Var(problem.computations(), domain=pyo.Binary)
        model.S = pyo.Var(problem.kept(), domain=pyo.Binary)
        model.FREE = pyo.Var(problem.frees(), domain=pyo.Binary)  # (7a)
        model.U = pyo.Var(problem.computations(), domain=pyo.NonNegativeReals, bounds=(0, most))
        equations = _Equations(
            problem, dict(model.R.items()), dict(model.S.items()), dict(model.FREE.items()), dict(model.U.items())
        )
        equations.fix_known()

        def add(name: str, relations: Relations) -> None:
            of_index = dict(control.watched(relations))
            model.add_component(name, pyo.Constraint(list(of_index), rule=of_index))

        add("dependencies", equations.dependencies())
        add("retention", equations.retention())
        if not frontier:
            add("coverage", equations.coverage())
            add("once", equations.once())
        if not frontier and problem.formulation.ordered:
            add("document_order", equations.document_order())
        add("freeing", equations.freeing())
        add("usage", equations.usage())
        if problem.formulation.minimize_peak:
            add("peak_usage", equations.peak_usage(model.peak))
            model.objective = pyo.Objective(expr=model.peak)
        else:
            add("budget", equations.budget())
            model.objective = pyo.Objective(expr=equations.cost())
    return model


@dataclass(frozen=True, slots=True)
class _Equations:
    """The equations of the paper, over variables of Pyomo by their indices."""

    problem: Problem
    R: dict[Index, Expression]
    S: dict[Index, Expression]
    FREE: dict[Index, Expression]
    U: dict[Index, Expression]

    def fix_known(self) -> None:
        """(8a), (8c) A row computes what it must; a node with ``recompute: false`` only runs where it must."""
        for t, row in enumerate(self.problem.rows):
            if row.required is not None:
                self.R[t, row.required].fix(1)
        if self.problem.formulation.frontier:
            for (_, k), computed in self.R.items():
                if not self.problem.graph.nodes[k].recompute and not computed.fixed:
                    computed.fix(0)

    def cost(self) -> Expression:
        """(1a) The cost of everything that runs."""
        share = [node.cost / self.problem.cost_scale for node in self.problem.graph.nodes]
        return sum(share[k] * computed for (_, k), computed in self.R.items())

    def dependencies(self) -> Relations:
        """(1b) A node runs where the nodes of its inputs run before it in the row, or the inputs are kept."""
        graph, R, S = self.problem.graph, self.R, self.S
        for t, k in R:
            for v in graph.nodes[k].inputs:
                yield (t, k, v), R[t, k] <= R[t, graph.producer[v]] + S.get((t, v), 0)

    def retention(self) -> Relations:
        """(1c) A value is kept into a row if it was made in the row before, or kept into that one."""
        graph, R, S = self.problem.graph, self.R, self.S
        for t, v in S:
            yield (t, v), S[t, v] <= R.get((t - 1, graph.producer[v]), 0) + S.get((t - 1, v), 0)

    def coverage(self) -> Relations:
        """(1e) Without the frontier: nodes without readers run."""
        for k in range(len(self.problem.graph.nodes)):
            if not any(self.problem.graph.readers[v] for v in self.problem.graph.values_of(k)):
                yield (k,), self._times(k) >= 1

    def once(self) -> Relations:
        """Without the frontier: a node with ``recompute: false`` runs at most once."""
        for k, node in enumerate(self.problem.graph.nodes):
            if not node.recompute:
                yield (k,), self._times(k) <= 1

    def document_order(self) -> Relations:
        """Without the frontier: no node runs in a row unless the one before it in the document runs up to there."""
        for (t, k), computed in self.R.items():
            if k:
                yield (t, k), computed <= sum(self.R[s, k - 1] for s in range(t + 1))

    def _times(self, k: int) -> Expression:
        """How often node k runs."""
        return sum(self.R[t, k] for t in range(len(self.problem.rows)))

    def freeing(self) -> Relations:
        """(5), (7b), (7c) A value is freed after a node exactly if there is no hazard.

        Hazards are that node k does not run in row t, that value v is kept into the next row, and that a later node of
        the row reads it. The two relations of a variable FREE follow each other: HiGHS branches better than if all of
        one kind come first: ``linear{n=16}`` at 40% takes 20 s instead of 36 s (single runs, not kept).
        """
        graph, R, S, rows = self.problem.graph, self.R, self.S, self.problem.rows
        for (t, v, k), free in self.FREE.items():
            others = [R[t, j] for j in graph.readers[v] if k < j < rows[t].width]
            if (t + 1, v) in S:
                others.append(S[t + 1, v])
            hazards, most = sum(others, 1 - R[t, k]), 1 + len(others)
            yield (t, v, k, "7b"), free + hazards >= 1
            yield (t, v, k, "7c"), most * (1 - free) >= hazards

    def usage(self) -> Relations:
        """(2), (3) Memory after a node: that after the node before, minus what was freed then, plus its outputs."""
        graph, R, U, size = self.problem.graph, self.R, self.U, self.problem.sizes()
        freed: dict[tuple[int, int], list[Any]] = {}
        for (t, v, k), free in self.FREE.items():
            freed.setdefault((t, k), []).append(size[v] * free)
        kept: dict[int, list[Any]] = {}
        for (t, v), var in self.S.items():
            kept.setdefault(t, []).append(size[v] * var)
        for t, k in U:
            outputs = sum(size[v] for v in graph.values_of(k)) * R[t, k]
            before = U[t, k - 1] - sum(freed.get((t, k - 1), [])) if k else sum(kept.get(t, []))
            yield (t, k), U[t, k] == before + outputs

    def budget(self) -> Relations:
        """Memory after a node and its workspace, if it runs, within the budget; without workspace U is bounded."""
        workspace, room = self.problem.workspaces(), self.problem.room
        for (t, k), used in self.U.items():
            if workspace[k]:
                yield (t, k), used + workspace[k] * self.R[t, k] <= room

    def peak_usage(self, peak: Any) -> Relations:
        """Memory after a node and its workspace, if it runs, within the peak."""
        workspace = self.problem.workspaces()
        for (t, k), used in self.U.items():
            yield (t, k), used + workspace[k] * self.R[t, k] <= peak
