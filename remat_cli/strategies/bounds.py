"""Lower bounds on cost, each with the schedules it holds for, and safe against a solver's rounding."""

from __future__ import annotations

import math
from collections.abc import Iterable

from remat_cli.graph.model import Graph
from remat_cli.milp import cover_bound as cover
from remat_cli.plan.model import Scope
from remat_cli.solvers.base import Termination
from remat_cli.strategies.base import Bound, Context
from remat_cli.tolerances import BOUND_MARGIN, INNER_GAP, ROUNDING, SAME_COST

MOST_TERMS = 50_000
"""Terms of the largest plain cover bound to state. Untuned."""
_INTEGRAL_LIMIT = 2.0**40
"""Cost up to which sums of whole numbers are exact in floats, with room to spare (floats hold 53 bits)."""


def cover_bound(
    graph: Graph, budget_bytes: int, context: Context, *, time_limit_s: float, any_order: bool = False
) -> Bound:
    """The cover bound (see ``milp/cover_bound``): cheap, and often equal to the optimum at moderate budgets.

    Args:
        graph: The graph.
        budget_bytes: Fixed memory included.
        context: Solver and control.
        time_limit_s: Seconds for it; the bound reached by then counts.
        any_order: Whether the bound must hold for schedules in any order, not only in document order.

    Returns:
        A bound for document order, or for any; infinite if no such schedule fits, because some stage needs more room
        than dropping all recomputable values would free.
    """
    trivial = Bound(graph.total_cost, Scope.ANY_ORDER)
    scope = Scope.ANY_ORDER if any_order else Scope.DOCUMENT_ORDER
    if not any_order and cover.dense_terms(graph) > MOST_TERMS:
        model = cover.build_running(graph, budget_bytes, context.control)
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


def recompute_prices(graph: Graph, budget_bytes: int, context: Context, *, time_limit_s: float) -> cover.Prices:
    """Reduced costs: the price of recomputing a node beyond what every schedule within the budget must pay.

    Args:
        graph: The graph with its closing node.
        budget_bytes: Fixed memory included.
        context: Solver and control.
        time_limit_s: Seconds for it; without an answer by then the price of every node is its cost.
    """
    plain = cover.Prices(0.0, tuple(node.cost for node in graph.nodes), (0.0,) * len(graph.nodes))
    stated = cover.price_model(graph, budget_bytes)
    if not stated.rows or any(sum(parts.values()) < need for need, parts in stated.rows):
        return plain
    control = context.control.part(most_s=time_limit_s)
    outcome = context.solver.solve(context.request(stated.model, control))
    return plain if outcome.values is None else stated.prices(outcome.values.tolist())


def safe_bound(graph: Graph, bound: float | None) -> float:
    """A solver's lower bound on cost, made safe: at least C0, and rounded up if costs are integral.

    Args:
        graph: The graph.
        bound: In the graph's cost unit; None for none.

    Returns:
        A bound in the graph's cost unit. With integral costs every plan costs a multiple of their gcd; the bound is
        rounded up to one, after it is lowered by the solver's tolerance.
    """
    base = graph.total_cost
    if bound is None or not math.isfinite(bound) or bound <= base:
        return base
    return whole(graph, bound - BOUND_MARGIN * base)


def whole(graph: Graph, bound: float) -> float:
    """``bound``, a lower bound on cost, raised to C0 at least and rounded up if costs are integral."""
    base = graph.total_cost
    if math.isfinite(bound) and base < _INTEGRAL_LIMIT and all(float(node.cost).is_integer() for node in graph.nodes):
        step = math.gcd(*(int(node.cost) for node in graph.nodes)) or 1
        return max(base, float(math.ceil(bound / step) * step))
    return max(base, bound)


def of_share(graph: Graph, share: float) -> float:
    """The bound (1 + ``share``) * C0, made safe against the rounding of that product."""
    return whole(graph, graph.total_cost + (share - ROUNDING) * graph.total_cost)


def strongest(graph: Graph, bounds: Iterable[Bound], cost: float) -> Bound:
    """The strongest bound on a schedule of ``cost``; C0, which holds for every plan, if there is no better.

    A bound above the cost does not apply: the schedule then lies outside the bound's scope. Of equal bounds the wider
    scope is taken.
    """
    best = Bound(min(graph.least_cost, cost), Scope.ANY_ORDER)
    for bound in bounds:
        if bound.cost > cost * (1 + SAME_COST):
            continue
        value = min(bound.cost, cost)
        if value > best.cost or (value == best.cost and bound.scope.contains(best.scope)):
            best = Bound(value, bound.scope)
    return best
