"""Anytime search: a start, then windows of the retention MILP and annealing of the sequence, in turn."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

from remat_cli.errors import LimitReached
from remat_cli.milp.cover_running import least_peak
from remat_cli.plan.model import Scope
from remat_cli.strategies.annealing.workers import Annealing, ready
from remat_cli.strategies.base import Context, Found, NotFound, Strategy, Task
from remat_cli.strategies.bounds import cover_bound, quick_bound
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.openers.prices import offer_starts
from remat_cli.strategies.retention.merging import Merging, Pool
from remat_cli.strategies.retention.solving import Retention, is_dense
from remat_cli.strategies.retention.windows import Windows

_SHARES = (1.0, 0.97, 0.9)
_START_S = 20.0
_BOUND_S, _QUICK_BOUND_S = 20.0, 3.0
_MOST_NODES = 3_000
"""Graphs up to this size get windows of a MILP; larger ones are only annealed."""


_DEPTH: dict[str, Any] = {"help": "how far from its uses a node may be recomputed in a window"}
_PATIENCE: dict[str, Any] = {"help": "idle rounds after which it ends when there is no time limit"}
_ENOUGH = 0.5
_PATIENCE_BEYOND = 2
_LEAST_SHARE = 0.2
"""Share of the time that each engine gets at least."""
_FIRST = 1e300


@dataclass(frozen=True, slots=True)
class Search(Strategy):
    """A portfolio that hands schedules back and forth; never worse than what it starts from.

    With ``threads`` so many workers anneal, or two without (one on a machine with one core); the windows, which have
    their turn after them, use the solver with as many threads.

    Attributes:
        depth: Support of the model that windows are taken from.
        patience: Rounds in a row without an improvement after which it ends, if there is no time limit.
    """

    depth: float = field(default=2.0, metadata=_DEPTH)
    patience: int = field(default=8, metadata=_PATIENCE)

    name: ClassVar[str] = "search"
    summary: ClassVar[str] = "anytime search: windows of the retention MILP and annealing of the sequence, in turn"
    reference: ClassVar[str] = ""
    uses_solver: ClassVar[bool] = True

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Start from what is known, or from a rounded relaxation; then search until time or patience is out."""
        return _search(task, context, self.patience, depth=self.depth, anneals=True)


@dataclass(frozen=True, slots=True)
class Lns(Strategy):
    """Windows of the retention MILP alone; never worse than what it starts from.

    Attributes:
        depth: Support of the model that windows are taken from.
        patience: Rounds in a row without an improvement after which it ends, if there is no time limit.
    """

    depth: float = field(default=2.0, metadata=_DEPTH)
    patience: int = field(default=8, metadata=_PATIENCE)

    name: ClassVar[str] = "lns"
    summary: ClassVar[str] = "large neighbourhood search: windows of the retention MILP"
    reference: ClassVar[str] = ""
    uses_solver: ClassVar[bool] = True

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Start from what is known, or from a rounded relaxation; then free and solve one part after the other."""
        return _search(task, context, self.patience, depth=self.depth, anneals=False)


@dataclass(frozen=True, slots=True)
class Anneal(Strategy):
    """Annealing of the sequence of computes alone; never worse than what it starts from.

    With ``threads`` so many workers anneal, or two without (one on a machine with one core). The same seed gives the
    same schedule for the same number of workers, unless a time limit ends it.

    Attributes:
        patience: Rounds in a row without an improvement after which it ends, if there is no time limit.
    """

    patience: int = field(default=8, metadata=_PATIENCE)

    name: ClassVar[str] = "anneal"
    summary: ClassVar[str] = "simulated annealing of the sequence of computes; not confined to advancing frontiers"
    reference: ClassVar[str] = ""
    uses_solver: ClassVar[bool] = True

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Start from what is known, or from computing everything once; then anneal until time or patience is out."""
        return _search(task, context, self.patience, depth=None, anneals=True)


def _search(task: Task, context: Context, patience: int, *, depth: float | None, anneals: bool) -> Found | NotFound:
    """Bound, start, and let the engines take turns. Without ``depth`` there are no windows."""
    best = Incumbent.of(task, context, wide=anneals)
    if task.known is None:
        best.raise_bound(quick_bound(best.graph, best.budget_bytes, best.step(_QUICK_BOUND_S, 0.1)))
    offer_starts(best)
    if task.known is None and not best.tight():
        best.report("bounding")
        bound = cover_bound(best.graph, best.budget_bytes, context, time_limit_s=best.seconds(_BOUND_S, 0.15))
        if math.isinf(bound.cost):
            least = least_peak(best.graph)
            return NotFound("no schedule in document order fits", Scope.DOCUMENT_ORDER, peak_bound_bytes=least)
        best.raise_bound(bound)
    rng = random.Random(context.seed)
    turns = _Turns(best, rng, depth, Annealing(best, rng) if anneals else None)
    if turns.annealing is not None and depth is not None and len(best.graph.nodes) <= _MOST_NODES:
        turns.annealing.pool = pool = Pool(best)
        turns.merging = Merging(best, pool)
        turns.dense = is_dense(best.graph)
    idle, at_first_s = 0, context.control.remaining_s() or 0.0
    while not best.over() and (idle < _patience(best, patience) or _worth_the_time(best, at_first_s)):
        if depth is None and not ready(context.control):
            break  # nothing that can be done in the time left
        try:
            idle = 0 if turns.take() else idle + 1
        except LimitReached:
            break  # while a model was built
    if best.computes is None:
        return best.not_found("no schedule within the budget was found")
    return best.found(exhausted=best.exhausted())


@dataclass(slots=True)
class _Turns:
    """Lets the engines take turns.

    Without a time limit each gets one in every round, so that the clock has no say in what is found. With one the
    engine that last gained most per second goes on, but none gets less than a share of the time.

    Attributes:
        best: The schedule to improve.
        rng: Chooses windows.
        depth: Support of their model; None for no windows.
        annealing: The other engine, if it takes part.
        dense: Whether windows are left out.
        merging: Has its turn after annealing, if it takes part.
        windows: Made when their first turn comes.
        spent: Seconds that annealing and windows have taken.
        rates: What they gained per second in their last turns.
    """

    best: Incumbent
    rng: random.Random
    depth: float | None
    annealing: Annealing | None
    dense: bool = False
    merging: Merging | None = None
    windows: Windows | None = None
    spent: list[float] = field(default_factory=lambda: [0.0, 0.0])
    rates: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def take(self) -> bool:
        """One turn, or one of each engine; whether it helped."""
        solving = self.depth is not None and len(self.best.graph.nodes) <= _MOST_NODES
        if self.annealing is not None and (self.dense or self.best.proven_in_class()):
            return self._turn(0)  # windows find nothing beyond the class
        if self.annealing is None or not solving:
            return self._turn(int(self.annealing is None)) if self.annealing is not None or solving else False
        if self.best.context.control.deadline_s is None:
            return self._turn(0) | self._turn(1)
        return self._turn(self._choice())

    def _choice(self) -> int:
        """Which engine is next: 0 annealing, 1 windows."""
        fewer = 0 if self.spent[0] <= self.spent[1] else 1
        if self.spent[fewer] < _LEAST_SHARE * sum(self.spent) or self.rates[0] == self.rates[1]:
            return fewer
        return 0 if self.rates[0] > self.rates[1] else 1

    def _turn(self, which: int) -> bool:
        began, before = time.monotonic(), self.best.cost
        if which == 0:
            assert self.annealing is not None
            helped = self.annealing.run(2)
            if self.merging is not None and not self.best.proven_in_class():
                helped |= self.merging.run()
        else:
            if self.windows is None:
                self.windows = _windows(self.best, self.depth, self.rng)
            helped = self.windows is not None and self.windows.run(3)
        took = max(time.monotonic() - began, 1e-3)
        self.spent[which] += took
        if math.isfinite(before):
            self.rates[which] = (before - self.best.cost) / took
        else:  # from no schedule to one is worth any time
            self.rates[which] = _FIRST if math.isfinite(self.best.cost) else 0.0
        return helped


def _windows(best: Incumbent, depth: float | None, rng: random.Random) -> Windows | None:
    if depth is None or best.over():
        return None
    model = Retention.over(best, depth)
    if best.computes is None:
        best.report("rounding the linear relaxation")
        model.round_relaxation(_SHARES, best.step(_START_S, 0.2))
    return Windows(best, model.holding_best(), rng)


def _patience(best: Incumbent, patience: int) -> int:
    """Idle rounds to bear: few where only schedules beyond a class can be cheaper, which come soon if at all."""
    return min(patience, _PATIENCE_BEYOND) if best.proven_in_class() else patience


def _worth_the_time(best: Incumbent, at_first_s: float) -> bool:
    """Whether to go on though nothing helped lately: there is a time limit, and the best schedule may be far off.

    Where it is proven optimal in its class, only schedules beyond that can be cheaper, and half of the time
    (``at_first_s`` seconds) is enough to look for them: on the random graph G1 at 90% they are there after seconds.
    """
    remaining = best.context.control.remaining_s()
    if remaining is None:
        return False
    return not best.proven_in_class() or remaining > _ENOUGH * at_first_s
