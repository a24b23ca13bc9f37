"""Lower bounds on the time of every plan with copies, by the crossing MILP."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from remat_cli.control import Control
from remat_cli.graph.model import Graph
from remat_cli.milp.crossing import Crossing, build, windows
from remat_cli.mip import Floats, LinearModel
from remat_cli.plan.liveness import heights
from remat_cli.plan.model import Copies, Scope
from remat_cli.solvers.base import Termination
from remat_cli.solvers.modelfile import write_model
from remat_cli.strategies.base import Bound
from remat_cli.strategies.copying.annealing import rounded
from remat_cli.strategies.copying.walker import Moves, Sequences
from remat_cli.strategies.engine import Engine
from remat_cli.strategies.objective import Time
from remat_cli.tolerances import BOUND_MARGIN, INNER_GAP

# Doubling all constants of this folder makes the gap larger, halving does not (benchmark ``ablation``).
_ALL_CUTS = 40
"""Up to this many nodes every stage is a cut, and all violated windows are added."""
_CUTS = (1, 3)
"""Numbers of cuts of the models for larger graphs. Many cuts say little more, and take far longer. On ResNet-50 at 40
and at 20% of its peak with 25 GB/s, relaxations with 1 cut bound the overhead by 4.55 and 8.10%, with 3 by 4.43 and
8.17%, with 6 by 4.34 and 8.16% (14 s); in a minute the MILP with 1 cut proves 5.81 and 10.08%."""
_FIRST_SHARE = 0.7
"""How much of the time for proofs the model with the fewest cuts gets."""
_ROUNDS = 12
"""Most rounds of windows."""


@dataclass(slots=True)
class _Model:
    """A crossing model with the windows found so far; ``proven`` once it is solved."""

    stated: Crossing
    model: LinearModel
    proven: bool = False


@dataclass(slots=True)
class CrossingBound(Engine):
    """Bounds the time by crossing models, and rounds their solutions to sequences that annealing starts from.

    Attributes:
        models: Models with different cuts where memory is short; each bound holds by itself.
    """

    uses_solver: ClassVar[bool] = True

    models: list[_Model] = field(default_factory=list)

    def work(self, *, relaxed: bool, copying: bool = True, computing: bool = True) -> bool:
        """Solve the relaxations, or the models themselves.

        Args:
            relaxed: Whether to solve the relaxations; in small models, with windows until none is violated.
            copying: Whether the rounded sequences may copy.
            computing: Whether they may compute again. The bound holds for all plans in any case.
        """
        allowed = Moves(copying, computing)
        self.incumbent.report("bounding the time" if relaxed else "proving")
        if relaxed or not self.models:
            self._relax(allowed)
        if not relaxed:
            self._solve(allowed)
        return False

    def _relax(self, allowed: Moves) -> None:
        incumbent, graph = self.incumbent, self.incumbent.graph
        small = len(graph.nodes) <= _ALL_CUTS
        assert isinstance(incumbent.objective, Time)
        for cuts in cut_sets(graph, incumbent.budget_bytes):
            if incumbent.context.control.stopping():
                return
            stated = build(graph, incumbent.budget_bytes, incumbent.objective.host, cuts)
            one = _Model(stated, stated.model())
            self.models.append(one)
            values = None
            for _ in range(_ROUNDS if small else 1):
                if incumbent.context.control.stopping():
                    break
                solution = self._bounded(one, one.model.relaxed(), incumbent.context.control)
                if solution is None:
                    break
                values = solution
                rows = windows(one.stated, values) if small else []
                if not rows:
                    break
                one.model = one.model.with_rows(rows)
            self._round(one, values, allowed)

    def _solve(self, allowed: Moves) -> None:
        context = self.incumbent.context
        open_ones = [one for one in self.models if not one.proven]
        for k, one in enumerate(open_ones):
            part = context.control.part(1.0 if k == len(open_ones) - 1 else _FIRST_SHARE)
            if not context.control.stopping():
                if context.write_model is not None and one is self.models[-1]:
                    write_model(one.model, context.write_model, note="the objective is the time beyond C0, by C0")
                self._round(one, self._bounded(one, one.model, part), allowed)

    def _bounded(self, one: _Model, model: LinearModel, control: Control) -> Floats | None:
        """Solve ``model`` and take its bound; the solution, None if there is none."""
        context, base = self.incumbent.context, self.incumbent.graph.total_cost
        outcome = context.solver.solve(context.request(model, control, gap=INNER_GAP))
        if outcome.termination is Termination.INFEASIBLE:
            self.incumbent.raise_bound(Bound(math.inf, Scope.DOCUMENT_ORDER, Copies.ANY))
            return None
        if outcome.bound is not None and math.isfinite(outcome.bound):
            cost = base * (1 + outcome.bound - BOUND_MARGIN)
            self.incumbent.raise_bound(Bound(max(base, cost), Scope.DOCUMENT_ORDER, Copies.ANY))
        one.proven = model is one.model and outcome.termination is Termination.OPTIMAL
        return outcome.values

    def _round(self, one: _Model, values: Floats | None, allowed: Moves) -> None:
        if values is not None:
            sequences = self.incumbent.shared(Sequences)
            sequences.suggest(rounded(one.stated, values, len(self.incumbent.graph.nodes)), allowed)


def cut_sets(graph: Graph, budget_bytes: int) -> list[list[int] | None]:
    """Cuts of the models: all stages of a small graph; else the worst of each of a few parts of those that exceed."""
    n = len(graph.nodes)
    if n <= _ALL_CUTS:
        return [None]
    levels = heights(graph, range(n))
    short = [i for i in range(n - 1) if levels[i] > budget_bytes]
    found: list[list[int] | None] = []
    for parts in _CUTS:
        cuts = []
        for k in range(parts):
            part = short[k * len(short) // parts : (k + 1) * len(short) // parts]
            cuts += [max(part, key=levels.__getitem__)] if part else []
        if cuts and cuts not in found:
            found.append(cuts)
    return found
