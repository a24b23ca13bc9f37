"""Lower bounds on the time of every plan with copies, by the crossing MILP."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from remat_cli.control import Control
from remat_cli.graph.model import Graph
from remat_cli.milp.crossing import Crossing, build, windows
from remat_cli.mip import Floats, LinearModel
from remat_cli.plan.host import Host
from remat_cli.plan.liveness import heights
from remat_cli.plan.model import Copies, Scope
from remat_cli.solvers.base import Termination
from remat_cli.solvers.modelfile import write_model
from remat_cli.strategies.base import Bound, Context
from remat_cli.tolerances import BOUND_MARGIN, INNER_GAP

_ALL_CUTS = 40
"""Up to this many nodes every stage is a cut, and all violated windows are added. Untuned."""
_CUTS = (1, 3)
"""Numbers of cuts of the models for larger graphs. Many cuts say little more, and take far longer. On ResNet-50 at 40
and at 20% of its peak with 25 GB/s, relaxations with 1 cut bound the overhead by 4.55 and 8.10%, with 3 by 4.43 and
8.17%, with 6 by 4.34 and 8.16% (14 s); in a minute the MILP with 1 cut proves 5.81 and 10.08%."""
_FIRST_SHARE = 0.7
"""How much of the time for proofs the model with the fewest cuts gets. Untuned."""
_ROUNDS = 12
"""Most rounds of windows. Untuned."""


@dataclass(slots=True)
class _Model:
    """A crossing model with the windows found so far, and its last solution; ``proven`` once it is solved."""

    stated: Crossing
    model: LinearModel
    values: Floats | None = field(default=None, repr=False)
    proven: bool = False


@dataclass(slots=True)
class Bounding:
    """The crossing models of a task, and their strongest bound so far.

    Attributes:
        graph: The graph.
        budget_bytes: Fixed memory included.
        host: Bandwidths, latency and memory.
        models: Models with different cuts where memory is short; each bound holds by itself. Stated by :meth:`relax`.
        cost: The bound, in the graph's cost unit; C0 at least.
        impossible: Whether a model has no solution: no plan in document order fits.
    """

    graph: Graph
    budget_bytes: int
    host: Host
    models: list[_Model] = field(default_factory=list)
    cost: float = 0.0
    impossible: bool = False

    def __post_init__(self) -> None:
        """Begin with C0, which every plan costs."""
        self.cost = self.graph.total_cost

    @property
    def bound(self) -> Bound:
        """The bound, which holds for all schedules in document order with any copies."""
        return Bound(math.inf if self.impossible else self.cost, Scope.DOCUMENT_ORDER, Copies.ANY)

    @property
    def solutions(self) -> list[tuple[Crossing, Floats]]:
        """The last solution of each model, of its relaxation or of itself."""
        return [(one.stated, one.values) for one in self.models if one.values is not None]

    def relax(self, context: Context, control: Control) -> None:
        """Solve the relaxations; in small models, with windows until none is violated."""
        small = len(self.graph.nodes) <= _ALL_CUTS
        for cuts in cut_sets(self.graph, self.budget_bytes):
            if control.stopping():
                return
            stated = build(self.graph, self.budget_bytes, self.host, cuts)
            one = _Model(stated, stated.model())
            self.models.append(one)
            for _ in range(_ROUNDS if small else 1):
                if control.stopping() or not self._solve(one, one.model.relaxed(), context, control):
                    break
                rows = windows(one.stated, one.values) if small and one.values is not None else []
                if not rows:
                    break
                one.model = one.model.with_rows(rows)

    def solve(self, context: Context, control: Control) -> None:
        """Solve the models themselves, for their bounds and their solutions."""
        open_ones = [one for one in self.models if not one.proven]
        for k, one in enumerate(open_ones):
            part = control.part(1.0 if k == len(open_ones) - 1 else _FIRST_SHARE)
            if not control.stopping():
                if context.write_model is not None and one is self.models[-1]:
                    write_model(one.model, context.write_model, note="the objective is the time beyond C0, by C0")
                self._solve(one, one.model, context, part)

    def _solve(self, one: _Model, model: LinearModel, context: Context, control: Control) -> bool:
        """Solve ``model`` and take its bound; whether there is a solution."""
        outcome = context.solver.solve(context.request(model, control, gap=INNER_GAP))
        if outcome.termination is Termination.INFEASIBLE:
            self.impossible = True
            return False
        if outcome.bound is not None and math.isfinite(outcome.bound):
            base = self.graph.total_cost
            self.cost = max(self.cost, base * (1 + outcome.bound - BOUND_MARGIN))
        one.proven = model is one.model and outcome.termination is Termination.OPTIMAL
        if outcome.values is None:
            return False
        one.values = outcome.values
        return True


def cut_sets(graph: Graph, budget_bytes: int) -> list[list[int] | None]:
    """Cuts of the models: all stages of a small graph; else the worst of each of a few parts of the crowded stages."""
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
