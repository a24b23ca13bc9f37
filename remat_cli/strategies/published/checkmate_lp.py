"""Checkmate's polynomial approximation: solve the linear relaxation, round S, and let R follow."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from remat_cli.errors import UsageError
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.mip import Floats
from remat_cli.plan.model import Scope
from remat_cli.solvers.base import Outcome, Termination
from remat_cli.strategies.base import Bound, Context, Found, NotFound, Strategy, Task
from remat_cli.strategies.bounds import safe_bound
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.published.model_size import too_large
from remat_cli.strategies.published.rounding import Relaxation, relaxation

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
