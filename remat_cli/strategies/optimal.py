"""Optimal schedules by the retention MILP over a growing support, with bounds that hold beyond it."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from typing import ClassVar

from remat_cli.errors import UsageError
from remat_cli.milp import _pyomo
from remat_cli.milp.cover_running import least_peak
from remat_cli.plan.model import Scope
from remat_cli.solvers.base import Termination
from remat_cli.solvers.modelfile import write_model
from remat_cli.strategies.annealing.workers import Annealing
from remat_cli.strategies.base import Bound, Context, Found, NotFound, Strategy, Task
from remat_cli.strategies.bounds import cover_bound, quick_bound, safe_bound
from remat_cli.strategies.chains.opener import chain_first, offer_chain
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.openers.prices import offer_starts
from remat_cli.strategies.retention.merging import anneal_and_merge
from remat_cli.strategies.retention.proof import PROVABLE, Proof, prove_inside
from remat_cli.strategies.retention.solving import Retention, is_dense, near_pairs
from remat_cli.strategies.retention.windows import Windows

_DEPTHS = (1.0, 1.5, 2.0, 3.0, 6.0)
_SHARES = (1.0, 0.98, 0.95, 0.9, 0.8)
_FULL_LIMIT = 40_000
"""Largest number of (stage, node) pairs for which the model over the full support is tried."""
_GROWTH_LIMIT = 50_000
"""Largest number of columns of a support that is still grown."""
_BUILD_LIMIT = 300_000
"""Largest number of (stage, node) pairs near each other for which a model is built at all."""
_PER_PAIR_S, _BUILD_SHARE = 1e-4, 0.3
"""Seconds that such a pair takes until the model is stated and compiled, and the share of the time left for all."""
_MOST_STAGES = 12_000
"""With more nodes even a sparse model takes several gigabytes, and minutes before it says anything."""
_WHOLE_LIMIT = 200_000
"""Largest number of nonzeros of a model that is worth solving as a whole once there is a schedule to search around."""
_EAGER_LIMIT = 10_000
"""Up to this many (stage, node) pairs the proof comes before larger supports: it is about as large itself."""
_PROOF_LIMIT = 60_000
_DENSE_SHARE = 0.3
_EAGER_SHARE, _PROOF_SHARE, _IN_STAGE_SHARE = 0.4, 0.5, 0.25
_MANY = 24
_BOUND_S, _QUICK_BOUND_S = 20.0, 3.0
_SLICE_S = 30.0
_POLISH_S = 3.0
_FULL_S = 120.0
_PROOF_S = 120.0
_RUNS = 3
"""Runs of annealing where rounding gives nothing good to start from, or before a proof."""
_FEW = 30
"""Up to this many nodes a solver needs no help."""


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
        best = Incumbent.of(task, context)
        chain = _Chain(best)
        if chain_first(best.graph) and chain.closes():
            return replace(best.found(exhausted=True), used_solver=False)
        _pyomo.load()
        best.raise_bound(quick_bound(best.graph, best.budget_bytes, best.step(_QUICK_BOUND_S, 0.1)))
        offer_starts(best)
        if best.settled() and context.write_model is None:
            return best.found(exhausted=True)
        best.report("bounding")
        limit_s = best.seconds(_POLISH_S if best.proven() else _BOUND_S, 0.15)
        bound = cover_bound(best.graph, best.budget_bytes, context, time_limit_s=limit_s)
        best.raise_bound(bound)
        if math.isinf(best.bound.cost):
            least = least_peak(best.graph)
            return NotFound("no schedule in document order fits", Scope.DOCUMENT_ORDER, peak_bound_bytes=least)
        if best.settled() and context.write_model is None:
            return best.found(exhausted=True)
        self._close(best, chain)
        impossible = not best.over() and len(best.graph.nodes) ** 2 / 2 <= _FULL_LIMIT and _everything(best)
        if best.computes is not None:
            return best.found(exhausted=best.exhausted())
        if best.hopeless():
            return best.not_found("no schedule in document order fits", Scope.DOCUMENT_ORDER)
        if impossible:
            return best.not_found("no frontier-advancing schedule fits", Scope.FRONTIER)
        return best.not_found("no schedule within the budget was found")

    def _close(self, best: Incumbent, chain: _Chain) -> None:
        """Close the gap from both sides: schedules over growing supports, and a bound once it is affordable."""
        rng = random.Random(best.context.seed)
        if not self.depth and best.context.write_model is None and is_dense(best.graph):
            anneal_and_merge(best, rng, best.step(_FULL_S, _DENSE_SHARE))
            return
        annealing = Annealing(best, rng)
        depths = (self.depth,) if self.depth else _DEPTHS
        tried = math.inf
        for depth in depths:
            larger = _grow(best, depth, annealing, rng, chain, eager=depth == depths[0])
            if best.over() or chain.closes() or best.hopeless():
                return
            if depth == depths[0] and _FEW < len(best.graph.nodes) <= PROVABLE:
                annealing.run(_RUNS)  # a second or less, and all that follows is the faster the better the schedule
            if best.cost < tried and _prove(best, _EAGER_LIMIT, _EAGER_SHARE):
                tried = best.cost  # a cheaper schedule leaves less to exclude
            if best.over() or not larger:
                break
        if not best.over():
            if len(best.graph.nodes) <= PROVABLE:
                prove_inside(best, best.step(_PROOF_S, _IN_STAGE_SHARE))
            elif best.cost < tried:
                _prove(best, _PROOF_LIMIT, _PROOF_SHARE)


def _prove(best: Incumbent, most_pairs: int, share: float) -> bool:
    """Look for a bound without in-stage rows; whether the support was small enough for it to be worth the time.

    On small graphs the proof with such rows is to come, and begins with the same model over the full support.
    """
    n = len(best.graph.nodes)
    proof = Proof.within(best, min(most_pairs, n * n // 4) if n <= PROVABLE else most_pairs)
    if proof is None:
        return False
    proof.run(_PROOF_S, share)
    return True


@dataclass(slots=True)
class _Chain:
    """Asks the structure of a chain once: at first, or when there is need of it."""

    best: Incumbent
    asked: bool = False

    def closes(self) -> bool:
        """Whether nothing is left to gain with what it says."""
        if not self.asked:
            self.asked = True
            offer_chain(self.best)
        return self.best.tight()


def _grow(
    best: Incumbent, depth: float, annealing: Annealing, rng: random.Random, chain: _Chain, *, eager: bool
) -> bool:
    """Look for schedules over the support of ``depth``; whether a larger one may still be worth its time."""
    near, remaining = near_pairs(best.graph), best.context.control.remaining_s()
    large = len(best.graph.nodes) > _MOST_STAGES or near > _BUILD_LIMIT
    late = remaining is not None and near * _PER_PAIR_S > _BUILD_SHARE * remaining
    if (large or late) and best.context.write_model is None:
        return False
    model = Retention.over(best, depth)
    if best.context.write_model is not None:
        write_model(model.model, best.context.write_model)
    best.report("rounding the linear relaxation")
    # Rounding at less than the budget is for finding a first schedule.
    shares = _SHARES if (eager or best.computes is None) and not best.proven() else _SHARES[:1]
    model.round_relaxation(shares, best.step(_SLICE_S, 0.3 if eager or best.computes is None else 0.1))
    whole = len(model.model.values) <= _WHOLE_LIMIT
    if best.computes is None:
        chain.closes()
    if best.computes is None and not whole:
        annealing.run(_RUNS)
    if best.hopeless() or best.settled() or best.context.control.stopping():
        return False
    model = model.holding_best()
    # Within the gap already? A few seconds more often make the plan cheaper still.
    windows = Windows(best, model, rng)
    if whole or best.advancing is None:
        outcome = model.solve(best.step(_POLISH_S if best.proven() else _SLICE_S, 0.4))
        if best.computes is None:
            annealing.run(_RUNS)
        if outcome is None or outcome.termination is not Termination.OPTIMAL:
            windows.run(2)
    else:
        windows.run(_MANY)
    return model.model.columns <= _GROWTH_LIMIT


def _everything(best: Incumbent) -> bool:
    """Solve over the full support; its bound holds for all frontier-advancing schedules. Whether none fits."""
    model = Retention.over(best, None)
    outcome = model.solve(best.step(_FULL_S, 0.4 if best.computes is None else 0.2))
    if outcome is None:
        return False
    if outcome.bound is not None:
        bound = safe_bound(best.graph, outcome.bound * model.stated.cost_scale)
        best.raise_bound(Bound(bound, Scope.FRONTIER))
    return outcome.termination is Termination.INFEASIBLE and best.computes is None
