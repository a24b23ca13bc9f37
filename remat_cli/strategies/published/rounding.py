"""The linear relaxation of a model over R and S at budgets below the real one, and schedules rounded from it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from remat_cli import running
from remat_cli.control import Control
from remat_cli.graph.model import Graph
from remat_cli.milp import retention
from remat_cli.milp.decode import Stated
from remat_cli.mip import Bools, Floats, Ints, LinearModel
from remat_cli.plan.matrices import least_recomputation_between
from remat_cli.solvers.base import Outcome
from remat_cli.strategies.base import Context
from remat_cli.tolerances import INNER_GAP

if TYPE_CHECKING:
    from remat_cli.milp.checkmate import CheckmateModel

_NEVER, _ALWAYS = -1, -2


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Where R and S stand in a solution of the frontier-advancing form.

    Attributes:
        graph: The graph, with its closing node if it needs one.
        computed: int64[n, n], the column of R[t, k]; -1 for a constant 0, -2 for a constant 1.
        kept: int64[n, values], the same of S[t, v].
    """

    graph: Graph
    computed: Ints
    kept: Ints

    @classmethod
    def of(cls, stated: CheckmateModel) -> Entries:
        """The entries of a model."""
        graph = stated.graph
        n = len(graph.nodes)
        computed = np.full((n, n), _NEVER, dtype=np.int64)
        kept = np.full((n, len(graph.size)), _NEVER, dtype=np.int64)
        for matrix, columns in ((computed, stated.R), (kept, stated.S)):
            for place, column in columns.items():
                matrix[place] = column
        for place in stated.always:
            computed[place] = _ALWAYS
        return cls(graph, computed, kept)

    def levels(self, values: Floats) -> tuple[Floats, Floats]:
        """R* and S* of a solution: float64[n, n] and float64[n, values]."""
        padded = np.append(values, [1.0, 0.0])  # columns -2 and -1
        return padded[self.computed], padded[self.kept]

    def broken(self, computed: Bools, kept: Bools) -> Ints:
        """How many of the rows (1b) and (1c) each rounding violates.

        Args:
            computed: bool[samples, n, n], R rounded.
            kept: bool[samples, n, values], S rounded.

        Returns:
            int64[samples].
        """
        graph = self.graph
        maker = np.array(graph.producer, dtype=np.int64)
        reads = [(v, k) for v, readers in enumerate(graph.readers) for k in readers]
        values, readers = np.array(reads, dtype=np.int64).reshape(-1, 2).T
        there = computed[:, :, maker] | kept
        unread = computed[:, :, readers] & ~there[:, :, values]
        unkept = kept[:, 1:] & ~there[:, :-1]
        counts: Ints = unread.sum(axis=(1, 2)) + unkept.sum(axis=(1, 2))
        return counts

    def computes(self, computed: Bools, nodes: int) -> tuple[int, ...]:
        """The schedule of one rounding of R, row by row, without the closing node."""
        return tuple(int(k) for _, k in np.argwhere(computed) if k < nodes)


@dataclass(frozen=True, slots=True)
class Relaxation:
    """A compiled relaxation for some budget.

    Attributes:
        graph: The graph, with its closing node if it needs one.
        nodes: Nodes without it.
        model: The arrays, relaxed.
        cost_scale: Unit of the objective.
        columns: For every value the columns of S[t, v] for t from its maker's stage + 1 on; -1 where there is none.
        for_budget: The same relaxation for other bytes, fixed memory included.
        entries: Where R and S stand, for direct rounding; None in the retention model, which has not all of them.
    """

    graph: Graph
    nodes: int
    model: LinearModel
    cost_scale: float
    columns: tuple[Ints, ...]
    for_budget: Callable[[int], Relaxation]
    entries: Entries | None = None

    def solve(self, context: Context) -> Outcome:
        """Solve it."""
        return context.solver.solve(context.request(self.model, context.control, gap=INNER_GAP))

    def rounded(self, values: Floats, threshold: float) -> tuple[int, ...]:
        """S is 1 where S* is above ``threshold``; R follows (Checkmate, Algorithm 2)."""
        return self._schedule(values, lambda levels: levels > threshold)

    def sampled(self, values: Floats, rng: random.Random) -> tuple[int, ...]:
        """Every S[t, v] is 1 with probability S*[t, v]; R follows (Checkmate, section 5.1)."""
        return self._schedule(values, lambda levels: np.array([rng.random() < p for p in levels], dtype=np.bool_))

    def _schedule(self, values: Floats, choose: Callable[[Floats], Bools]) -> tuple[int, ...]:
        kept: list[list[tuple[int, int]]] = []
        end = len(self.graph.nodes)
        padded = np.append(values, 0.0)  # column -1
        for v, columns in enumerate(self.columns):
            i = self.graph.producer[v]
            if not self.graph.nodes[i].recompute:
                kept.append([(i, end)])
                continue
            chosen = np.concatenate([[False], choose(padded[columns]), [False]])
            turns = np.flatnonzero(chosen[1:] != chosen[:-1])
            kept.append([(i + int(a), i + int(b)) for a, b in zip(turns[::2], turns[1::2], strict=True)])
        return tuple(k for k in least_recomputation_between(self.graph, kept) if k < self.nodes)


def relaxation(graph: Graph, budget_bytes: int, formulation: str, control: Control) -> Relaxation:
    """State, compile and relax a model.

    Args:
        graph: The graph.
        budget_bytes: Fixed memory included.
        formulation: ``checkmate`` for the paper's eq. 9, ``retention`` for one that is much smaller.
        control: Clock.

    Raises:
        LimitReached, Interrupted: If the control stops meanwhile.
    """
    make = _checkmate if formulation == "checkmate" else _retention
    try:
        # The clock is not checked while a model of Pyomo is compiled.
        return running.run(lambda: make(graph, budget_bytes, control), control, grace_s=0.0)
    except running.Abandoned:
        control.check()
        raise


def _columns(stated: Stated) -> tuple[Ints, ...]:
    """See :class:`Relaxation`."""
    columns = []
    for v, i in enumerate(stated.graph.producer):
        kept = (stated.kept(t, v) for t in range(i + 1, len(stated.graph.nodes)))
        columns.append(np.array([-1 if column is None else column for column in kept], dtype=np.int64))
    return tuple(columns)


def _checkmate(graph: Graph, budget_bytes: int, control: Control) -> Relaxation:
    """The paper's formulation; the budget bounds U, and the rows for workspace."""
    from remat_cli.milp.checkmate import Formulation, build  # loads Pyomo, which the retention formulation does without

    stated = build(graph, budget_bytes, Formulation(), control)
    model, columns, entries = stated.model.relaxed(), _columns(stated), Entries.of(stated)
    fixed = graph.fixed_memory
    used = np.array(list(stated.U.values()), dtype=np.int64)

    def for_budget(other_bytes: int) -> Relaxation:
        # Rows are shifted, not set: if a node always runs, its workspace was subtracted from their right-hand side.
        change = stated.memory.down(other_bytes - fixed) - stated.memory.down(budget_bytes - fixed)
        upper, row_upper = model.upper.copy(), model.row_upper.copy()
        upper[used] += change
        row_upper[stated.budget_rows] += change
        other = replace(model, upper=upper, row_upper=row_upper)
        return Relaxation(stated.graph, len(graph.nodes), other, stated.cost_scale, columns, for_budget, entries)

    return Relaxation(stated.graph, len(graph.nodes), model, stated.cost_scale, columns, for_budget, entries)


def _retention(graph: Graph, budget_bytes: int, control: Control) -> Relaxation:
    """The retention formulation over its full support, frontier rows only."""
    stated = retention.build(graph, budget_bytes, None, control, cost_scale=graph.total_cost or 1.0)
    return Relaxation(
        stated.graph,
        len(graph.nodes),
        stated.model().relaxed(),
        stated.cost_scale,
        _columns(stated),
        lambda other_bytes: relaxation(graph, other_bytes, "retention", control),
    )
