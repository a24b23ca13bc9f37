"""Any strategy in other orders: the graph is solved as if its document listed the nodes in another order.

What is proven of one order says nothing about another, so only bounds that hold for every order are passed on.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

from remat_cli.control import Control, Progress
from remat_cli.errors import Interrupted, LimitReached, StrategyMismatch
from remat_cli.graph.model import Graph
from remat_cli.graph.order import Reordered, has_one_order, reordered
from remat_cli.plan.derive import peak
from remat_cli.plan.liveness import cost_of
from remat_cli.plan.model import Scope
from remat_cli.spec import format_spec
from remat_cli.strategies.base import Bound, Context, Found, Known, Needs, NotFound, Schedule, Strategy, Task
from remat_cli.strategies.bounds import cover_bound
from remat_cli.strategies.ordering.candidates import Order, find_orders, ready
from remat_cli.strategies.registry import strategy_from_spec

_ORDERS_S, _ORDERS_SHARE = 60.0, 0.15
"""Time for finding orders: at most this, and at most this share of what is left."""
_BOUND_S, _BOUND_SHARE = 10.0, 0.05
_GIVEN_SHARE = 0.4
"""Share of the time left for the order of the document, where there are others."""
_TRIED = 2
"""Orders that are solved besides that of the document."""
_SOLVE_SHARE = 0.6
"""Share of the time left for one of them."""
_STARTER = "anneal{patience=2}"
_START_S, _START_SHARE, _START_S_PER_NODE, _FEW_NODES = 5.0, 0.15, 0.02, 25
"""What makes a first schedule in an order, and the time for it."""
_SHAKE_S, _SHAKE_SHARE = 20.0, 0.15
_BOUNDED = 4
"""Orders that get a bound of their own, by which it is decided which ones to solve."""
_LEFT_S = 3.0
"""With less time than this left nothing is solved again."""


def solve_reordered(strategy: Strategy, task: Task, context: Context) -> Found | NotFound:
    """The cheapest schedule that ``strategy`` finds in the order of the document or in another; ties go to the peak.

    Args:
        strategy: A strategy that takes any DAG.
        task: The graph and the budget.
        context: What the strategy may use; the time is shared out between the orders.

    Returns:
        What it found, with bounds for any order; ``order`` says how the order came about. Never dearer than what it
        finds in the order of the document in the time that it has for that.

    Raises:
        StrategyMismatch: If the strategy takes the order of the document for part of the graph.
        SolverUnavailable, SolverFailed: From the solver.
    """
    if strategy.needs is not Needs.ANY:
        raise StrategyMismatch(
            f"{strategy.name} does not go with another order of the nodes: it takes {strategy.needs.value}",
            hint="leave --reorder out, or take a strategy that takes any DAG, such as auto",
        )
    graph, budget = task.graph, task.budget_bytes
    if has_one_order(graph):
        return _in_the_only_order(strategy, task, context)
    if not strategy.minds_budget:
        return _where_lowest(strategy, task, context)
    if budget is not None and peak(graph, range(len(graph.nodes))) > budget:
        return _Solving.of(strategy, task, context).run()
    # Nothing needs to be computed twice: then the smallest peak is best.
    return _once(graph, find_orders(graph, None, context.control.part(most_s=_ORDERS_S), context.seed).lowest)


def _once(graph: Graph, order: Order) -> Found:
    """Everything computed once, in ``order``; no schedule in any order is cheaper."""
    bound = Bound(graph.total_cost, Scope.ANY_ORDER)
    return Found(Schedule(order.nodes), (bound,), maker="keep-all", order=order.method)


def _where_lowest(strategy: Strategy, task: Task, context: Context) -> Found | NotFound:
    """The answer of a strategy that pays no heed to the budget, in the order of the smallest peak."""
    lowest = find_orders(task.graph, None, context.control.part(most_s=_ORDERS_S), context.seed).lowest
    view = reordered(task.graph, lowest.nodes)
    answer = strategy.solve(Task(view.graph, task.budget_bytes), replace(context, publish=lambda found: None))
    wide = tuple(bound for bound in answer.bounds if bound.scope is Scope.ANY_ORDER)
    if isinstance(answer, NotFound):
        return replace(answer, scope=None, best=None, bounds=wide)
    return replace(answer, schedule=_original(answer.schedule, view), bounds=wide, order=lowest.method)


def _in_the_only_order(strategy: Strategy, task: Task, context: Context) -> Found | NotFound:
    """The strategy's answer; what it proves of the order of the document holds for any, as there is no other."""

    def publish(found: Found) -> None:
        context.publish(replace(found, bounds=tuple(map(_widened, found.bounds))))

    answer = strategy.solve(task, replace(context, publish=publish))
    answer = replace(answer, bounds=tuple(map(_widened, answer.bounds)))
    if isinstance(answer, NotFound) and answer.scope is Scope.DOCUMENT_ORDER:
        return replace(answer, scope=Scope.ANY_ORDER)
    return answer


def _widened(bound: Bound) -> Bound:
    return Bound(bound.cost, Scope.ANY_ORDER) if bound.scope is Scope.DOCUMENT_ORDER else bound


@dataclass(slots=True)
class _Trial:
    """One order to solve in.

    Attributes:
        order: The order.
        view: The graph in it.
        bound: Of that order alone.
    """

    order: Order
    view: Reordered
    bound: Bound


@dataclass(slots=True)
class _Solving:
    """One task, solved in several orders.

    Attributes:
        strategy: The strategy.
        task: Graph and budget.
        budget_bytes: The budget.
        context: Time, solver, and who wants to hear of schedules.
        bounds: Bounds that hold for any order.
        best: The cheapest schedule so far, in indices of the graph; the lower peak on a tie.
        best_key: Its cost and peak.
        winner: The order it is in.
        lowest: The schedule of the smallest peak that came up, and that peak.
        finished: Whether every run of the strategy ended by itself, quick starts aside.
        used_solver: Whether one of them used a MIP solver.
    """

    strategy: Strategy
    task: Task
    budget_bytes: int
    context: Context
    bounds: tuple[Bound, ...]
    best: Found | None = None
    best_key: tuple[float, int] = (math.inf, 0)
    winner: _Trial | None = None
    lowest: tuple[int, Schedule] | None = None
    finished: bool = True
    used_solver: bool = field(default=False)

    @classmethod
    def of(cls, strategy: Strategy, task: Task, context: Context) -> _Solving:
        """Nothing but the trivial bound."""
        assert task.budget_bytes is not None
        trivial = Bound(task.graph.total_cost, Scope.ANY_ORDER)
        return cls(strategy, task, task.budget_bytes, context, (trivial,))

    def run(self) -> Found | NotFound:
        """Find orders, then solve: the document's order first, then the most promising others."""
        graph, control = self.task.graph, self.context.control
        orders = find_orders(graph, self.budget_bytes, control.part(_ORDERS_SHARE, _ORDERS_S), self.context.seed)
        if orders.lowest.peak_bytes <= self.budget_bytes:
            return _once(graph, orders.lowest)
        for order in (orders.given, *orders.others):
            self._note_low(Schedule(order.nodes))
        bound = self._cover(graph, any_order=True)
        if math.isinf(bound.cost):
            from remat_cli.milp.cover_bound import least_peak_in_any_order

            least = least_peak_in_any_order(graph)
            return NotFound("no schedule in any order fits", Scope.ANY_ORDER, peak_bound_bytes=least)
        self.bounds = (*self.bounds, bound)
        self._recall()
        self._solve_all(orders.given, orders.others)
        if self.best is not None:
            return replace(self.best, exhausted=not control.stopping(), used_solver=self.used_solver)
        lowest = None if self.lowest is None else self.lowest[1]
        reason = "no schedule within the budget was found, neither in the order of the document nor in others"
        return NotFound(reason, best=lowest, bounds=self.bounds)

    def _solve_all(self, given: Order, others: tuple[Order, ...]) -> None:
        """The given order for a good part of the time, then a quick start in each other one, and the best of those."""
        first = self._trial(given)
        start_s = min(_START_S, _START_S_PER_NODE * (_FEW_NODES + len(given.nodes)))
        trials = [self._trial(order) for order in others[:_BOUNDED] if order.excess < given.excess]
        trials = sorted((t for t in trials if math.isfinite(t.bound.cost)), key=lambda t: t.bound.cost)
        if self._may_gain(first):
            self._solve(self.strategy, first, self.context.control.part(_GIVEN_SHARE if trials else 1.0))
        for trial in trials:
            if self._may_gain(trial):
                self._solve(strategy_from_spec(_STARTER), trial, self.context.control.part(_START_SHARE, start_s))
        solved = {given.nodes}
        for _ in range(_TRIED):
            self._shake()
            left = [t for t in (self.winner, *trials) if t and t.order.nodes not in solved and self._may_gain(t)]
            if not left:
                break
            solved.add(left[0].order.nodes)
            self._solve(self.strategy, left[0], self.context.control.part(_SOLVE_SHARE))
        self._shake()
        remaining = self.context.control.remaining_s()
        if self.winner is not None and not self.finished and (remaining is None or remaining > _LEFT_S):
            self._solve(self.strategy, self.winner, self.context.control)

    def _may_gain(self, trial: _Trial) -> bool:
        """Whether an order may hold a schedule that is better by more than the gap asked for, and there is time."""
        if self.context.control.stopping() or self._proven():
            return False
        return trial.bound.cost < (1 - self.context.gap) * self.best_key[0]

    def _shake(self) -> None:
        """Leave recomputations out of the best schedule and change its order so that it still fits."""
        best, control = self.best, self.context.control.part(_SHAKE_SHARE, _SHAKE_S)
        if best is None or best.schedule.held or self._proven() or not ready(self.context.control):
            return
        from remat_cli.strategies.ordering.shake import shake  # numba takes 0.3 s to import

        def found(computes: tuple[int, ...]) -> None:
            self._take_over(Schedule(computes), replace(best, exhausted=False), f"{best.order or 'document'}, shaken")

        self.context.control.report(Progress("shaking the best plan", self.best_key[0], self._bound()))
        rng = random.Random(self.context.seed)
        shake(self.task.graph, best.schedule.computes, self.budget_bytes, control, rng, found)

    def _take_over(self, schedule: Schedule, found: Found, method: str) -> None:
        """Look at a schedule in any order."""
        nodes = tuple(dict.fromkeys(schedule.computes))
        order = Order(nodes, 0, 0, "" if nodes == tuple(range(len(nodes))) else method)
        trial = _Trial(order, reordered(self.task.graph, nodes), self.bounds[0])
        self._take(replace(found, schedule=_viewed(schedule, trial.view)), trial)

    def _recall(self) -> None:
        """Start from what is known of the task, which may be in any order."""
        known = self.task.known
        if known is None:
            return
        self.bounds += tuple(bound for bound in known.bounds if bound.scope is Scope.ANY_ORDER)
        for schedule in known.schedules:
            self._take_over(schedule, Found(schedule), "known before")

    def _trial(self, order: Order) -> _Trial:
        view = reordered(self.task.graph, order.nodes)
        return _Trial(order, view, self._cover(view.graph, any_order=False))

    def _cover(self, graph: Graph, *, any_order: bool) -> Bound:
        remaining = self.context.control.remaining_s()
        seconds = _BOUND_S if remaining is None else min(_BOUND_S, _BOUND_SHARE * remaining)
        return cover_bound(graph, self.budget_bytes, self.context, time_limit_s=seconds, any_order=any_order)

    def _solve(self, strategy: Strategy, trial: _Trial, control: Control) -> None:
        """Solve in one order, from the best schedule if that is in this order."""
        schedules: tuple[Schedule, ...] = ()
        if self.best is not None and self.winner is not None and self.winner.order.nodes == trial.order.nodes:
            schedules = (_viewed(self.best.schedule, trial.view),)

        def named(found: Found) -> Found:
            return replace(found, maker=found.maker or format_spec(strategy.name, strategy))

        task = replace(self.task, graph=trial.view.graph, known=Known(schedules, (*self.bounds, trial.bound)))
        context = replace(
            self.context,
            control=replace(control, listener=self._tell),
            publish=lambda found: self._take(named(found), trial),
            write_model=None if trial.order.method else self.context.write_model,
        )
        try:
            answer = strategy.solve(task, context)
        except (LimitReached, Interrupted):
            self.finished = self.finished and strategy is not self.strategy
            return
        if isinstance(answer, Found):
            self.finished = self.finished and (answer.exhausted or strategy is not self.strategy)
            self._take(named(answer), trial)
        else:
            self.finished = self.finished and (not control.stopping() or strategy is not self.strategy)
            if answer.best is not None:
                self._note_low(_original(answer.best, trial.view))

    def _take(self, found: Found, trial: _Trial) -> None:
        """Look at a schedule in the order of ``trial``; keep and publish it if it is the best."""
        schedule = _original(found.schedule, trial.view)
        self._note_low(schedule)
        graph, height = self.task.graph, peak(self.task.graph, schedule.computes)
        key = (cost_of(graph, schedule.computes), height)
        self.used_solver = self.used_solver or found.used_solver
        if height > self.budget_bytes or key >= self.best_key:
            return
        wide = tuple(bound for bound in found.bounds if bound.scope is Scope.ANY_ORDER)
        self.best = replace(found, schedule=schedule, bounds=(*self.bounds, *wide), order=trial.order.method)
        self.best_key, self.winner = key, trial
        self.context.publish(self.best)

    def _note_low(self, schedule: Schedule) -> None:
        height = peak(self.task.graph, schedule.computes)
        if self.lowest is None or height < self.lowest[0]:
            self.lowest = height, schedule

    def _proven(self) -> bool:
        cost = self.best_key[0]
        return self.best is not None and cost - self._bound() <= self.context.gap * cost

    def _bound(self) -> float:
        return max(bound.cost for bound in self.bounds)

    def _tell(self, progress: Progress) -> None:
        """Pass progress on, with the best cost of all orders and the bound that holds for all of them."""
        cost = self.best_key[0] if self.best is not None else None
        self.context.control.report(replace(progress, cost=cost, bound=self._bound()))


def _original(schedule: Schedule, view: Reordered) -> Schedule:
    """``schedule`` in indices of the graph that was reordered."""
    held = frozenset(view.values[v] for v in schedule.held)
    return Schedule(tuple(view.nodes[k] for k in schedule.computes), held)


def _viewed(schedule: Schedule, view: Reordered) -> Schedule:
    """``schedule`` in indices of the reordered graph."""
    node = {k: at for at, k in enumerate(view.nodes)}
    value = {v: at for at, v in enumerate(view.values)}
    return Schedule(tuple(node[k] for k in schedule.computes), frozenset(value[v] for v in schedule.held))
