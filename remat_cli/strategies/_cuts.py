"""Schedules that keep a cheapest choice across the stage that needs the most memory (see ``milp/cut``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from remat_cli.graph.analysis import no_remat_profile, working_set
from remat_cli.milp import cut
from remat_cli.milp.compile import compile_model
from remat_cli.mip import Floats
from remat_cli.plan.derive import peak
from remat_cli.solvers.base import Request, Termination
from remat_cli.strategies._best import Best

_SHARES = (1.0, 0.97, 0.93, 0.88, 0.8)
"""Shares of the room at the peak that are used, until what is computed again fits in elsewhere."""
_NEAR = 1.1
"""A schedule that is further over the budget than this, elsewhere, will not fit for less room at the peak either."""
_MOST_NODES = 5_000
_CUT_S = 3.0
_GAP = 1e-4
_LEAST_S = 5.0
"""With less time than this left it is not worth starting."""


def offer_cuts(best: Best) -> None:
    """Offer the schedules for several shares of the room at the no-remat peak; more room first, until one fits."""
    graph, remaining = best.graph, best.context.control.remaining_s()
    if len(graph.nodes) > _MOST_NODES or (remaining is not None and remaining < _LEAST_S):
        return
    profile = no_remat_profile(graph)
    stage = profile.index(max(profile))
    room = best.budget_bytes - graph.fixed_memory
    own = working_set(graph, stage)
    best.report("cutting")
    for share in _SHARES:
        if best.over() or room <= own:
            return
        stated = cut.build(graph, stage, own + int(share * (room - own)), best.context.control)
        compiled = compile_model(stated.model)
        control = best.step(_CUT_S, 0.05)
        outcome = best.context.solver.solve(
            Request(compiled.model, control, _GAP, best.context.threads, best.context.seed)
        )
        if outcome.values is None:
            return
        computes = stated.computes(_reader(outcome.values, compiled.column_of))
        best.offer(computes)
        height = peak(graph, computes)
        hard = outcome.termination is not Termination.OPTIMAL
        if hard or height <= best.budget_bytes or height > _NEAR * best.budget_bytes:
            return


def _reader(values: Floats, columns: Mapping[int, int]) -> Callable[[Any], float]:
    """Gives the value of a variable; 0 for one that no row mentions."""
    return lambda var: float(values[columns[id(var)]]) if id(var) in columns else 0.0
