"""Checkmate's polynomial approximation: solve the linear relaxation, round S, and let R follow."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from remat_cli import running
from remat_cli.control import Control
from remat_cli.errors import UsageError
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.milp import retention
from remat_cli.milp.decode import Stated
from remat_cli.mip import Bools, Floats, Ints, LinearModel
from remat_cli.plan.matrices import least_recomputation_between
from remat_cli.plan.model import Scope
from remat_cli.solvers.base import Outcome, Termination
from remat_cli.strategies.base import Bound, Context, Found, NotFound, Strategy, Task
from remat_cli.strategies.bounds import safe_bound
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.published.model_size import too_large
from remat_cli.tolerances import INNER_GAP

if TYPE_CHECKING:
    from remat_cli.milp.checkmate import CheckmateModel

_THRESHOLDS = (0.5, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9)
_STEP = 0.05
_FURTHER = 2
"""Steps after the first that fits: a smaller budget sometimes rounds to a cheaper schedule. Untuned."""
_HALVINGS = 2
_CHUNK = 4_000_000
"""Entries that are rounded at a time."""


@dataclass(frozen=True, slots=True)
class CheckmateLp(Strategy):
    """Two-phase rounding: S is rounded from the relaxation of the MILP, and R is the least that S needs.

    Rounding takes more memory than the relaxation, which is therefore solved for (1 - epsilon) * budget. Its bound for
    the whole budget holds for all frontier-advancing schedules.

    Attributes:
        epsilon: This share, from 0 to below 1. None searches for one that rounds to a cheap schedule that fits: in
            steps of 0.05 up to a little beyond the first that does, then by halves below that.
        threshold: Values kept by more than that in the relaxation are kept; the paper's choice is 0.5. None tries
            several.
        samples: Round at random instead: so many times per relaxation, each S[t, v] by its value as a probability.
        formulation: Which relaxation: ``checkmate``, the paper's, or ``retention``, which is much smaller.
        direct: Round every entry of R and S by itself (section 5.1): above the threshold, 0.5 by default, or at random.
            Hardly any such rounding is a schedule. Nothing is held back unless epsilon says so.
    """

    epsilon: float | None = field(
        default=None, metadata={"help": "share of the budget held back, 0 <= epsilon < 1; none: a small one that works"}
    )
    threshold: float | None = field(
        default=None, metadata={"help": "keep what the relaxation keeps by more than that; none: tries several"}
    )
    samples: int = field(
        default=0, metadata={"help": "round at random, so many times per relaxation; 0: at thresholds"}
    )
    formulation: str = field(
        default="checkmate",
        metadata={"choices": ("checkmate", "retention"), "help": "checkmate: the paper's; retention: much smaller"},
    )

    direct: bool = field(
        default=False, metadata={"help": "round R too, entry by entry, as the paper shows not to work"}
    )

    name: ClassVar[str] = "checkmate-lp"
    summary: ClassVar[str] = "round the linear relaxation of the Checkmate MILP, then recompute the least"
    reference: ClassVar[str] = "Jain et al., Checkmate, MLSys 2020, section 5"
    uses_solver: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse option values out of range."""
        if self.epsilon is not None and not 0 <= self.epsilon < 1:
            raise UsageError(f"checkmate-lp{{epsilon={self.epsilon:g}}}: epsilon is a share of the budget below 1")
        if self.threshold is not None and not 0 <= self.threshold < 1:
            raise UsageError(f"checkmate-lp{{threshold={self.threshold:g}}}: a threshold is from 0 to below 1")
        if self.samples < 0:
            raise UsageError(f"checkmate-lp{{samples={self.samples}}}: there are no fewer samples than 0")
        if self.samples and self.threshold is not None:
            raise UsageError(
                "checkmate-lp rounds either at a threshold or at random", hint="leave out threshold or samples"
            )
        if self.direct and self.formulation != "checkmate":
            raise UsageError(
                "checkmate-lp rounds R directly in the paper's formulation only", hint="leave out direct or formulation"
            )

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Relax and round, with growing epsilon until a schedule fits."""
        large = too_large(task.graph, context.control) if self.formulation == "checkmate" else None
        if large is not None:
            return large
        budget = no_remat_peak(task.graph) if task.budget_bytes is None else task.budget_bytes
        incumbent = Incumbent.empty(Task(task.graph, budget), context)
        incumbent.crediting = ("", True)
        incumbent.report("building the model")
        search = _Search(self, incumbent, relaxation(task.graph, budget, self.formulation, context.control), budget)
        search.run()
        if task.budget_bytes is None:  # where nodes cost nothing, a rounding may recompute more than fits
            incumbent.offer(range(len(task.graph.nodes)))
        if search.impossible and incumbent.computes is None:
            return _nothing_fits(Task(task.graph, budget), incumbent)
        if self.direct and incumbent.computes is None and search.rounded:
            return incumbent.not_found(
                f"{search.rounded - search.schedules} of {search.rounded} direct roundings are no schedules, as rows "
                "(1b) and (1c) have it, and no other fits",
                Scope.RESTRICTED,
            )
        return incumbent.answer(self.name)


def _nothing_fits(task: Task, incumbent: Incumbent) -> Found | NotFound:
    """The answer when a solver says that not even the relaxation has a solution: a cross-check may refute it."""
    from remat_cli.strategies.retention.proof import cross_check

    context, reason = incumbent.context, "no frontier-advancing schedule fits"
    incumbent.report("checking the answer by another formulation")
    check = cross_check(task, context, context.control)
    if check.schedule is not None and incumbent.offer(check.schedule.computes):
        return incumbent.found(exhausted=False)
    return NotFound(
        reason if check.impossible else f"according to {context.solver.title} alone, {reason}", scope=Scope.FRONTIER
    )


@dataclass(slots=True)
class _Search:
    """The search for an epsilon.

    Attributes:
        strategy: Its options.
        incumbent: Gets every schedule.
        whole: The relaxation for the whole budget.
        budget: Bytes, fixed memory included.
        impossible: Whether not even the relaxation for the whole budget has a solution.
        rounded: Direct roundings so far.
        schedules: Those of them that are schedules, whatever memory they need.
    """

    strategy: CheckmateLp
    incumbent: Incumbent
    whole: Relaxation
    budget: int
    impossible: bool = False
    rounded: int = 0
    schedules: int = 0

    def run(self) -> None:
        """Try the given epsilon, or search for one."""
        if self.strategy.direct:
            self._round(self.strategy.epsilon or 0.0)
            return
        if self.strategy.epsilon is not None:
            self._round(self.strategy.epsilon)
            return
        fitting: list[float] = []
        for step in range(round(1 / _STEP)):
            epsilon = round(step * _STEP, 9)
            fits = self._round(epsilon)
            if fits is None or self.incumbent.over():
                break
            if fits or fitting:
                fitting.append(epsilon)
            if len(fitting) > _FURTHER:
                break
        if not fitting or not fitting[0]:
            return
        below, above = fitting[0] - _STEP, fitting[0]
        for _ in range(_HALVINGS):
            if self.incumbent.over():
                return
            middle = (below + above) / 2
            below, above = (below, middle) if self._round(middle) else (middle, above)

    def _round(self, epsilon: float) -> bool | None:
        """Whether a schedule rounded at ``epsilon`` fits; None if there is nothing to round."""
        context = self.incumbent.context
        # The relaxation may have a solution below the largest working set: only a schedule needs that much.
        less = int((1 - epsilon) * self.budget)
        self.incumbent.report("solving the relaxation")
        relaxed = self.whole.for_budget(less) if epsilon else self.whole
        outcome = relaxed.solve(context)
        if not epsilon:
            self._learn(outcome)
        if outcome.termination is not Termination.OPTIMAL or outcome.values is None:
            return None
        if self.strategy.direct:
            return self._direct(relaxed, outcome.values)
        fits = False
        if self.strategy.samples:
            rng = random.Random(f"{context.seed} {epsilon}")
            for _ in range(self.strategy.samples):
                fits |= self.incumbent.offer(relaxed.sampled(outcome.values, rng), self._maker(epsilon, None))
                if context.control.stopping():
                    break
            return fits
        thresholds = _THRESHOLDS if self.strategy.threshold is None else (self.strategy.threshold,)
        for threshold in thresholds:
            fits |= self.incumbent.offer(relaxed.rounded(outcome.values, threshold), self._maker(epsilon, threshold))
        return fits

    def _direct(self, relaxed: Relaxation, values: Floats) -> bool:
        """Whether a direct rounding is a schedule that fits."""
        entries, control = relaxed.entries, self.incumbent.context.control
        assert entries is not None
        again, stays = entries.levels(values)
        samples, threshold = self.strategy.samples, self.strategy.threshold
        rng = np.random.default_rng(self.incumbent.context.seed)
        size = max(1, min(samples, _CHUNK // (again.size + stays.size)))
        fits = False
        for first in range(0, samples or 1, size):
            if control.stopping():
                break
            count = min(size, samples - first) if samples else 1
            cut = 0.5 if threshold is None else threshold
            computed, kept = (
                (rng.random((count, *level.shape)) if samples else np.full((1, *level.shape), cut)) < level
                for level in (again, stays)
            )
            broken = entries.broken(computed, kept)
            for k in np.flatnonzero(broken == 0):
                self.schedules += 1
                fits |= self.incumbent.offer(entries.computes(computed[k], relaxed.nodes))
            self.rounded += count
        return fits

    def _learn(self, outcome: Outcome) -> None:
        """Take the result of the relaxation for the whole budget: a bound, or a proof that nothing fits."""
        self.impossible = outcome.termination is Termination.INFEASIBLE
        if outcome.termination is Termination.OPTIMAL and outcome.bound is not None:
            bound = safe_bound(self.incumbent.graph, outcome.bound * self.whole.cost_scale)
            self.incumbent.raise_bound(Bound(bound, Scope.FRONTIER))

    def _maker(self, epsilon: float, threshold: float | None) -> str:
        """Text form of the strategy with the options that were chosen; empty where none were."""
        chosen = self.strategy
        if chosen.epsilon is not None and (chosen.samples or chosen.threshold is not None):
            return ""
        options = [f"epsilon={epsilon!r}"]
        options += [f"samples={chosen.samples}"] if threshold is None else [f"threshold={threshold!r}"]
        options += [] if chosen.formulation == "checkmate" else [f"formulation={chosen.formulation}"]
        return f"{chosen.name}{{{','.join(options)}}}"


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
