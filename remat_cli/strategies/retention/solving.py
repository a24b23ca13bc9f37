"""Solves one retention model: relax and round, solve with rows on demand, search a neighbourhood."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from remat_cli.control import Control
from remat_cli.milp.decode import Decoder, overfull
from remat_cli.milp.in_stage_rows import InStageRows, in_stage_rows
from remat_cli.milp.retention import RetentionModel, build
from remat_cli.milp.support import Support, common, support_within
from remat_cli.mip import Block, Bools, Floats, LinearModel, Row
from remat_cli.plan.matrices import least_recomputation_between, matrices_of
from remat_cli.solvers.base import Outcome, SolverProgress
from remat_cli.solvers.checked import as_solved
from remat_cli.solvers.modelfile import write_model
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.retention.reduced_cost import Cheaper
from remat_cli.tolerances import INNER_GAP, START_VIOLATION

# Halving and doubling all of these together changes the gap by less than its noise (benchmark ``ablation``).
_THRESHOLDS = (0.1, 0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.999)
"""Rounding thresholds: a low one keeps more and recomputes less."""
_ROUNDS = 100
"""Solves between which in-stage rows are stated."""
_DIFFER = 0.1
"""Difference between relaxation and incumbent that frees a column in a window."""
_LEAST_OVERHEAD = 1e-6
"""Overhead, as a share of C0, to scale the objective by if no bound gives a larger one."""
NEIGHBOURS = 2
"""In-stage rows are stated for a step over the budget and as many stages on either side of it."""


@dataclass(slots=True)
class Retention:
    """A retention model whose in-stage rows are stated only when a solution violates them.

    Attributes:
        incumbent: Gets every schedule found.
        stated: The model as stated.
        stating: The model as arrays, in-stage rows included.
        depth: Depth of its support; None for the full one.
        relaxed: Solution of the linear relaxation; None before it is solved.
        blocks: The in-stage rows so far.
        cuts: Rows that cut off schedules which exceed the budget only within the solver's tolerance.
        solved: The model of the last whole solve; windows and relaxations do not count.
    """

    incumbent: Incumbent
    stated: RetentionModel
    stating: LinearModel
    depth: float | None = None
    relaxed: Floats | None = None
    blocks: list[InStageRows] = field(default_factory=list)
    cuts: list[Row] = field(default_factory=list)
    solved: LinearModel | None = None

    @classmethod
    def over(cls, incumbent: Incumbent, depth: float | None, *, support: Support | None = None) -> Retention:
        """State the model over a support and the recomputations of the incumbent.

        Args:
            incumbent: Gets the schedules found.
            depth: Depth of the support; it excludes nodes that no cheaper schedule recomputes. None for the full
                support.
            support: Support to use instead.

        Raises:
            LimitReached, Interrupted: If the control stops meanwhile.
        """
        incumbent.report("building the model")
        if depth is not None and incumbent.computes is not None:
            cheaper = Cheaper.than_best(incumbent)
            support = common(support_within(cheaper.graph, depth), cheaper.affordable())
        schedules = [computes for computes in (incumbent.advancing, incumbent.computes) if computes is not None]
        also = [step for computes in schedules for step in matrices_of(incumbent.graph, computes).computed]
        base = incumbent.graph.total_cost
        # Solvers stop at absolute tolerances, and what is to be minimised is the overhead, a small part of the cost. In
        # this unit the bound's overhead is 100.
        unit = max(incumbent.bound.cost - base, _LEAST_OVERHEAD * base) / 100 or 1.0
        control = incumbent.context.control
        stated = build(
            incumbent.graph, incumbent.budget_bytes, depth, control, cost_scale=unit, also=also, support=support
        )
        return cls(incumbent, stated, stated.model(), depth)

    def holding_best(self) -> Retention:
        """This model if its support holds the incumbent, else one whose support does."""
        if self.incumbent.advancing is None or self.start_from_best() is not None:
            return self
        return Retention.over(self.incumbent, self.depth)  # its relaxation stays unsolved: that takes long

    @property
    def model(self) -> LinearModel:
        """The model as arrays, with all rows stated so far."""
        return self.stating.with_rows(self.cuts)

    def round_relaxation(self, shares: Sequence[float], control: Control) -> None:
        """Solve the linear relaxation, round it at several thresholds and propose the schedules.

        Args:
            shares: Budgets for the relaxation, as shares of the real one: rounding needs some slack.
            control: Clock.
        """
        for share in shares:
            if control.stopping():
                return
            model = self.model.relaxed()
            upper = model.row_upper.copy()
            upper[self.stated.frontier.start : self.stated.frontier.stop] -= (1 - share) * self.stated.room
            outcome = self._run(replace(model, row_upper=upper), control, gap=INNER_GAP, listen=False)
            if outcome.values is None:
                return
            if share == 1.0:
                self.relaxed = outcome.values
            for computes in dict.fromkeys(self._rounded(outcome.values, threshold) for threshold in _THRESHOLDS):
                self.incumbent.propose(computes)

    def _rounded(self, values: Floats, threshold: float) -> tuple[int, ...]:
        """The least recomputation if every value is kept whose column is at least ``threshold``.

        Values of nodes that run only once are always kept: if the clock stopped the relaxation, it may not keep them.
        """
        graph = self.stated.graph
        once = [not graph.nodes[i].recompute for i in graph.producer]
        enough = (values >= threshold).tolist()
        stays = [
            [(gaps.events[k], gaps.events[k + 1]) for k, column in enumerate(gaps.kept) if once[v] or enough[column]]
            for v, gaps in enumerate(self.stated.gaps)
        ]
        end = len(self.incumbent.graph.nodes)
        return tuple(k for k in least_recomputation_between(self.stated.graph, stays) if k < end)

    def solve(self, control: Control, *, rounds: int = _ROUNDS) -> Outcome | None:
        """Solve the model and state the in-stage rows that its solution violates, until it violates none.

        Args:
            control: Clock.
            rounds: Most solves.

        Returns:
            The last outcome: ``OPTIMAL`` or ``INFEASIBLE`` if this support is exhausted.
        """
        outcome = None
        for _ in range(rounds):
            if control.stopping():
                break
            start = self._start()
            self.solved = self.model
            outcome = self._run(self.solved, control, start=start)
            if outcome.values is None or not self._refine(outcome.values):
                break
        return outcome

    def _refine(self, values: Floats) -> bool:
        """Propose a solution; if it exceeds the budget, state rows that cut it off. Whether rows were stated."""
        decoder = self.decoder
        chosen = decoder.chosen(values)
        self.incumbent.propose(decoder.computes(chosen))
        steps = overfull(self.stated, chosen)
        if not steps:
            return False
        near = [(t + d, k) for t, k in steps for d in range(-NEIGHBOURS, NEIGHBOURS + 1) if (t + d, k) in self.stated.R]
        rows = in_stage_rows(self.stated, near)
        if rows is not None:
            self.blocks.append(rows)
            self.append(rows.block)
            return True
        # All rows of these steps are stated, so the excess is within the solver's tolerance. Only a cut with integer
        # coefficients excludes that.
        cuts = decoder.cover_cuts(chosen)
        self.cuts += cuts
        return bool(cuts)

    def append(self, block: Block) -> None:
        """Append rows and the columns that they need."""
        self.stating = self.stating.with_block(block, self.stated.names(block.first + block.added))

    def write(self, path: Path) -> None:
        """Write the model of the last whole solve, or of the first one if there was none.

        Args:
            path: ``.lp`` or ``.mps``.
        """
        model, factor = as_solved(self.model if self.solved is None else self.solved)
        write_model(model, path, note=f"the objective is a cost in units of {self.stated.cost_scale / factor!r}")

    @property
    def decoder(self) -> Decoder:
        """Reads solutions of the model in its current state."""
        return Decoder.of(self.stated)

    def improve(self, free: Bools, control: Control) -> bool:
        """Search a neighbourhood of the incumbent: all integer columns but those in ``free`` are fixed to its values.

        Returns:
            Whether a better schedule was found.
        """
        start = self.start_from_best()
        if start is None:
            return False
        model = self.model
        hold = ~free & model.integer
        lower = np.where(hold, start, model.lower)
        upper = np.where(hold, start, model.upper)
        before = self.incumbent.advancing_cost
        outcome = self._run(replace(model, lower=lower, upper=upper), control, start=start, listen=False)
        if outcome.values is not None:
            self._refine(outcome.values)
        return self.incumbent.advancing_cost < before

    def undecided(self) -> Bools | None:
        """Columns in which the linear relaxation and the incumbent differ; None if one of them is missing."""
        start = self.start_from_best()
        if self.relaxed is None or start is None:
            return None
        differ = np.ones(len(start), dtype=np.bool_)  # columns of in-stage rows, which the relaxation lacked, are free
        differ[: len(self.relaxed)] = np.abs(start[: len(self.relaxed)] - self.relaxed) > _DIFFER
        return differ

    def start_from_best(self) -> Floats | None:
        """The best frontier-advancing schedule as a solution; None if there is none or the support does not hold it."""
        if self.incumbent.advancing is None:
            return None
        values = self.columns_of(self.incumbent.advancing)
        return values if values is not None and self.model.violation(values) <= START_VIOLATION else None

    def _start(self) -> Floats | None:
        """The start for the solver. Without in-stage rows and cuts every schedule is a solution."""
        if not self.blocks and not self.cuts and self.incumbent.computes is not None:
            values = self.columns_of(self.incumbent.computes)
            if values is not None and self.model.violation(values) <= START_VIOLATION:
                return values
        return self.start_from_best()

    def columns_of(self, computes: Sequence[int]) -> Floats | None:
        """A schedule as a point of the model, which may violate rows; None if it recomputes outside the support."""
        stated = self.stated
        matrices = matrices_of(self.incumbent.graph, computes)
        values = np.zeros(self.stating.columns)
        for t, i in matrices.computed:
            if t != i:
                var = stated.computed(t, i)
                if var is None:
                    return None
                values[var] = 1.0
        for v, intervals in enumerate(matrices.kept):
            gaps = stated.gaps[v]
            for k, var in enumerate(gaps.kept):
                if any(s <= gaps.events[k] and gaps.events[k + 1] <= e for s, e in intervals):
                    values[var] = 1.0
        level = 0.0
        for var, changes in stated.running:
            level += sum(size * values[x] for size, x in changes)
            values[var] = level
        for block in self.blocks:
            for var, sources in block.levels:
                values[var] = max(values[s] for s in sources)
        return values

    def _run(
        self,
        model: LinearModel,
        control: Control,
        *,
        start: Floats | None = None,
        gap: float | None = None,
        listen: bool = True,
    ) -> Outcome:
        context = self.incumbent.context
        least = min(context.gap / 4, INNER_GAP) if gap is None else gap
        listener = self._listen if listen else None
        return context.solver.solve(context.request(model, control, gap=least, start=start, on_progress=listener))

    def _listen(self, incumbent: SolverProgress) -> None:
        if incumbent.values is not None:
            self.incumbent.propose(self.decoder.computes(self.decoder.chosen(incumbent.values)))
        self.incumbent.report(self.incumbent.context.solver.title, incumbent.nodes)
