"""Lower bounds on cost: what they are worth once a solver's rounding is taken into account."""

from __future__ import annotations

import math

from remat_cli.graph.model import Graph
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Found

_SOLVER_TOLERANCE = 1e-6
"""A solver's bound on a model scaled to about 1 may be too high by this much."""
_INTEGRAL_LIMIT = 2.0**40


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
    safe = bound - _SOLVER_TOLERANCE * base
    if base < _INTEGRAL_LIMIT and all(node.cost.is_integer() for node in graph.nodes):
        step = math.gcd(*(int(node.cost) for node in graph.nodes)) or 1
        return max(base, float(math.ceil(safe / step) * step))
    return max(base, safe)


def with_trivial_bound(graph: Graph, found: Found, cost: float) -> tuple[float, Scope]:
    """The better of the strategy's bound and C0, which holds for every plan in any order, with its scope."""
    base = graph.total_cost
    if found.lower_bound <= base or cost <= base:
        return base, Scope.ANY_ORDER
    return min(found.lower_bound, cost), found.scope
