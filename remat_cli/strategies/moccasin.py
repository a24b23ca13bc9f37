"""The cheapest schedule with few computations per node, by constraint programming on retention intervals."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from remat_cli.errors import SolverUnavailable, UsageError
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.plan.derive import peak, prune
from remat_cli.plan.model import Scope
from remat_cli.solvers.base import Termination
from remat_cli.strategies._best import Best
from remat_cli.strategies.base import Bound, Context, Found, NotFound, Strategy, Task

if TYPE_CHECKING:
    from remat_cli.strategies._intervals import IntervalModel

_EXPLAIN_S = 30.0
"""Longest time spent on finding out which budget would do, once the one asked for is known not to."""
_ROUNDING = 1e-9
"""What sums of floats may be off by, relative to the total cost."""


@dataclass(frozen=True, slots=True)
class Moccasin(Strategy):
    """Start, end and presence of every instance of a value, solved by CP-SAT.

    Attributes:
        instances: How often a node may be computed in all.
        hint: Bring down the peak of a known schedule first, and start the search for the cheapest one from there. False
            searches for the cheapest one at once, without a start.
    """

    instances: int = field(default=2, metadata={"help": "how often a node may be computed in all"})
    hint: bool = field(default=True, metadata={"help": "first look for any schedule that fits, and start from it"})

    name: ClassVar[str] = "moccasin"
    summary: ClassVar[str] = "the optimal schedule with few computations per node, by CP-SAT on retention intervals"
    reference: ClassVar[str] = "Bartan et al., Moccasin, ICML 2023"

    def __post_init__(self) -> None:
        """Refuse option values that mean nothing."""
        if self.instances < 1:
            raise UsageError(f"moccasin{{instances={self.instances}}}: every node is computed at least once")

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """State the model, bring the peak down to the budget, and then the cost."""
        own = replace(context, publish=lambda found: context.publish(replace(found, used_solver=False)))
        best = Best.of(task, own)
        if best.tight():
            return replace(best.found(exhausted=True), used_solver=False)
        bound = peak_bound(task.graph)
        if best.budget_bytes < bound.bytes:
            return NotFound("no schedule fits", Scope.ANY_ORDER, peak_bound_bytes=bound.bytes)
        _require_ortools()
        answer = _Run.start(self, task, best).search(hint=self.hint)
        return replace(answer, used_solver=False) if isinstance(answer, Found) else answer


def _require_ortools() -> None:
    """See that CP-SAT is there, before anything imports the module that needs it.

    Raises:
        SolverUnavailable: If it is not.
    """
    try:
        import ortools.sat.python.cp_model  # noqa: F401  # only to see that it is there
    except ImportError as error:
        raise SolverUnavailable(
            f"strategy moccasin needs CP-SAT, and ortools cannot be imported: {error}",
            hint="pip install 'remat[cpsat]'",
        ) from None


@dataclass(slots=True)
class _Run:
    """One model on its way through CP-SAT.

    Attributes:
        best: Gets every schedule and bound.
        model: The model.
        scope: The schedules that the model holds.
        reason: Why there is none, should CP-SAT prove it.
        seed: The schedule to start from, one that the model holds: the cheapest within the budget, or else the one with
            the lowest peak.
        patience_ends_s: When to stop looking for a budget that would do; set once the one asked for is known not to.
    """

    best: Best
    model: IntervalModel
    scope: Scope
    reason: str
    seed: tuple[int, ...]
    patience_ends_s: float = math.inf

    @classmethod
    def start(cls, strategy: Moccasin, task: Task, best: Best) -> _Run:
        """State the model and choose where to start."""
        from remat_cli.strategies._intervals import IntervalModel, instance_counts

        graph, most = best.graph, strategy.instances
        best.report("building the model")
        peak_bytes = max(best.budget_bytes, no_remat_peak(graph))
        model = IntervalModel.build(graph, best.budget_bytes, peak_bytes, most, best.context.control)
        whole = instance_counts(graph, most) == instance_counts(graph, len(graph.nodes) + 1)
        times = "1 computation" if most == 1 else f"{most} computations"
        limited = "" if whole else f" with at most {times} per node"
        scope = Scope.FRONTIER if whole else Scope.RESTRICTED
        # There from the start, so that no thread adds a scope while another goes through them.
        best.raise_bound(Bound(graph.total_cost, scope))
        run = cls(best, model, scope, f"no frontier-advancing schedule{limited} fits", tuple(range(len(graph.nodes))))
        for schedule in () if task.known is None else task.known.schedules:
            run.consider(schedule.computes)
        return run

    def consider(self, computes: Sequence[int]) -> None:
        """Look at a schedule: it may be the best, and the one to start from."""
        self.best.offer(computes)
        pruned = prune(self.best.graph, computes)
        if self.model.holds(pruned) and self._rank(pruned) < self._rank(self.seed):
            self.seed = pruned

    def _rank(self, computes: tuple[int, ...]) -> tuple[int, float]:
        """Bytes over the budget, and then the cost."""
        graph = self.best.graph
        over = max(0, peak(graph, computes) - self.best.budget_bytes)
        return over, math.fsum(graph.nodes[k].cost for k in computes)

    @property
    def fits(self) -> bool:
        """Whether the schedule to start from is within the budget."""
        return self._rank(self.seed)[0] == 0

    def search(self, *, hint: bool) -> Found | NotFound:
        """Both phases; or the second alone, without a start."""
        best = self.best
        if hint and not self.fits and not best.over():
            refusal = self._lower_peak()
            if refusal is not None:
                return refusal
        if not best.over():
            self._lower_cost(hint=hint)
        if best.computes is not None:
            return best.found(exhausted=best.proven() or not best.context.control.stopping())
        if math.isinf(best.bounds[self.scope].cost):
            return best.not_found(self.reason, self.scope)
        return best.not_found("the limit came before CP-SAT found a schedule that fits")

    def _lower_peak(self) -> NotFound | None:
        """Phase one: the lowest peak, but no lower than the budget. The answer, if that proves that nothing fits."""
        model, best = self.model, self.best
        model.lower_peak()
        _, bound = self._solve("CP-SAT: lowering the peak", self._hear_of_peak, self._low_enough, gap=0.0)
        if self.fits or bound is None or bound <= model.room:
            return None
        best.raise_bound(Bound(math.inf, self.scope))
        if best.computes is not None:  # known before, and not a schedule of the model
            return None
        least = best.graph.fixed_memory + math.ceil(bound - 0.5) * model.unit_bytes
        return replace(best.not_found(self.reason, self.scope), peak_bound_bytes=least)

    def _hear_of_peak(self, bound: float) -> None:
        if bound > self.model.room:
            self.patience_ends_s = min(self.patience_ends_s, time.monotonic() + _EXPLAIN_S)

    def _low_enough(self) -> bool:
        return self.fits or time.monotonic() >= self.patience_ends_s

    def _lower_cost(self, *, hint: bool) -> None:
        """Phase two: the lowest cost within the budget."""
        model, best = self.model, self.best
        model.lower_cost()
        gap = best.context.gap * best.graph.total_cost / model.scale.unit
        ended, bound = self._solve("CP-SAT", self._hear_of_cost, best.over, gap=gap, hint=hint and self.fits)
        if ended is Termination.INFEASIBLE:
            best.raise_bound(Bound(math.inf, self.scope))
        elif bound is not None:
            self._hear_of_cost(bound)

    def _hear_of_cost(self, bound: float) -> None:
        self.best.raise_bound(Bound(self._safe(bound), self.scope))
        self.best.report("CP-SAT")

    def _safe(self, bound: float) -> float:
        """A bound of CP-SAT, which counts in whole units, in the graph's cost unit."""
        total, scale = self.best.graph.total_cost, self.model.scale
        units = max(0, math.ceil(bound - 0.5))
        return total + units * scale.unit if scale.exact else max(total, (total + units * scale.unit) * (1 - _ROUNDING))

    def _solve(
        self,
        activity: str,
        on_bound: Callable[[float], None],
        enough: Callable[[], bool],
        *,
        gap: float,
        hint: bool = True,
    ) -> tuple[Termination, float | None]:
        """Run CP-SAT on the model as it is."""
        from remat_cli.strategies._cpsat import Listener, minimise

        best, model = self.best, self.model

        def hear(value: Callable[[Any], int]) -> None:
            self.consider(model.computes(value))
            best.report(activity)

        model.forget_hint()
        if hint:
            model.hint(self.seed, peak(best.graph, self.seed))
        best.report(activity)
        return minimise(model.model, best.context, Listener(hear, on_bound, enough), gap=gap)
