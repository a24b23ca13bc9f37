"""One retention model on its way through a solver: relaxed and rounded, solved, and searched around a schedule."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from remat_cli.control import Control
from remat_cli.errors import LimitReached
from remat_cli.milp.compile import Compiled, append_block
from remat_cli.milp.decode import Decoder, overfull
from remat_cli.milp.event_support import common
from remat_cli.milp.retention import InStageRows, RetentionModel, Support, build, in_stage_rows, support_within
from remat_cli.mip import Bools, Floats, LinearModel, Row
from remat_cli.plan.matrices import least_recomputation_between, matrices_of
from remat_cli.solvers.base import Outcome, SolverProgress
from remat_cli.solvers.checked import as_solved
from remat_cli.solvers.modelfile import write_model
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.retention.ceiling import Cheaper
from remat_cli.tolerances import INNER_GAP, START_VIOLATION

_THRESHOLDS = (0.1, 0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.999)
_ROUNDS = 100
_DIFFER = 0.1
_LEAST_OVERHEAD = 1e-6
"""Overhead, as a share of C0, that the objective is scaled by where no bound tells of more; untuned."""
_NEIGHBOURS = 2
"""In-stage rows are stated for a step over the budget and for as many stages on either side of it."""


@dataclass(slots=True)
class Retention:
    """A compiled retention model that grows in-stage rows where they are needed.

    Attributes:
        incumbent: Gets every schedule that comes up.
        stated: The model as stated.
        compiled: The model as compiled, in-stage rows included.
        depth: Depth of its support; None for the full one.
        relaxed: Solution of the linear relaxation, once it was rounded.
        blocks: The in-stage rows so far.
        cuts: Rows that cut off schedules over the budget by the solver's tolerance.
        solved: The model of the last solve as a whole: windows and relaxations aside.
    """

    incumbent: Incumbent
    stated: RetentionModel
    compiled: Compiled
    depth: float | None = None
    relaxed: Floats | None = None
    blocks: list[InStageRows] = field(default_factory=list)
    cuts: list[Row] = field(default_factory=list)
    solved: LinearModel | None = None

    @classmethod
    def over(cls, incumbent: Incumbent, depth: float | None, *, support: Support | None = None) -> Retention:
        """State and compile the model over a support and the best schedules.

        Args:
            incumbent: Gets the schedules that come up.
            depth: Depth of the support, from which nodes are left out that no cheaper schedule computes again; None
                for the full support.
            support: Support to use instead.

        Raises:
            LimitReached, Interrupted: If the control stops meanwhile, or would before the model is compiled, which
                takes as long again as stating it.
        """
        incumbent.report("building the model")
        began_s = time.monotonic()
        if depth is not None and incumbent.computes is not None:
            cheaper = Cheaper.than_best(incumbent)
            support = common(support_within(cheaper.graph, depth), cheaper.affordable())
        known = [computes for computes in (incumbent.advancing, incumbent.computes) if computes is not None]
        also = [step for computes in known for step in matrices_of(incumbent.graph, computes).computed]
        base = incumbent.graph.total_cost
        # A unit in which the overhead, not the cost, has a size that solvers like.
        unit = max(incumbent.bound.cost - base, _LEAST_OVERHEAD * base) / 100 or 1.0
        control = incumbent.context.control
        stated = build(
            incumbent.graph, incumbent.budget_bytes, depth, control, cost_scale=unit, also=also, support=support
        )
        remaining = control.remaining_s()
        if remaining is not None and remaining < time.monotonic() - began_s:
            raise LimitReached("the time limit came while a model was built", hint="give more time with --time-limit")
        return cls(incumbent, stated, stated.compiled(), depth)

    def holding_best(self) -> Retention:
        """This model, or one over a support that holds the best schedule if this one does not."""
        if self.incumbent.advancing is None or self.start_from_best() is not None:
            return self
        return Retention.over(self.incumbent, self.depth)  # without the relaxation, which takes long to solve

    @property
    def model(self) -> LinearModel:
        """The arrays, with everything stated so far."""
        return self.compiled.model.with_rows(self.cuts)

    def round_relaxation(self, shares: Sequence[float], control: Control) -> None:
        """Solve the linear relaxation, round it at several thresholds and offer the schedules.

        Args:
            shares: Budgets to relax it at, as shares of the real one: rounding needs some slack.
            control: Clock.
        """
        for share in shares:
            if control.stopping():
                return
            model = self.model.relaxed()
            upper = model.row_upper.copy()
            upper[self.compiled.rows_of.get("frontier", np.array([], dtype=np.int64))] -= (1 - share) * self.stated.room
            outcome = self._run(replace(model, row_upper=upper), control, gap=INNER_GAP, listen=False)
            if outcome.values is None:
                return
            if share == 1.0:
                self.relaxed = outcome.values
            for computes in dict.fromkeys(self._rounded(outcome.values, threshold) for threshold in _THRESHOLDS):
                self.incumbent.offer(computes)

    def _rounded(self, values: Floats, threshold: float) -> tuple[int, ...]:
        """The least recomputation for what the relaxation keeps by at least ``threshold``.

        What may be computed only once is kept whatever the values: the clock may have cut the relaxation short.
        """
        graph = self.stated.graph
        once = [not graph.nodes[i].recompute for i in graph.producer]
        enough = [*(values >= threshold).tolist(), False]  # the last for what has no column
        stays = [
            [(gaps.events[k], gaps.events[k + 1]) for k, column in enumerate(columns) if once[v] or enough[column]]
            for v, (gaps, columns) in enumerate(zip(self.stated.gaps, self._kept_columns(), strict=True))
        ]
        end = len(self.incumbent.graph.nodes)
        return tuple(k for k in least_recomputation_between(self.stated.graph, stays) if k < end)

    def _kept_columns(self) -> list[list[int]]:
        """The column of every variable of every value's gaps; -1 where there is none."""
        columns = self.compiled.column_of
        return [columns[list(gaps.kept)].tolist() for gaps in self.stated.gaps]

    def solve(self, control: Control, *, rounds: int = _ROUNDS) -> Outcome | None:
        """Solve the model, stating in-stage rows where its schedules need them, until it ends or time is up.

        Args:
            control: Clock.
            rounds: How often to solve at most.

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
        """Offer a solution; if it is over the budget, state what forbids it. Whether anything was stated."""
        decoder = self.decoder
        chosen = decoder.chosen(values)
        self.incumbent.offer(decoder.computes(chosen))
        steps = overfull(self.stated, chosen)
        if not steps:
            return False
        near = [
            (t + d, k) for t, k in steps for d in range(-_NEIGHBOURS, _NEIGHBOURS + 1) if (t + d, k) in self.stated.R
        ]
        rows = in_stage_rows(self.stated, near)
        if rows is not None:
            self.blocks.append(rows)
            self.compiled = append_block(self.compiled, rows.block)
            return True
        cuts = decoder.cover_cuts(chosen)
        self.cuts += cuts
        return bool(cuts)

    def write(self, path: Path) -> None:
        """Write what the solver got in the last solve as a whole, or would get in the first where there was none.

        Args:
            path: ``.lp`` or ``.mps``.
        """
        model, factor = as_solved(self.model if self.solved is None else self.solved)
        write_model(model, path, note=f"the objective is a cost in units of {self.stated.cost_scale / factor!r}")

    @property
    def decoder(self) -> Decoder:
        """Reads answers of the model as it is now."""
        return Decoder.of(self.stated, self.compiled)

    def improve(self, free: Bools, control: Control) -> bool:
        """Search around the best schedule: everything but the columns in ``free`` stays as it is there.

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
        """Columns in which the linear relaxation and the best schedule differ; None without either."""
        start = self.start_from_best()
        if self.relaxed is None or start is None:
            return None
        differ = np.ones(len(start), dtype=np.bool_)  # columns that came with in-stage rows are free
        differ[: len(self.relaxed)] = np.abs(start[: len(self.relaxed)] - self.relaxed) > _DIFFER
        return differ

    def start_from_best(self) -> Floats | None:
        """The best frontier-advancing schedule as a solution; None if there is none that this support holds."""
        if self.incumbent.advancing is None:
            return None
        values = self.columns_of(self.incumbent.advancing)
        return values if values is not None and self.model.violation(values) <= START_VIOLATION else None

    def _start(self) -> Floats | None:
        """What to start the solver from. Any schedule is a solution while there are neither in-stage rows nor cuts."""
        if not self.blocks and not self.cuts and self.incumbent.computes is not None:
            values = self.columns_of(self.incumbent.computes)
            if values is not None and self.model.violation(values) <= START_VIOLATION:
                return values
        return self.start_from_best()

    def columns_of(self, computes: Sequence[int]) -> Floats | None:
        """A schedule as a solution, perhaps violating rows; None if it recomputes outside the support."""
        stated, columns = self.stated, self.compiled.column_of
        seen = matrices_of(self.incumbent.graph, computes)
        values = np.zeros(self.compiled.model.columns)
        for t, i in seen.computed:
            if t != i:
                var = stated.computed(t, i)
                if var is None:
                    return None
                values[columns[var]] = 1.0
        for v, intervals in enumerate(seen.kept):
            gaps = stated.gaps[v]
            for k, var in enumerate(gaps.kept):
                if any(s <= gaps.events[k] and gaps.events[k + 1] <= e for s, e in intervals):
                    values[columns[var]] = 1.0
        level = 0.0
        for var, changes in stated.running:
            level += sum(size * values[columns[x]] for size, x in changes)
            values[columns[var]] = level
        for block in self.blocks:
            for var, sources in block.levels:
                values[columns[var]] = max(values[columns[s]] for s in sources)
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
            self.incumbent.offer(self.decoder.computes(self.decoder.chosen(incumbent.values)))
        self.incumbent.report(self.incumbent.context.solver.title, incumbent.nodes)
