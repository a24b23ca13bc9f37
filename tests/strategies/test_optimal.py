"""Strategy ``optimal``: equal to the paper's MILP where that answers, and far ahead where it does not."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from bruteforce import cheapest
from families import random_graph

from remat_cli.control import Control
from remat_cli.errors import Infeasible, UsageError
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.plan.model import ClaimStatus, Scope
from remat_cli.planning.solving import SolveOptions, solve
from remat_cli.solvers.highs import Highs
from remat_cli.strategies.base import Bound, Context, Task
from remat_cli.strategies.bounds import strongest
from remat_cli.strategies.chains.visits import chain_answer, chain_first
from remat_cli.strategies.incumbent import Incumbent, Verdict
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.strategies.retention.solving import Retention
from remat_cli.zoo.registry import build_graph


@pytest.mark.parametrize("seed", range(40))
def test_equals_a_search_of_all_frontier_advancing_schedules(seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(
        rng, rng.randint(3, 6), max_outputs=2, workspace=True, recompute_false=0.1, random_outputs=True
    )
    for budget in range(max(1, no_remat_peak(graph) - 4), no_remat_peak(graph)):
        truth, beyond = cheapest(graph, budget, passes=1), cheapest(graph, budget)
        try:
            solved = solve(graph, budget, SolveOptions(strategy="optimal", threads=1, gap=1e-6))
        except Infeasible:
            assert truth is None
            continue
        cost = solved.plan.claim.cost
        assert beyond is not None
        assert beyond <= cost
        # Its starts may lie outside the class; what is cheaper than all of the class must say so by its bound.
        assert truth is None or cost <= truth
        if truth == cost:
            assert solved.plan.claim.status is ClaimStatus.OPTIMAL
        else:
            assert solved.plan.claim.scope.contains(Scope.DOCUMENT_ORDER)
            assert solved.plan.claim.lower_bound <= beyond


@pytest.mark.parametrize(("budget", "cost"), [(3, 45), (4, 26), (5, 22), (6, 21), (7, 20), (8, 19), (9, 18)])
def test_unit_chain(budget: int, cost: int) -> None:
    solved = solve(build_graph("unit-chain{n=17}"), budget, SolveOptions(strategy="optimal"))
    assert solved.plan.claim.cost == cost
    assert solved.plan.claim.status is ClaimStatus.OPTIMAL


@pytest.mark.parametrize("solver", ["cbc", "glpk", "gurobi"])
def test_any_solver(solver: str) -> None:
    graph = build_graph("linear{n=8,sizes=1:2:3:4:5:6:7:8}")
    solved = solve(graph, 32, SolveOptions(strategy="optimal", solver=solver))
    assert (solved.plan.claim.cost, solved.plan.solver) == (32, solver)


@pytest.mark.parametrize("budget", ["80%", "60%"])
def test_mobilenet_is_proven_in_document_order(budget: str) -> None:
    """169 nodes, on which the paper's MILP finds no plan within a minute."""
    solved = solve(build_graph("mobilenet-v1"), budget, SolveOptions(strategy="optimal"))
    assert solved.plan.claim.status is ClaimStatus.OPTIMAL
    assert solved.plan.claim.scope is Scope.DOCUMENT_ORDER
    assert solved.outcome == "finished"
    assert 0 < solved.report.overhead < 0.01


def test_a_time_limit_keeps_the_best_plan() -> None:
    solved = solve(build_graph("densenet121"), "70%", SolveOptions(strategy="optimal", time_limit_s=20))
    assert solved.report.ok
    assert solved.outcome in {"time limit", "finished"}
    assert 0 < solved.plan.claim.lower_bound <= solved.plan.claim.cost


def test_depth_is_checked() -> None:
    with pytest.raises(UsageError):
        strategy_from_spec("optimal{depth=-1}")
    assert strategy_from_spec("optimal{depth=2.5}")


def test_what_no_plan_can_do_is_refused_at_once() -> None:
    with pytest.raises(Infeasible, match="node n9 alone needs 3 B"):
        solve(build_graph("unit-chain{n=17}"), 2, SolveOptions(strategy="optimal"))


def test_the_gap_closes_in_document_order_where_the_cover_bound_leaves_it_open() -> None:
    """The cover bound of this graph is +0.0055%, the optimum +2.19%."""
    solved = solve(build_graph("vgg16{backward=operator}"), "70%", SolveOptions(strategy="optimal", threads=1))
    assert solved.plan.claim.status is ClaimStatus.OPTIMAL
    assert solved.plan.claim.scope is Scope.DOCUMENT_ORDER


def test_a_bound_above_the_cost_of_a_schedule_does_not_speak_of_it() -> None:
    graph = build_graph("unit-chain{n=9}")
    cost, whole = 1.5 * graph.total_cost, Bound(graph.total_cost, Scope.ANY_ORDER)
    above, below = Bound(2 * cost, Scope.FRONTIER), Bound(0.9 * cost, Scope.DOCUMENT_ORDER)
    assert strongest(graph, [above], cost) == whole
    assert strongest(graph, [above, below], cost) == below


def test_a_schedule_is_settled_when_no_solver_could_tell_more_whatever_gap_was_asked_for() -> None:
    graph = build_graph("unit-chain{n=9}")
    task = Task(graph, no_remat_peak(graph))
    for gap, share, settled in ((1e-4, 1e-6, True), (1e-4, 2e-6, False), (1e-7, 1e-6, True), (0.0, 2e-6, False)):
        best = Incumbent.of(task, Context(Control(), Highs(), gap=gap))
        assert best.best is not None
        best.best = replace(best.best, cost=2 * graph.total_cost)
        best.raise_bound(Bound(best.cost * (1 - share), Scope.ANY_ORDER))
        assert (best.verdict >= Verdict.SETTLED) is settled
    nothing = Incumbent.of(Task(graph, 1), Context(Control(), Highs()))
    assert nothing.verdict is Verdict.OPEN


def test_chains_with_unequal_sizes_are_asked_last_and_still_answer() -> None:
    """Where the MILP comes first what the chain says stays true: both prove the same cost."""
    graph = build_graph("mobilenet-v1{batch=1}")
    assert not chain_first(graph)
    assert chain_first(build_graph("linear{n=100}"))
    assert chain_first(build_graph("unet{batch=1}"))
    budget = no_remat_peak(graph) // 2
    bounds = chain_answer(graph, budget)
    assert bounds is not None
    solved = solve(graph, budget, SolveOptions(strategy="optimal", threads=1))
    assert bounds[1][0].cost <= solved.plan.claim.cost
    assert solved.plan.claim.status is ClaimStatus.OPTIMAL


def test_rounding_computes_once_what_must_be_even_of_a_relaxation_without_sense() -> None:
    # A relaxation that the clock cuts short need not meet its own rows.
    chain = build_graph("unit-chain{n=17}")
    nodes = tuple(replace(node, recompute=k % 3 > 0) for k, node in enumerate(chain.nodes))
    best = Incumbent.of(Task(replace(chain, nodes=nodes), 9), Context(Control(), Highs(), threads=1))
    model = Retention.over(best, 3.0)
    rng = np.random.default_rng(0)
    again: set[int] = set()
    for _ in range(50):
        counts = Counter(model._rounded(rng.random(len(model.stating.cost)), 0.5))
        again |= {k for k, count in counts.items() if count > 1}
    assert again
    assert all(nodes[k].recompute for k in again)
