"""Optimal schedules by the retention MILP over a growing support, with bounds that hold beyond it."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from remat_cli.errors import UsageError
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.milp.cover_bound import least_peak as least_cover_peak
from remat_cli.mip import Bools
from remat_cli.plan.model import Scope
from remat_cli.solvers.base import Outcome, Termination
from remat_cli.solvers.modelfile import write_model
from remat_cli.strategies._best import Best
from remat_cli.strategies._retention import Retention, exhausted
from remat_cli.strategies.base import Context, Found, NotFound, Schedule, Strategy, Task
from remat_cli.strategies.bounds import Bound, cover_bound, safe_bound, shortened

_DEPTHS = (1.0, 3.0, 6.0)
_SHARES = (1.0, 0.98, 0.95, 0.9, 0.8)
_FULL_LIMIT = 40_000
"""Largest number of (stage, node) pairs for which the model over the full support is tried."""
_MODEL_LIMIT = 150_000
"""Largest number of columns that a growing support may have."""
_BOUND_S = 20.0
_SLICE_S = 30.0
_POLISH_S = 3.0
_WINDOW_S = 5.0
_PATIENCE = 12
"""Windows in a row without an improvement after which the search ends when there is no time limit."""


@dataclass(frozen=True, slots=True)
class Optimal(Strategy):
    """The retention MILP: proves optimality where the paper's MILP finds nothing, and says how far it got elsewhere.

    Attributes:
        depth: Support to use: how far from its uses a node may be computed again. 0 lets it grow.
    """

    depth: float = field(default=0.0, metadata={"help": "how far from its uses a node may be recomputed; 0: grow"})

    name: ClassVar[str] = "optimal"
    summary: ClassVar[str] = "the optimal schedule, by the retention MILP over a growing support"
    reference: ClassVar[str] = ""
    uses_solver: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse a depth that means nothing."""
        if not 0 <= self.depth < math.inf:
            raise UsageError(f"optimal{{depth={self.depth:g}}}: the depth must be 0 or more")

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Bound, start, and solve over larger and larger supports until the bound is met."""
        graph = task.graph
        budget = no_remat_peak(graph) if task.budget_bytes is None else task.budget_bytes
        best = Best(graph, budget, context, Bound(graph.total_cost, Scope.ANY_ORDER))
        best.offer(range(len(graph.nodes)))
        if best.proven():
            return best.found(exhausted=True)
        best.report("bounding")
        bound = cover_bound(graph, budget, context, time_limit_s=_slice(context, _BOUND_S, 0.15))
        if math.isinf(bound.cost):
            least = least_cover_peak(graph)
            return NotFound("no schedule in document order fits", scope=Scope.DOCUMENT_ORDER, peak_bound_bytes=least)
        best.raise_bound(bound)
        return _Search(best, random.Random(context.seed)).run((self.depth,) if self.depth else _DEPTHS)


def _slice(context: Context, most_s: float, share: float) -> float:
    """Seconds for a step: at most ``most_s``, and at most ``share`` of what is left."""
    remaining = context.control.remaining_s()
    return most_s if remaining is None else min(most_s, share * remaining)


@dataclass(slots=True)
class _Search:
    """The steps of one solve, each handing its schedules to ``best``."""

    best: Best
    rng: random.Random

    def run(self, depths: tuple[float, ...]) -> Found | NotFound:
        """Grow the support until the gap is closed; then the full one where it is small; then windows."""
        context, best = self.best.context, self.best
        model: Retention | None = None
        impossible = False
        for depth in depths:
            if model is not None and model.model.columns > _MODEL_LIMIT / 3:
                break
            model = Retention.over(best, depth, self._scale())
            if context.write_model is not None:
                write_model(model.model, context.write_model)
            self._start(model)
            if self._tight() or context.control.stopping():
                break
            # Within the gap already? A few seconds more often make the plan cheaper still.
            slice_s = _POLISH_S if best.proven() else _SLICE_S
            model.solve(shortened(context.control, _slice(context, slice_s, 0.25)))
            if best.proven() or context.control.stopping():
                break
            self._windows(model, rounds=2)
            if best.proven() or context.control.stopping():
                break
        if not self._over() and self._small():
            impossible = self._everything()
        if not self._over() and not impossible and model is not None:
            self._windows(model, rounds=None)
        if best.computes is not None:
            return best.found(exhausted=best.proven() or not context.control.stopping())
        lowest = None if best.lowest is None else Schedule(best.lowest)
        if impossible:
            return NotFound("no frontier-advancing schedule fits", scope=Scope.FRONTIER, best=lowest)
        return NotFound("no schedule within the budget was found", lower_bound=best.bound.cost, best=lowest)

    def _over(self) -> bool:
        return self.best.proven() or self.best.context.control.stopping()

    def _tight(self) -> bool:
        """Whether nothing is left to gain."""
        return self.best.cost <= self.best.bound.cost * (1 + 1e-9)

    def _scale(self) -> float:
        """Unit of the objective: such that the overhead, not the cost, has a size that solvers like."""
        base = self.best.graph.total_cost
        overhead = max(self.best.bound.cost - base, 1e-6 * base)
        return overhead / 100 if overhead > 0 else 1.0

    def _start(self, model: Retention) -> None:
        """Schedules from the linear relaxation."""
        self.best.report("rounding the linear relaxation")
        model.round_relaxation(_SHARES, shortened(self.best.context.control, _slice(self.best.context, _SLICE_S, 0.3)))

    def _small(self) -> bool:
        graph = self.best.graph
        return len(graph.nodes) ** 2 / 2 <= _FULL_LIMIT

    def _everything(self) -> bool:
        """Solve over the full support; its bound holds for all frontier-advancing schedules. Whether none fits."""
        best, graph = self.best, self.best.graph
        model = Retention.over(best, None, self._scale())
        outcome = model.solve(best.context.control)
        self._take_bound(model, outcome, graph)
        return outcome is not None and outcome.termination is Termination.INFEASIBLE and best.computes is None

    def _take_bound(self, model: Retention, outcome: Outcome | None, graph: Graph) -> None:
        if outcome is not None and outcome.bound is not None:
            bound = Bound(safe_bound(graph, outcome.bound * model.stated.cost_scale), Scope.FRONTIER)
            self.best.raise_bound(bound)
        elif exhausted(outcome) and self.best.computes is not None:
            # Infeasible once everything at least as dear as the best schedule is excluded.
            self.best.raise_bound(Bound(self.best.cost, Scope.FRONTIER))

    def _windows(self, model: Retention, rounds: int | None) -> None:
        """Free a part of the best schedule and solve for it, again and again; ``rounds`` None: until nothing helps."""
        best = self.best
        width = max(8, len(best.graph.nodes) // 6)
        idle = 0
        done = 0
        while not self._over() and best.computes is not None and idle < _PATIENCE and (rounds is None or done < rounds):
            best.report("searching windows")
            free = _window(model, self.rng, width)
            better = model.improve(free, shortened(best.context.control, _slice(best.context, _WINDOW_S, 0.5)))
            idle = 0 if better else idle + 1
            done += 1


def _window(model: Retention, rng: random.Random, width: int) -> Bools:
    """Columns that a window frees: a run of stages, or a run of nodes, with everything that happens to it."""
    stated, columns = model.stated, model.compiled.column_of
    n = len(stated.graph.nodes)
    first = rng.randrange(max(1, n - width))
    inside = range(first, first + width)
    free = np.zeros(model.model.columns, dtype=np.bool_)
    by_stage = rng.random() < 0.5
    for (t, i), var in stated.R.items():
        if (t if by_stage else i) in inside:
            free[columns[id(var)]] = True
    for v, gaps in enumerate(stated.gaps):
        maker = stated.graph.producer[v] in inside
        for k, var in enumerate(gaps.kept):
            touched = gaps.events[k] < inside.stop and gaps.events[k + 1] >= inside.start
            if touched if by_stage else maker:
                free[columns[id(var)]] = True
    return free
