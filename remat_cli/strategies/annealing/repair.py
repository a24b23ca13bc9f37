"""Schedules from relaxations: annealing from schedules that cost little more than a bound but exceed the budget.

Where budgets are tight, annealing from no-remat or from a published method ends far from the optimum: what must be
recomputed together with what, over half of the graph, is a choice that no short move changes. Relaxations make that
choice well: the model of bottleneck stages (see ``openers/stage_cuts``), and the retention MILP before its in-stage
rows are stated, or rounded. Their schedules exceed the budget in some steps, and annealing at a price of excess repairs
those.

Which choices a walk gives up is decided early and by chance: on `segnet` at 1.1 times its least peak, walks from one
schedule end mostly at 43 to 49% over no-remat or at 62 to 70%, seldom in between (single runs, not kept). So many short
walks race, from all proposals and at several prices, and only the best of each race go on.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from remat_cli.plan.liveness import cost_of
from remat_cli.plan.matrices import straightened
from remat_cli.strategies.annealing.squeeze import COLD, HIGHEST_PRICE, LEAST_RECOMPUTATIONS
from remat_cli.strategies.engine import Engine

# Doubling all constants of this folder makes the gap much larger, halving them smaller (benchmark ``ablation``).
_TRIALS = 8
"""Short walks of a race."""
_TRIAL_SHARE = 0.1
"""Moves of a short walk, relative to those of the longest. With a fourth of the moves of before, and four times as many
walks, a race on `segnet` finds 46% in ten seconds where one proposal in six longer walks gave 60%; `inception-v3` at
1.03 gives 10% either way (single runs, not kept)."""
_FINALISTS, _FINAL_SHARE = 2, 0.4
"""Results of a race that go on, and the moves of those walks."""
_PATIENCE = 3
"""Races in a row that find nothing cheaper after which it ends."""
_SLICES = 8
"""Slices of a walk."""
_HEATS = (1.0, 0.5)
"""First temperatures of walks, in mean costs of a recomputation."""
_PRICES = (3.0, 0.3, 1.0)
"""The first prices of a room of excess during one step, relative to the overhead. On `segnet` and
`inception-v3` low prices end lower, or not within the budget (single runs, not kept)."""
_LOWEST_PRICE = 1.0
"""The lowest price when a walk goes on."""
_DIGITS = 6
"""Results whose costs, as shares of C0, agree in so many digits are taken for one."""
_LEAST_OVERHEAD = 1e-4


@dataclass(frozen=True, slots=True)
class _Result:
    """Where a walk ended.

    Attributes:
        computes: The cheapest schedule within the budget that it found; if it found none, its last one.
        cost: The cost of that as a share of C0; infinite if it exceeds the budget.
        price: The price of excess at its end, relative to its first overhead.
    """

    computes: tuple[int, ...]
    cost: float
    price: float


@dataclass(slots=True)
class Repair(Engine):
    """Makes proposed schedules fit (see ``Incumbent.propose``).

    Attributes:
        rng: Seeds and chooses.
        taken: The proposals that there were when it last began, by their number.
        before: Cost of the incumbent when this race began.
        race: The results of this race so far.
        finals: Those that still go on, the next one last; None while the race goes on.
        best: The best result of all races; None before the first.
        runs: Walks so far.
        idle: The last races that found nothing cheaper.
    """

    rng: random.Random = field(default_factory=random.Random)
    taken: int = 0
    before: float = math.inf
    race: list[_Result] = field(default_factory=list)
    finals: list[_Result] | None = None
    best: _Result | None = None
    runs: int = 0
    idle: int = 0

    def __post_init__(self) -> None:
        """Seed the walks."""
        self.rng.seed(self.incumbent.context.seed)

    @property
    def fresh(self) -> bool:
        """Whether a schedule cheaper than the incumbent was proposed since it last began."""
        proposals = self.incumbent.proposals
        return proposals.taken > self.taken and bool(proposals.below(self.incumbent.cost))

    def work(self, trials: int = _TRIALS, patience: int = _PATIENCE) -> bool:
        """Repair until ``patience`` races in a row found nothing cheaper; whether the incumbent got cheaper.

        It goes on where the clock stopped it. When it has come to its end, only a new proposal gives it more to do:
        annealing goes on from the incumbent.

        Args:
            trials: Short walks of a race.
            patience: Races that may find nothing cheaper.
        """
        incumbent, cost = self.incumbent, self.incumbent.cost
        if self.fresh:
            self.taken, self.idle = incumbent.proposals.taken, 0
        while self.taken and self.idle < patience and not incumbent.over():
            if self.finals is None and len(self.race) < trials:
                starts = incumbent.proposals.below(incumbent.cost)
                if not starts:
                    break
                start = self.rng.choice(starts)
                self.race.append(self._walk(start.computes, self.rng.choice(_PRICES), _TRIAL_SHARE))
            elif self.finals is None:
                self.finals = self._finalists()
            elif self.finals:
                self._go_on(self.finals.pop(), _FINAL_SHARE)
            else:
                self._end_race()
        return incumbent.cost < cost

    def _finalists(self) -> list[_Result]:
        """The cheapest results of the race, of each cost one, the best last; one that does not fit if none does."""
        found: dict[float, _Result] = {}
        for result in sorted(self.race, key=lambda one: one.cost):
            found.setdefault(round(result.cost, _DIGITS), result)
        return list(found.values())[:_FINALISTS][::-1]

    def _go_on(self, result: _Result, share: float) -> None:
        """A walk from ``result``; what it ends with may be the best."""
        ended = self._walk(result.computes, min(HIGHEST_PRICE, max(_LOWEST_PRICE, result.price)), share)
        if self.best is None or ended.cost < self.best.cost or math.isinf(self.best.cost):
            self.best = ended

    def _end_race(self) -> None:
        """A long walk from the best result, and the count of races that found nothing."""
        assert self.best is not None
        self._go_on(self.best, 1.0)
        self.idle = 0 if self.incumbent.cost < self.before else self.idle + 1
        self.before, self.race, self.finals = self.incumbent.cost, [], None

    def _walk(self, start: tuple[int, ...], price: float, share: float) -> _Result:
        """A walk from ``start``, from hot to cold, with ``share`` of the usual moves; what it finds is offered."""
        from remat_cli.strategies.annealing.walk import Problem, Walk, slice_moves  # numba takes 0.3 s to import

        incumbent, graph = self.incumbent, self.incumbent.graph
        overhead = max(cost_of(graph, start) / (graph.total_cost or 1.0) - 1, _LEAST_OVERHEAD)
        problem = Problem.of(graph, incumbent.budget_bytes - graph.fixed_memory)
        walk = Walk.of(problem, start, self.rng.getrandbits(31), price * overhead)
        heat = self.rng.choice(_HEATS) * overhead / max(LEAST_RECOMPUTATIONS, len(start) - len(graph.nodes))
        moves = max(1, round(share * slice_moves(len(graph.nodes))))
        for part in range(_SLICES):
            if incumbent.context.control.stopping():
                break
            incumbent.report("repair")
            walk.advance(moves, heat * COLD ** (part / _SLICES), heat * COLD ** ((part + 1) / _SLICES))
        self.runs += 1
        for computes in (walk.best, walk.last):
            if computes is not None:
                incumbent.offer(computes)
                incumbent.offer(straightened(graph, computes))
        return _Result(walk.best or walk.last, walk.best_cost, walk.price / overhead)
