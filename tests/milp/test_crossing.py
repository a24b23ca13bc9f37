"""The crossing MILP against a search of all plans with copies, with every solver, and at its two ends."""

import math
import random
from dataclasses import replace
from functools import cache

import pytest
from copying_bruteforce import TooMany, least_time, tiny
from families import varied_graph
from seeded import seeded

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph
from remat_cli.milp import retention
from remat_cli.milp.crossing import build, windows
from remat_cli.mip import LinearModel
from remat_cli.plan.host import Host
from remat_cli.solvers.base import Request, Solver, Termination
from remat_cli.solvers.highs import Highs
from remat_cli.solvers.registry import SOLVERS, solver_from_spec


@cache
def case(seed: int) -> tuple[Graph, int, Host, float | None] | None:
    """A tiny graph, a budget below the no-remat peak, a host, and the least time; None where there is none."""
    rng = random.Random(seed)
    graph = tiny(seed)
    low, high = peak_bound(graph).bytes, no_remat_peak(graph)
    host = Host(
        rng.choice((0.5, 1.0, 4.0, 1e9)),
        rng.choice((0.5, 2.0, 1e9)),
        rng.choice((0.0, 0.5)),
        rng.choice((None, None, 5)),
    )
    if low == high:
        return None
    budget = rng.randint(low, high - 1)
    try:
        return graph, budget, host, least_time(graph, budget, host, most=8_000)
    except TooMany:
        return None


def solved(model: LinearModel, solver: Solver) -> float:
    """The optimum; infinite if there is no solution."""
    outcome = solver.solve(Request(model, gap=1e-9))
    if outcome.termination is Termination.INFEASIBLE:
        return math.inf
    assert outcome.termination is Termination.OPTIMAL
    assert outcome.bound is not None
    return outcome.bound


def strengthened(graph: Graph, budget: int, host: Host) -> LinearModel:
    """The model with every window that its relaxation violates."""
    stated = build(graph, budget, host)
    model = stated.model()
    while True:
        outcome = Highs().solve(Request(model.relaxed()))
        rows = [] if outcome.values is None else windows(stated, outcome.values)
        if not rows:
            return model
        model = model.with_rows(rows)


AVAILABLE = [name for name in SOLVERS.names() if solver_from_spec(name).availability().available]


@pytest.mark.parametrize("name", AVAILABLE)
def test_no_plan_with_any_copies_is_quicker_than_the_bound(name: str) -> None:
    solver, tight, compared = solver_from_spec(name), 0, 0
    for seed in range(0, 120, 2 if name in {"cbc", "glpk"} else 1):  # those start a process for each model
        found = case(seed)
        if found is None:
            continue
        graph, budget, host, least = found
        bound = graph.total_cost * (1 + solved(strengthened(graph, budget, host), solver))
        assert bound <= (math.inf if least is None else least) + 1e-5, seed
        compared += 1
        tight += least is not None and bound > least - 1e-5
    assert compared >= (8 if name in {"cbc", "glpk"} else 30)
    assert tight >= compared // 2


@seeded(range(120))
def test_any_choice_of_cuts_gives_a_bound(seed: int) -> None:
    found = case(seed)
    if found is None:
        return
    graph, budget, host, least = found
    chosen = [i for i in range(len(graph.nodes) - 1) if random.Random(seed + i).random() < 0.5]
    bound = graph.total_cost * (1 + solved(build(graph, budget, host, chosen).model(), Highs()))
    assert bound <= (math.inf if least is None else least) + 1e-5


@seeded(range(60))
def test_without_bandwidth_it_is_the_retention_model(seed: int) -> None:
    graph = varied_graph(seed, 4, 8)
    low, high = peak_bound(graph).bytes, no_remat_peak(graph)
    budget = random.Random(seed).randint(low, high)
    today = retention.build(graph, budget, None, Control())
    crossing = build(graph, budget, None)
    # Both count costs in units of C0; the retention model counts first computations, too.
    assert solved(crossing.model(), Highs()) + 1 == pytest.approx(solved(today.model(), Highs()), abs=1e-7)


@seeded(range(60))
def test_with_unlimited_bandwidth_only_memory_rows_are_left(seed: int) -> None:
    graph = replace(varied_graph(seed, 4, 8), cost_unit="s")
    host = Host(math.inf, math.inf)
    # Every working set fits, and so does what is there at the end: nothing is computed again.
    assert solved(build(graph, peak_bound(graph).bytes, host).model(), Highs()) == pytest.approx(0, abs=1e-9)
