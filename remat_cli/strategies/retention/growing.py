"""Schedules from the retention MILP over growing supports, and a bound from the full support."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from remat_cli.plan.model import Scope
from remat_cli.solvers.base import Termination
from remat_cli.strategies.base import Bound
from remat_cli.strategies.bounds import safe_bound
from remat_cli.strategies.engine import Engine
from remat_cli.strategies.incumbent import Verdict
from remat_cli.strategies.retention.second_look import confirmed
from remat_cli.strategies.retention.solving import Retention
from remat_cli.strategies.retention.windows import Windows
from remat_cli.strategies.shape import near_pairs

_SHARES = (1.0, 0.98, 0.95, 0.9, 0.8)
"""Shares of the budget for rounding the relaxation until there is a schedule: rounding adds memory. Untuned."""
_GROWTH_LIMIT = 50_000
"""Columns beyond which a support is not grown further. Untuned."""
_BUILD_LIMIT = 300_000
"""Most (stage, node) pairs of the smallest support for which a model is built. Untuned."""
_PER_PAIR_S, _BUILD_SHARE = 1e-4, 0.3
"""Seconds to state and compile a model, per such pair, and the share of the time left for that. Untuned."""
_MOST_STAGES = 12_000
"""Nodes beyond which even a sparse model takes several gigabytes, and minutes until its first result."""
_WHOLE_LIMIT = 200_000
"""Nonzeros beyond which a model is searched by windows if there is an incumbent. Untuned."""
_SLICE_S, _POLISH_S = 30.0, 3.0
"""Seconds for one solve: before the gap is reached, and after, when it often still lowers the cost. Untuned."""
_FIRST_SHARE, _LATER_SHARE = 0.3, 0.1
"""Shares of the time left for rounding the relaxation: of the first support, and of later ones. Untuned."""
_SOLVE_SHARE = 0.4
"""Share of the time left for one solve. Untuned."""
_MANY_WINDOWS, _FEW_WINDOWS = 24, 2
"""Windows instead of a solve, and after one that did not finish. Untuned."""


@dataclass(slots=True)
class Growing(Engine):
    """Searches one support after the other, each deeper than the one before.

    Attributes:
        worth_growing: Whether to go on to a deeper support.
        windows: Searches models that are too large to solve as a whole, or were not solved in time.
    """

    uses_solver: ClassVar[bool] = True

    worth_growing: bool = True
    windows: Windows | None = None

    def work(self, depth: float, *, first: bool = False) -> bool:
        """Round the relaxation over the support of ``depth``, then solve the model or search it by windows.

        Args:
            depth: How far from its uses a node may be recomputed.
            first: Whether this is the first support; then rounding gets more of the time.
        """
        if self.worth_growing:
            self.worth_growing = self._grow(depth, eager=first)
        return self.worth_growing

    def _grow(self, depth: float, *, eager: bool) -> bool:
        incumbent = self.incumbent
        writes, remaining = incumbent.context.write_model, incumbent.context.control.remaining_s()
        near = near_pairs(incumbent.graph)
        proven = incumbent.verdict >= Verdict.GAP
        large = len(incumbent.graph.nodes) > _MOST_STAGES or near > _BUILD_LIMIT
        late = remaining is not None and near * _PER_PAIR_S > _BUILD_SHARE * remaining
        # Within the gap, a cheaper plan is worth seconds, and not a large model.
        if (large or late or (proven and near * _PER_PAIR_S > _POLISH_S)) and writes is None:
            return False
        model = Retention.over(incumbent, depth)
        incumbent.report("rounding the linear relaxation")
        # Budgets below the real one serve to find a first schedule. Later only the solution at the budget itself is
        # needed: it guides windows.
        shares = _SHARES if (eager or incumbent.computes is None) and not proven else _SHARES[:1]
        share = _FIRST_SHARE if eager or incumbent.computes is None else _LATER_SHARE
        model.round_relaxation(shares, incumbent.step(_SLICE_S, share))
        if (incumbent.verdict >= Verdict.SETTLED and writes is None) or incumbent.context.control.stopping():
            return False
        # Rounding may have found an incumbent with recomputations outside the support.
        model = model.holding_best()
        windows = self.windows or Windows(incumbent)
        self.windows, windows.model = windows, model
        # A large model seldom finishes within a slice. Its windows do, but they need an incumbent.
        if len(model.model.values) > _WHOLE_LIMIT and incumbent.advancing is not None and writes is None:
            windows.work(_MANY_WINDOWS)
        else:
            outcome = model.solve(incumbent.step(_POLISH_S if proven else _SLICE_S, _SOLVE_SHARE))
            if outcome is None or outcome.termination is not Termination.OPTIMAL:
                windows.work(_FEW_WINDOWS)
        if writes is not None:
            model.write(writes)
        # A deeper support has more columns: if this one is already large, the next would only cost time.
        return model.model.columns <= _GROWTH_LIMIT


@dataclass(slots=True)
class FullSupport(Engine):
    """Solves over the full support: its bound holds for all frontier-advancing schedules."""

    uses_solver: ClassVar[bool] = True

    def work(self) -> bool:
        """Solve it once; a proof that no schedule fits is an infinite bound."""
        incumbent = self.incumbent
        model = Retention.over(incumbent, None)
        outcome = model.solve(incumbent.context.control)
        if outcome is None:
            return False
        if outcome.termination is Termination.INFEASIBLE and incumbent.computes is None:
            outcome = confirmed(outcome, model.model, incumbent)
            if outcome.values is not None:
                incumbent.offer(model.decoder.computes(model.decoder.chosen(outcome.values)))
        if outcome.termination is Termination.INFEASIBLE and incumbent.computes is None:
            incumbent.raise_bound(Bound(math.inf, Scope.FRONTIER))
        elif outcome.bound is not None:
            bound = safe_bound(incumbent.graph, outcome.bound * model.stated.cost_scale)
            incumbent.raise_bound(Bound(bound, Scope.FRONTIER))
        return False
