"""A lower bound on the cost of schedules in any order, from the cut of one stage (see ``milp/free_cut``)."""

from __future__ import annotations

from remat_cli.control import Control
from remat_cli.graph.model import Graph
from remat_cli.milp.free_cut import FreeCuts
from remat_cli.plan.model import Scope
from remat_cli.solvers.base import Termination
from remat_cli.strategies.base import Bound, Context
from remat_cli.strategies.bounds import safe_bound
from remat_cli.tolerances import INNER_GAP

_MOST_NODES = 3_000
"""A model of more nodes takes too long. Untuned."""
_TRIED, _APART, _HIGHEST = 4, 40, 8
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
    if len(graph.nodes) > _MOST_NODES or graph.total_cost <= 0:
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
        if len(apart) == _TRIED:
            break
    return list(dict.fromkeys([*apart, *ranked[:_HIGHEST]]))


def _least(cuts: FreeCuts, t: int, context: Context, control: Control, *, integral: bool) -> float:
    """A lower bound on the recomputation that the cut at ``t`` needs, as a share of C0."""
    outcome = context.solver.solve(context.request(cuts.model(t, integral=integral), control, gap=INNER_GAP))
    if outcome.termination is Termination.INFEASIBLE or outcome.bound is None:
        return 0.0
    return max(0.0, outcome.bound)
