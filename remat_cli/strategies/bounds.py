"""Lower bounds on cost, each with the schedules it holds for, and safe against a solver's rounding."""

from __future__ import annotations

import math
from collections.abc import Iterable

from remat_cli.control import Control
from remat_cli.graph.model import Graph
from remat_cli.milp import cover_bound as cover
from remat_cli.milp import cover_running
from remat_cli.plan.model import Scope
from remat_cli.solvers.base import Termination
from remat_cli.strategies.base import Bound, Context
from remat_cli.tolerances import BOUND_MARGIN, INNER_GAP, ROUNDING, SAME_COST

_MOST_TERMS = 50_000
"""Terms up to which the plain cover bound is stated."""
_INTEGRAL_LIMIT = 2.0**40


def cover_bound(
    graph: Graph, budget_bytes: int, context: Context, *, time_limit_s: float, any_order: bool = False
) -> Bound:
    """The cover bound (see ``milp/cover_bound``): cheap, and often equal to the optimum at moderate budgets.

    Args:
        graph: The graph.
        budget_bytes: Fixed memory included.
        context: Solver and control.
        time_limit_s: Time for it; what the solver has proven by then counts.
        any_order: Whether it is to hold for schedules in any order, and not only in that of the document.

    Returns:
        A bound for document order, or for any; infinite if no such schedule fits, because some stage needs more room
        than giving up all that may be recomputed would make.
    """
    trivial = Bound(graph.total_cost, Scope.ANY_ORDER)
    scope = Scope.ANY_ORDER if any_order else Scope.DOCUMENT_ORDER
    if not any_order and cover_running.dense_terms(graph) > _MOST_TERMS:
        model = cover_running.build(graph, budget_bytes, context.control)
    else:
        model = cover.build(graph, budget_bytes, any_order=any_order)
    if model is None:
        return trivial
    if isinstance(model, str):
        return Bound(math.inf, scope)
    control = context.control.part(most_s=time_limit_s)
    outcome = context.solver.solve(context.request(model, control, gap=INNER_GAP))
    if outcome.termination is Termination.INFEASIBLE or outcome.bound is None:
        return trivial
    scale = graph.total_cost or 1.0
    safe = safe_bound(graph, graph.total_cost + max(0.0, outcome.bound) * scale)
    return Bound(safe, scope) if safe > graph.total_cost else trivial


def quick_bound(graph: Graph, budget_bytes: int, control: Control) -> Bound:
    """A bound for large graphs, whose cover bound a solver may have no time for: nearly as high, in a second at most.

    Args:
        graph: The graph; where it is small this says no more than that every node is computed once.
        budget_bytes: Fixed memory included.
        control: Ends it early.

    Returns:
        A bound for document order; infinite as for :func:`cover_bound`.
    """
    base = graph.total_cost
    if cover_running.dense_terms(graph) <= _MOST_TERMS:
        return Bound(base, Scope.ANY_ORDER)
    from remat_cli.strategies.cover_dual import dual_bound

    bound = of_share(graph, dual_bound(graph, budget_bytes, control))
    return Bound(bound, Scope.DOCUMENT_ORDER) if bound > base else Bound(base, Scope.ANY_ORDER)


def recompute_prices(graph: Graph, budget_bytes: int, context: Context, *, time_limit_s: float) -> cover.Prices:
    """What recomputing nodes costs beyond what every schedule within the budget must pay.

    Args:
        graph: With its closing node.
        budget_bytes: Fixed memory included.
        context: Solver and control.
        time_limit_s: Time for it; without an answer by then every node has its own cost for a price.
    """
    plain = cover.Prices(0.0, tuple(node.cost for node in graph.nodes), (0.0,) * len(graph.nodes))
    stated = cover.price_model(graph, budget_bytes)
    if not stated.rows or any(sum(parts.values()) < need for need, parts in stated.rows):
        return plain
    control = context.control.part(most_s=time_limit_s)
    outcome = context.solver.solve(context.request(stated.model, control))
    return plain if outcome.values is None else stated.prices(outcome.values.tolist())


def safe_bound(graph: Graph, bound: float | None) -> float:
    """A solver's lower bound on cost, made safe: no less than C0, and rounded where costs are integral.

    Args:
        graph: The graph.
        bound: In the graph's cost unit; None for none.

    Returns:
        A bound in the graph's cost unit. With integral costs every plan costs a multiple of their gcd, so the bound is
        rounded up to one, after taking off what the solver's tolerance may have added.
    """
    base = graph.total_cost
    if bound is None or not math.isfinite(bound) or bound <= base:
        return base
    return whole(graph, bound - BOUND_MARGIN * base)


def whole(graph: Graph, bound: float) -> float:
    """``bound``, a lower bound on cost, at least C0, and rounded up where costs are integral."""
    base = graph.total_cost
    if math.isfinite(bound) and base < _INTEGRAL_LIMIT and all(node.cost.is_integer() for node in graph.nodes):
        step = math.gcd(*(int(node.cost) for node in graph.nodes)) or 1
        return max(base, float(math.ceil(bound / step) * step))
    return max(base, bound)


def of_share(graph: Graph, share: float) -> float:
    """The bound that is C0 and a ``share`` of it, made safe against the rounding of that product."""
    return whole(graph, graph.total_cost + (share - ROUNDING) * graph.total_cost)


def telling(graph: Graph, bounds: Iterable[Bound], cost: float) -> Bound:
    """The bound that says most about a schedule of ``cost``; C0, which holds for every plan, if there is no better.

    A bound above the cost does not speak of this schedule, which then lies outside the set that the bound is for. Of
    equal bounds the one for the wider set is taken.
    """
    best = Bound(min(graph.total_cost, cost), Scope.ANY_ORDER)
    for bound in bounds:
        if bound.cost > cost * (1 + SAME_COST):
            continue
        value = min(bound.cost, cost)
        if value > best.cost or (value == best.cost and bound.scope.contains(best.scope)):
            best = Bound(value, bound.scope)
    return best
