"""The incumbent: the cheapest schedule found so far, the bounds on it, and whether they are good enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar, cast

from remat_cli.control import Control, Progress
from remat_cli.errors import worded
from remat_cli.graph.model import Graph
from remat_cli.kernels import compiling
from remat_cli.plan.derive import prune
from remat_cli.plan.liveness import cost_of, heights
from remat_cli.plan.matrices import is_frontier_advancing
from remat_cli.plan.model import Scope
from remat_cli.strategies.annealing.pool import Pool, Proposal, Proposals
from remat_cli.strategies.base import Bound, Context, Found, NotFound, Schedule, Task
from remat_cli.strategies.bounds import strongest
from remat_cli.strategies.objective import Evaluation, Objective, objective_for, runs_too_often
from remat_cli.strategies.overlapping.simple import simple_schedules
from remat_cli.tolerances import SAME_COST, SETTLED

if TYPE_CHECKING:
    from remat_cli.milp.cover_bound import Prices

State = TypeVar("State")

_NONE_LEFT_S = 2.0
"""A search that ends with fewer seconds left was ended by the clock: that is too little for another step. Untuned."""


class Verdict(IntEnum):
    """How much is proven of the incumbent. Higher verdicts imply lower ones, except the last."""

    OPEN = 0
    """Nothing within the gap."""
    CLASS = 1
    """Within the gap of every schedule of some class, such as the frontier-advancing ones, or none of a class fits."""
    GAP = 2
    """Within the gap of every schedule in document order."""
    SETTLED = 3
    """As close to a bound for document order as a solver's tolerance can tell, even if a smaller gap was asked for."""
    EXACT = 4
    """At a bound for document order: nothing is cheaper."""
    IMPOSSIBLE = 5
    """There is no incumbent, and it is proven that no schedule in document order fits."""


@dataclass(slots=True)
class Incumbent:
    """Keeps the bounds and the cheapest schedule within the budget, publishes both, and says what is proven.

    The only place where schedules are compared. Every schedule is evaluated here by the objective, for every engine.

    Attributes:
        objective: What is minimised: the cost, or with a host the time. "Cost" stands for either in what follows.
        budget_bytes: Fixed memory included; without a budget, a number of bytes that every schedule fits.
        context: What engines may use; its control is the clock of the current stage (see :meth:`under`).
        goal: The verdict at which the search may stop.
        informed: Whether it started with a schedule that an earlier search for the task found.
        opened: Whether the methods with which searches begin have run already.
        news: What other searches for the task found since the last call; None if there are none.
        bounds: Lower bounds on cost, the best of each scope.
        best: The cheapest schedule within the budget, with its cost and peak; None if there is none.
        maker: Text form of the strategy that made it; empty for the strategy that was called.
        order: How its order of first computations was found; empty for the order of the document.
        advancing: The cheapest frontier-advancing schedule within the budget, a start for models.
        advancing_cost: Its cost.
        lowest: The schedule with the lowest peak found, within the budget or not.
        lowest_peak: Its peak in bytes.
        proposals: Schedules that exceed the budget and were cheaper than the incumbent (see :meth:`propose`).
        used_solver: Whether a MIP solver contributed to the incumbent or to a bound.
        crediting: The maker of the schedules offered from now on, and whether it uses a MIP solver.
        prices: Reduced costs of recomputation, once they are known.
        pool: Recomputations of recent schedules; None unless an engine merges them.
        refusal: An engine's proof that no schedule fits, with its reason; None if there is none.
        least_bytes: No schedule in document order has a smaller peak; 0 if no engine has found out.
        uncertified: Whether only the word of one solver says that no schedule fits.
        engines: The engines that work on it, with their state (see :func:`engine_at`).
        states: What several engines share, by its class (see :meth:`shared`).
    """

    objective: Objective
    budget_bytes: int
    context: Context
    goal: Verdict = Verdict.GAP
    informed: bool = False
    opened: bool = False
    news: Callable[[], Iterable[Found]] | None = None
    bounds: dict[Scope, Bound] = field(default_factory=dict)
    best: Evaluation | None = None
    maker: str = ""
    order: str = ""
    advancing: tuple[int, ...] | None = None
    advancing_cost: float = math.inf
    lowest: Schedule | None = None
    lowest_peak: int | None = None
    proposals: Proposals = field(default_factory=Proposals)
    used_solver: bool = False
    crediting: tuple[str, bool] = ("", False)
    prices: Prices | None = None
    pool: Pool | None = None
    refusal: NotFound | None = None
    least_bytes: int = 0
    uncertified: bool = False
    engines: dict[str, object] = field(default_factory=dict)
    states: dict[object, object] = field(default_factory=dict)

    @classmethod
    def empty(cls, task: Task, context: Context, *, goal: Verdict = Verdict.EXACT) -> Incumbent:
        """No schedule, not even no-remat, and no bound but C0: for methods that must give plans of their own."""
        graph = task.graph
        budget = task.budget_bytes
        if budget is None:
            # Each value has one instance at most.
            budget = graph.fixed_memory + sum(graph.size) + max((node.workspace for node in graph.nodes), default=0)
        incumbent = cls(objective_for(task), budget, context, goal)
        incumbent.bounds[Scope.ANY_ORDER] = incumbent.objective.trivial_bound
        return incumbent

    @classmethod
    def of(cls, task: Task, context: Context, *, goal: Verdict = Verdict.GAP) -> Incumbent:
        """No-remat, with collectives the simplest other schedules, and the known schedules and bounds of ``task``."""
        incumbent = cls.empty(task, context, goal=goal)
        incumbent.offer(range(len(task.graph.nodes)))
        for computes in simple_schedules(task.graph) if task.graph.overlaps else ():
            incumbent.offer(computes)
        if task.known is not None:
            for bound in task.known.bounds:
                incumbent.raise_bound(bound)
            for schedule in task.known.schedules:
                incumbent.take(Found(replace(schedule, held=frozenset())))
            incumbent.informed = incumbent.computes is not None and task.known.searched
            incumbent.opened = task.known.opened
        incumbent.news = task.news
        return incumbent

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.objective.graph

    @property
    def computes(self) -> tuple[int, ...] | None:
        """The computes of the cheapest schedule within the budget; None if there is none."""
        return None if self.best is None else self.best.schedule.computes

    @property
    def cost(self) -> float:
        """The cost of the cheapest schedule within the budget; infinite if there is none."""
        return math.inf if self.best is None else self.best.cost

    @property
    def peak_bytes(self) -> int:
        """The peak of the cheapest schedule within the budget, which there must be."""
        assert self.best is not None
        return self.best.peak_bytes

    def merge_news(self) -> None:
        """Take what other searches found; nothing if there are none."""
        for found in () if self.news is None else self.news():
            self.take(found)

    def offer(self, computes: Sequence[int], maker: str = "") -> bool:
        """Consider a schedule; whether it is valid and within the budget.

        Args:
            computes: The schedule; recomputations without a reader are dropped.
            maker: Text form of the strategy that made it; empty for the one that is currently credited.
        """
        return self.take(Found(Schedule(tuple(computes)), maker=maker))

    def take(self, found: Found) -> bool:
        """Consider the result of another strategy with its bounds; whether its schedule is within the budget."""
        if self._take_bounds(found.bounds):
            self.used_solver = self.used_solver or found.used_solver
        new = self.objective.evaluate(found.schedule)
        if new is None:
            return False
        sequence = new.schedule.computes
        if self.lowest_peak is None or new.peak_bytes < self.lowest_peak:
            self.lowest, self.lowest_peak = new.schedule, new.peak_bytes
        if new.peak_bytes > self.budget_bytes:
            return False
        # With copies there is no matrix to start a model from.
        plain = new.schedule.copying is None
        if plain and new.cost < self.advancing_cost and is_frontier_advancing(self.graph, sequence):
            self.advancing, self.advancing_cost = sequence, new.cost
        if self.best is not None and not self.objective.better(new, self.best):
            return True
        self.best, self.order = new, found.order
        self.maker = found.maker or self.crediting[0]
        self.used_solver = self.used_solver or found.used_solver or self.crediting[1]
        self.context.publish(self.found(exhausted=False))
        return True

    def propose(self, computes: Sequence[int]) -> bool:
        """Consider a solution of a relaxation; whether it is a schedule within the budget.

        One that exceeds the budget but is cheaper than the incumbent may be remembered, for engines that make it fit.
        """
        if self.offer(computes):
            return True
        sequence = tuple(prune(self.graph, computes))
        cost = cost_of(self.graph, sequence)
        if cost >= self.cost or runs_too_often(self.graph, sequence):
            return False
        excess = sum(max(0, height - self.budget_bytes) for height in heights(self.graph, sequence))
        rooms = max(1, self.budget_bytes - self.graph.fixed_memory) * len(self.graph.nodes)
        self.proposals.add(Proposal(sequence, cost, excess / rooms))
        return False

    def raise_bound(self, bound: Bound) -> None:
        """Take a bound if it is better than the one of its scope, and publish it with the incumbent."""
        if self._take_bounds((bound,)):
            self.used_solver = self.used_solver or self.crediting[1]
            if self.best is not None:
                self.context.publish(self.found(exhausted=False))

    def _take_bounds(self, bounds: Sequence[Bound]) -> bool:
        """Keep the best bound of each scope, of those that count for the objective; whether any is new."""
        bounds = [bound for bound in bounds if self.objective.counts(bound)]
        better = [b for b in bounds if b.scope not in self.bounds or b.cost > self.bounds[b.scope].cost]
        for bound in better:
            if bound.scope not in self.bounds or bound.cost > self.bounds[bound.scope].cost:
                self.bounds[bound.scope] = bound
        return bool(better)

    @property
    def bound(self) -> Bound:
        """The strongest bound on the incumbent; C0 if there is none."""
        return strongest(self.graph, self.bounds.values(), self.cost)

    @property
    def verdict(self) -> Verdict:
        """What is proven so far."""
        wide = [b for b in self.bounds.values() if b.scope.contains(Scope.DOCUMENT_ORDER)]
        if self.best is None:
            if any(math.isinf(bound.cost) for bound in wide):
                return Verdict.IMPOSSIBLE
            return Verdict.CLASS if any(math.isinf(b.cost) for b in self.bounds.values()) else Verdict.OPEN
        bound, gap = strongest(self.graph, wide, self.cost).cost, self.context.gap
        if self.cost <= bound * (1 + SAME_COST):
            return Verdict.EXACT
        if self.cost - bound <= SETTLED * self.cost:
            return Verdict.SETTLED
        if self.cost - bound <= gap * self.cost:
            return Verdict.GAP
        return Verdict.CLASS if self.cost - self.bound.cost <= gap * self.cost else Verdict.OPEN

    def done(self) -> bool:
        """Whether the goal is reached, or it is proven that no schedule fits."""
        return self.verdict >= self.goal

    def over(self) -> bool:
        """Whether to stop: done, interrupted, or out of time."""
        return self.context.control.stopping() or self.done()

    def exhausted(self) -> bool:
        """Whether a search that ends now ends by itself and not at the time limit."""
        remaining = self.context.control.remaining_s()
        limited = self.context.control.stopping() or (remaining is not None and remaining < _NONE_LEFT_S)
        return self.done() or not limited

    @contextmanager
    def under(
        self, clock: Control, maker: str = "", *, uses_solver: bool = False, goal: Verdict | None = None
    ) -> Iterator[None]:
        """While inside, ``clock`` is the clock, ``goal`` the goal, and what is offered is credited to ``maker``."""
        before = self.context, self.crediting, self.goal
        self.context, self.crediting = replace(self.context, control=clock), (maker, uses_solver)
        self.goal = self.goal if goal is None else goal
        try:
            yield
        finally:
            self.context, self.crediting, self.goal = before

    def shared(self, kind: Callable[[Incumbent], State]) -> State:
        """What several engines share, made by ``kind`` on first use."""
        if kind not in self.states:
            self.states[kind] = kind(self)
        return cast(State, self.states[kind])

    def report(self, activity: str, nodes: int | None = None) -> None:
        """Report progress to the user, and whether loops are being compiled."""
        cost = None if self.best is None else self.cost
        beside = "; compiling, first run only" if compiling.compiling() else ""
        self.context.control.report(Progress(f"{activity}{beside}", cost, self.bound.cost, nodes))

    def seconds(self, most_s: float, share: float) -> float:
        """Time for a step: at most ``most_s`` seconds, and at most ``share`` of the time left."""
        remaining = self.context.control.remaining_s()
        return most_s if remaining is None else min(most_s, share * remaining)

    def step(self, most_s: float, share: float) -> Control:
        """The clock for such a step."""
        return self.context.control.part(share, most_s)

    def found(self, *, exhausted: bool) -> Found:
        """The incumbent as an answer; there must be one."""
        assert self.best is not None
        return Found(
            self.best.schedule,
            tuple(self.bounds.values()),
            exhausted=exhausted,
            used_solver=self.used_solver,
            maker=self.maker,
            order=self.order,
        )

    def not_found(self, reason: str, scope: Scope | None = None, *, peak_bound_bytes: int | None = None) -> NotFound:
        """The answer when there is no schedule, with the one of the lowest peak."""
        return NotFound(reason, scope, self.lowest, peak_bound_bytes, bounds=tuple(self.bounds.values()))

    def certified(self, reason: str) -> str:
        """``reason``, that no schedule fits, with the name of the solver if only that says so."""
        if not self.uncertified:
            return reason
        return worded(lambda reason: f"according to {self.context.solver.title} alone, {reason}", reason)

    def answer(self, name: str) -> Found | NotFound:
        """The incumbent of the method ``name``; else a refusal for the plans of this method alone."""
        stopped = self.context.control.stopping()
        if self.best is not None:
            return self.found(exhausted=self.done() or not stopped)
        if stopped:
            return self.not_found(f"the limit came before {name} made a plan that fits")
        return self.not_found(f"no plan that {name} makes fits", Scope.RESTRICTED)
