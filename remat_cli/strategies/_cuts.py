"""Schedules and bounds from what to keep across the stages that need the most memory (see ``milp/cut``).

Begin with one cut, at the no-remat peak. Where the schedule that comes of it is over the budget, cut there too, and so
on: each round raises the bound, and where the schedule fits it is as cheap as the bound. Training steps often fit after
a cut or two.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_profile, working_set
from remat_cli.graph.model import Graph
from remat_cli.milp import cut
from remat_cli.milp.compile import compile_model
from remat_cli.mip import Floats
from remat_cli.plan.derive import peak
from remat_cli.plan.model import Scope
from remat_cli.solvers.base import Request, Termination
from remat_cli.strategies._best import Best
from remat_cli.strategies.base import Bound
from remat_cli.strategies.bounds import safe_bound

_MOST_CUTS = 16
_MOST_VARIABLES = 60_000
_SHARES = (0.97, 0.93, 0.88, 0.8)
"""Shares of the room that are used where only what is computed again inside a stage is over the budget."""
_CUTS_S, _CUTS_WITHOUT_LIMIT_S = 20.0, 3.0
"""Time at most, with a time limit and without one."""
_GAP = 1e-5
_LEAST_S = 5.0
"""With less time than this left it is not worth starting."""


def offer_cuts(best: Best) -> None:
    """Offer the schedules that come of cuts, and the bounds."""
    graph, remaining = best.graph, best.context.control.remaining_s()
    if best.tight() or (remaining is not None and remaining < _LEAST_S):
        return
    profile = no_remat_profile(graph)
    cuts = [profile.index(max(profile))]
    room = best.budget_bytes - graph.fixed_memory
    control = best.step(_CUTS_WITHOUT_LIMIT_S if remaining is None else _CUTS_S, 0.1)
    shares = iter(_SHARES)
    while not best.over() and not control.stopping() and _affordable(graph, cuts):
        best.report("cutting")
        if max(working_set(graph, t) for t in cuts) > room:
            best.raise_bound(Bound(math.inf, Scope.DOCUMENT_ORDER))
            return
        computes = _solved(best, cuts, room, control)
        if computes is None or peak(graph, computes) <= best.budget_bytes:
            return
        worst = _most_crowded(graph, computes, best.budget_bytes - graph.fixed_memory)
        if worst is not None and worst not in cuts:
            bisect.insort(cuts, worst)
        elif (share := next(shares, None)) is not None:
            room = round(share * (best.budget_bytes - graph.fixed_memory))
            if room < max(working_set(graph, t) for t in cuts):
                return
        else:
            return


def _affordable(graph: Graph, cuts: Sequence[int]) -> bool:
    return len(cuts) <= _MOST_CUTS and sum(t + graph.first_value[t] for t in cuts) <= _MOST_VARIABLES


def _solved(best: Best, cuts: Sequence[int], room: int, control: Control) -> tuple[int, ...] | None:
    """Solve for ``cuts``, and offer the schedule; with the whole room the bound counts too.

    Returns:
        The schedule; None if the solver did not get to the end, and so would not with more cuts.
    """
    graph, context = best.graph, best.context
    stated = cut.build(graph, cuts, room, context.control)
    compiled = compile_model(stated.model)
    outcome = context.solver.solve(Request(compiled.model, control, _GAP, context.threads, context.seed))
    if room == best.budget_bytes - graph.fixed_memory:
        if outcome.termination is Termination.INFEASIBLE:
            best.raise_bound(Bound(math.inf, Scope.DOCUMENT_ORDER))
        elif outcome.bound is not None:
            total = graph.total_cost + max(0.0, outcome.bound) * (graph.total_cost or 1.0)
            best.raise_bound(Bound(safe_bound(graph, total), Scope.DOCUMENT_ORDER))
    if outcome.values is None or outcome.termination is not Termination.OPTIMAL:
        return None
    computes = stated.computes(_reader(outcome.values, compiled.column_of))
    best.offer(computes)
    return computes


def _reader(values: Floats, columns: Mapping[int, int]) -> Callable[[Any], float]:
    """Gives the value of a variable; 0 for one that no row mentions."""
    return lambda var: float(values[columns[id(var)]]) if id(var) in columns else 0.0


def _most_crowded(graph: Graph, computes: Sequence[int], room: int) -> int | None:
    """The node at whose first computation most memory is in use; None if all of these are within the room."""
    live = set(graph.outputs)
    level = sum(graph.size[v] for v in live)
    first = dict(zip(reversed(computes), range(len(computes) - 1, -1, -1), strict=True))
    worst, highest = None, room
    for position in range(len(computes) - 1, -1, -1):
        k = computes[position]
        node = graph.nodes[k]
        made = set(graph.values_of(k))
        level -= sum(graph.size[v] for v in made & live)
        live -= made
        level += sum(graph.size[v] for v in {*node.inputs} - live)
        live.update(node.inputs)
        height = level + sum(node.outputs) + node.workspace
        if first[k] == position and height > highest:
            worst, highest = k, height
    return worst
