"""Any strategy in other orders: the graph is solved as if its document listed the nodes in another order.

A bound for one order does not hold for another, so only bounds that hold for every order are passed on.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from remat_cli.control import Control, Progress
from remat_cli.errors import Interrupted, LimitReached, StrategyMismatch, Worded
from remat_cli.graph.model import Graph
from remat_cli.graph.order import Reordered, has_one_order, reordered
from remat_cli.kernels.compiling import wait
from remat_cli.milp.free_cut import FreeCuts
from remat_cli.plan.derive import peak
from remat_cli.plan.model import Scope
from remat_cli.solvers.base import Termination
from remat_cli.spec import format_spec
from remat_cli.strategies.base import Bound, Context, Found, Known, Needs, NotFound, Schedule, Strategy, Task
from remat_cli.strategies.bounds import cover_bound, of_share, safe_bound
from remat_cli.strategies.conditions import MEDIUM
from remat_cli.strategies.incumbent import Incumbent, Verdict
from remat_cli.strategies.ordering.any_order import MOST_NODES, cheapest_in_any_order
from remat_cli.strategies.ordering.candidates import Order, find_orders
from remat_cli.strategies.published.opener import QUICK_METHODS
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.tolerances import INNER_GAP, ROUNDING

_MOST_CUT_NODES = 3_000
"""A model of more nodes takes too long. Untuned."""
_SPREAD_STAGES, _APART, _HIGHEST = 4, 40, 8
"""Stages looked at first: some with a high load that are more than a 40th of all nodes apart, and those of the highest
load. Untuned."""
_STEP = 2
"""How far from the best stage others are looked at after that. Untuned."""
_LOOK_SHARE = 0.5
"""Share of the time for choosing the stage; the rest is for its MILP. Untuned."""


def free_cut_bound(graph: Graph, budget_bytes: int, context: Context, control: Control) -> Bound:
    """The cut bound of the best stage that is found: a few relaxations, then the MILP of the best one.

    Args:
        graph: The graph.
        budget_bytes: Fixed memory included.
        context: The solver.
        control: Clock of all solves.

    Returns:
        A bound for any order; C0 if there is no better one.
    """
    trivial = Bound(graph.total_cost, Scope.ANY_ORDER)
    if len(graph.nodes) > _MOST_CUT_NODES or graph.total_cost <= 0:
        return trivial
    cuts = FreeCuts.of(graph, budget_bytes)
    if cuts.room_bytes <= 0:
        return trivial
    look = control.part(_LOOK_SHARE)
    found: dict[int, float] = {}

    def relaxed(t: int) -> float:
        if t not in found and not look.stopping():
            found[t] = _least(cuts, t, context, look, integral=False)
        return found.get(t, 0.0)

    for t in _promising(cuts.load):
        relaxed(t)
    if not found:
        return trivial
    best = max(found, key=lambda t: found[t])
    step = _STEP
    while step:  # the loads of neighbours are alike, and so are their cuts
        around = [t for t in (best - step, best + step) if 0 <= t < len(cuts.load) and relaxed(t) > found[best]]
        best, step = (max(around, key=relaxed), step) if around else (best, step // 2)
    share = max(found[best], _least(cuts, best, context, control, integral=True) if found[best] > 0 else 0.0)
    bound = safe_bound(graph, graph.total_cost * (1 + share))
    return Bound(bound, Scope.ANY_ORDER) if bound > graph.total_cost else trivial


def _promising(load: list[int]) -> list[int]:
    """The stages to look at first."""
    ranked = sorted(range(len(load)), key=lambda t: -load[t])
    apart: list[int] = []
    for t in ranked:
        if all(abs(t - other) * _APART > len(load) for other in apart):
            apart.append(t)
        if len(apart) == _SPREAD_STAGES:
            break
    return list(dict.fromkeys([*apart, *ranked[:_HIGHEST]]))


def _least(cuts: FreeCuts, t: int, context: Context, control: Control, *, integral: bool) -> float:
    """A lower bound on the recomputation that the cut at ``t`` needs, as a share of C0."""
    outcome = context.solver.solve(context.request(cuts.model(t, integral=integral), control, gap=INNER_GAP))
    if outcome.termination is Termination.INFEASIBLE or outcome.bound is None:
        return 0.0
    return max(0.0, outcome.bound)


_ORDERS_S, _ORDERS_SHARE = 60.0, 0.15
"""Most seconds, and the largest share of the time left, for finding orders. Untuned."""
_BOUND_S, _BOUND_SHARE = 10.0, 0.05
_STATES_SHARE = 0.4
"""Share of the time left for the search of all states. Untuned: most of them end long before."""
_CUT_S, _CUT_SHARE = 20.0, 0.15
"""Most seconds, and the largest share of the time left, for the bound for any order. Untuned."""
_GIVEN_SHARE = 0.4
"""Share of the time left for the order of the document, if there are others. Untuned."""
_TRIED = 2
"""Orders to solve besides that of the document. Untuned."""
_SOLVE_SHARE = 0.6
"""Share of the time left for one of them. Untuned."""
_STARTER = "anneal{patience=2}"
_OPENING_S, _OPENING_SHARE = 10.0, 0.3
"""Most seconds, and the largest share of the time left, for first plans in the order of the document. Untuned."""
_START_S, _START_SHARE, _START_S_PER_NODE, _FEW_NODES = 5.0, 0.15, 0.02, 25
"""Time for the first schedule in another order, by ``_STARTER``. Untuned."""
_SHAKE_S, _SHAKE_SHARE = 20.0, 0.15
_BOUNDED = 4
"""Orders that get a cover bound, by which those to solve are chosen. Untuned."""
_LEFT_S = 3.0
"""With fewer seconds left the best order is not solved once more. Untuned."""


def solve_reordered(strategy: Strategy, task: Task, context: Context) -> Found | NotFound:
    """The cheapest schedule that ``strategy`` finds in the order of the document or in another; ties go to the peak.

    Args:
        strategy: A strategy that accepts any DAG.
        task: The graph and the budget.
        context: What the strategy may use; the time is divided among the orders.

    Returns:
        The cheapest schedule, with bounds for any order; ``order`` says how its order was found. It never costs more
        than the one found in the order of the document, in that order's share of the time.

    Raises:
        StrategyMismatch: If the strategy depends on the order of the document.
        SolverUnavailable, SolverFailed: From the solver.
    """
    if strategy.needs is not Needs.ANY:
        raise StrategyMismatch(
            f"{strategy.name} does not go with another order of the nodes: it takes {strategy.needs.value}",
            hint=Worded(
                "leave reorder out, or take a strategy that takes any DAG, such as auto",
                "leave --reorder out, or take a strategy that takes any DAG, such as auto",
            ),
        )
    graph, budget = task.graph, task.budget_bytes
    if has_one_order(graph):
        return _in_the_only_order(strategy, task, context)
    if not strategy.minds_budget:
        return _where_lowest(strategy, task, context)
    if budget is not None and peak(graph, range(len(graph.nodes))) > budget:
        return _Solving.of(strategy, task, context).run()
    # No recomputation is needed, so all orders cost C0 and the smallest peak is best.
    return _once(graph, find_orders(graph, None, context.control.part(most_s=_ORDERS_S), context.seed).lowest)


def _once(graph: Graph, order: Order) -> Found:
    """Every node once, in ``order``; no schedule in any order is cheaper."""
    bound = Bound(graph.total_cost, Scope.ANY_ORDER)
    return Found(Schedule(order.nodes), (bound,), maker="keep-all", order=order.method)


def _where_lowest(strategy: Strategy, task: Task, context: Context) -> Found | NotFound:
    """The answer of a strategy that ignores the budget, in the order of the smallest peak."""
    lowest = find_orders(task.graph, None, context.control.part(most_s=_ORDERS_S), context.seed).lowest
    view = reordered(task.graph, lowest.nodes)
    answer = strategy.solve(Task(view.graph, task.budget_bytes), replace(context, publish=lambda found: None))
    wide = tuple(bound for bound in answer.bounds if bound.scope is Scope.ANY_ORDER)
    if isinstance(answer, NotFound):
        return replace(answer, scope=None, best=None, bounds=wide)
    return replace(answer, schedule=_original(answer.schedule, view), bounds=wide, order=lowest.method)


def _in_the_only_order(strategy: Strategy, task: Task, context: Context) -> Found | NotFound:
    """The strategy's answer; its bounds for document order hold for any order, because there is no other."""

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
        bound: Lower bound for that order alone.
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
        context: Time, solver, and the listener for schedules.
        incumbent: The cheapest schedule so far, in indices of the graph, and bounds that hold for any order.
        winner: The order of the incumbent.
        finished: Whether every run of the strategy ended by itself; quick starts do not count.
    """

    strategy: Strategy
    task: Task
    budget_bytes: int
    context: Context
    incumbent: Incumbent
    winner: _Trial | None = None
    finished: bool = True

    @classmethod
    def of(cls, strategy: Strategy, task: Task, context: Context) -> _Solving:
        """Nothing but the trivial bound."""
        assert task.budget_bytes is not None
        return cls(strategy, task, task.budget_bytes, context, Incumbent.empty(task, context, goal=Verdict.GAP))

    def run(self) -> Found | NotFound:
        """Find orders, then solve the document's order first and the most promising others after it."""
        graph, control = self.task.graph, self.context.control
        self._open()
        orders = find_orders(graph, self.budget_bytes, control.part(_ORDERS_SHARE, _ORDERS_S), self.context.seed)
        if orders.lowest.peak_bytes <= self.budget_bytes:
            return _once(graph, orders.lowest)
        for order in (orders.given, *orders.others):
            self.incumbent.offer(order.nodes)
        bound = self._cover(graph, any_order=True)
        self.incumbent.raise_bound(bound)
        self._recall()
        if math.isinf(bound.cost) or not self._search_states():
            from remat_cli.milp.cover_bound import least_peak_in_any_order

            least = max(least_peak_in_any_order(graph), self.budget_bytes + 1)
            return self.incumbent.not_found("no schedule in any order fits", Scope.ANY_ORDER, peak_bound_bytes=least)
        if not self.incumbent.over():
            clock = control.part(_CUT_SHARE, _CUT_S)
            self.incumbent.raise_bound(free_cut_bound(graph, self.budget_bytes, self.context, clock))
        self._solve_all(orders.given, orders.others)
        if self.incumbent.computes is not None:
            return self.incumbent.found(exhausted=not control.stopping())
        reason = "no schedule within the budget was found, neither in the order of the document nor in others"
        return self.incumbent.not_found(reason)

    def _search_states(self) -> bool:
        """Search all schedules of a small graph, in any order; False if none fits."""
        graph, incumbent, control = self.task.graph, self.incumbent, self.context.control.part(_STATES_SHARE)
        if len(graph.nodes) > MOST_NODES or incumbent.done() or not wait("states", control):
            return True
        incumbent.report("searching all orders")
        unit = graph.total_cost or 1.0
        # A little more than the cost that closes the gap, so that rounding does not leave it open.
        ceiling = ((1 - self.context.gap) * incumbent.cost - graph.total_cost) / unit + 2 * ROUNDING

        def found(computes: tuple[int, ...]) -> None:
            schedule = Schedule(computes)
            self._take_over(schedule, Found(schedule, maker="optimal"), "search of all orders")
            incumbent.report("searching all orders")

        cheapest = cheapest_in_any_order(graph, self.budget_bytes, control, ceiling=ceiling, found=found)
        incumbent.raise_bound(Bound(of_share(graph, cheapest.bound), Scope.ANY_ORDER))
        return math.isfinite(cheapest.bound)

    def _open(self) -> None:
        """Run the methods that take milliseconds in the order of the document."""
        order = Order(tuple(range(len(self.task.graph.nodes))), 0, 0)
        given = _Trial(order, reordered(self.task.graph, order.nodes), self.incumbent.bound)
        control = self.context.control.part(_OPENING_SHARE, _OPENING_S)
        for spec in QUICK_METHODS:
            if not control.stopping():
                self._solve(strategy_from_spec(spec), given, control)

    def _solve_all(self, given: Order, others: tuple[Order, ...]) -> None:
        """Solve the document's order, make a quick start in each other one, and solve the best of those."""
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
        """Whether an order may hold a schedule that is better by more than the requested gap, and there is time."""
        if self.context.control.stopping() or self.incumbent.done():
            return False
        return trial.bound.cost < (1 - self.context.gap) * self.incumbent.cost

    def _shake(self) -> None:
        """Remove recomputations from the incumbent and change its order so that it still fits."""
        incumbent, control = self.incumbent, self.context.control.part(_SHAKE_SHARE, _SHAKE_S)
        if incumbent.best is None or incumbent.best.schedule.held or incumbent.done():
            return
        if not wait("ordering", self.context.control):
            return
        from remat_cli.strategies.ordering.anneal import shake  # numba takes 0.3 s to import

        best = incumbent.found(exhausted=False)

        def found(computes: tuple[int, ...]) -> None:
            self._take_over(Schedule(computes), best, f"{best.order or 'document'}, shaken")

        incumbent.report("shaking the best plan")
        rng = random.Random(self.context.seed)
        shake(self.task.graph, best.schedule.computes, self.budget_bytes, control, rng, found)

    def _take_over(self, schedule: Schedule, found: Found, method: str) -> None:
        """Consider a schedule in any order."""
        nodes = tuple(dict.fromkeys(schedule.computes))
        order = Order(nodes, 0, 0, "" if nodes == tuple(range(len(nodes))) else method)
        trial = _Trial(order, reordered(self.task.graph, nodes), self.incumbent.bound)
        self._take(replace(found, schedule=_viewed(schedule, trial.view)), trial)

    def _recall(self) -> None:
        """Start from the known schedules of the task, which may be in any order."""
        known = self.task.known
        if known is None:
            return
        for bound in _of_any_order(known.bounds):
            self.incumbent.raise_bound(bound)
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
        """Solve in one order, starting from the incumbent if it is in this order."""
        schedules: tuple[Schedule, ...] = ()
        if self.winner is not None and self.winner.order.nodes == trial.order.nodes:
            schedules = (_viewed(self.incumbent.found(exhausted=False).schedule, trial.view),)

        def named(found: Found) -> Found:
            return replace(found, maker=found.maker or format_spec(strategy.name, strategy))

        # On small graphs the methods with which searches begin take no time, so they run in every order.
        opened = len(trial.view.graph.nodes) >= MEDIUM
        known = Known(schedules, (*self.incumbent.bounds.values(), trial.bound), opened=opened)
        task = replace(self.task, graph=trial.view.graph, known=known, news=None)  # news is in the document's indices
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
                self.incumbent.offer(_original(answer.best, trial.view).computes)

    def _take(self, found: Found, trial: _Trial) -> None:
        """Consider a schedule in the order of ``trial``, with those of its bounds that hold for any order."""
        before = self.incumbent.computes
        self.incumbent.take(
            replace(
                found,
                schedule=_original(found.schedule, trial.view),
                bounds=tuple(_of_any_order(found.bounds)),
                order=trial.order.method,
            )
        )
        if self.incumbent.computes is not before:
            self.winner = trial

    def _tell(self, progress: Progress) -> None:
        """Pass progress on, with the best cost of all orders and the bound that holds for all of them."""
        self.incumbent.report(progress.activity, progress.nodes)


def _of_any_order(bounds: Iterable[Bound]) -> Iterator[Bound]:
    """The bounds that hold for every order."""
    return (bound for bound in bounds if bound.scope is Scope.ANY_ORDER)


def _original(schedule: Schedule, view: Reordered) -> Schedule:
    """``schedule`` in indices of the graph that was reordered."""
    held = frozenset(view.values[v] for v in schedule.held)
    return Schedule(tuple(view.nodes[k] for k in schedule.computes), held)


def _viewed(schedule: Schedule, view: Reordered) -> Schedule:
    """``schedule`` in indices of the reordered graph."""
    node = {k: at for at, k in enumerate(view.nodes)}
    value = {v: at for at, v in enumerate(view.values)}
    return Schedule(tuple(node[k] for k in schedule.computes), frozenset(value[v] for v in schedule.held))
