"""Strategy ``checkmate-lp``: relaxation, rounding, and the search for an epsilon."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from bruteforce import cheapest
from equation_9 import relaxed, rounded
from families import computes_of, varied_graph
from seeded import seeded

from remat_cli.control import Control
from remat_cli.errors import Infeasible, LimitReached, UsageError
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph, Node
from remat_cli.plan.derive import derive, peak, prune
from remat_cli.plan.matrices import is_frontier_advancing
from remat_cli.plan.model import Scope
from remat_cli.plan.replay import replay
from remat_cli.planning.solving import SolveOptions, solve
from remat_cli.solvers.base import Termination
from remat_cli.solvers.registry import solver_from_spec
from remat_cli.strategies.base import Context
from remat_cli.strategies.published.checkmate_lp import relaxation
from remat_cli.strategies.published.model_size import too_many_intervals
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.zoo.registry import build_graph

CHAIN = build_graph("unit-chain{n=17}")
CONTEXT = Context(Control(), solver_from_spec("highs"), threads=1)
FORMULATIONS = pytest.mark.parametrize("formulation", ["checkmate", "retention"])


def small(seed: int) -> Graph:
    return varied_graph(seed, recompute_false=0.1, zero_outputs=False, fixed_memory=0)


@FORMULATIONS
def test_rounding_between_the_extremes(formulation: str) -> None:
    relaxed = relaxation(CHAIN, 6, formulation, Control())
    everything, nothing = np.ones(relaxed.model.columns), np.zeros(relaxed.model.columns)
    assert prune(CHAIN, relaxed.rounded(everything, 0.5)) == tuple(range(17))
    assert relaxed.rounded(nothing, 0.5) == tuple(k for t in range(17) for k in range(t + 1)), "all, in every stage"
    half = np.full(relaxed.model.columns, 0.5)
    assert relaxed.rounded(half, 0.4) == relaxed.rounded(everything, 0.5)
    assert relaxed.rounded(half, 0.5) == relaxed.rounded(nothing, 0.5)
    drawn = {relaxed.sampled(half, random.Random(seed)) for seed in range(5)}
    assert len(drawn) == 5
    for computes in drawn:
        assert is_frontier_advancing(CHAIN, computes)
        assert replay(CHAIN, derive(CHAIN, prune(CHAIN, computes))).valid
    assert relaxed.sampled(everything, random.Random(0)) == relaxed.rounded(everything, 0.5)


@FORMULATIONS
@seeded(range(40), optimal=40, worse=8)
def test_a_relaxation_for_another_budget_is_that_budgets_relaxation(formulation: str, seed: int) -> Iterator[str]:
    graph = small(seed)
    top, least = no_remat_peak(graph), peak_bound(graph).bytes
    for budget in range(least, top + 1):
        outcomes = [
            relaxation(graph, budget, formulation, Control()).solve(CONTEXT),
            relaxation(graph, top + 5, formulation, Control()).for_budget(budget).solve(CONTEXT),
        ]
        assert outcomes[0].termination is outcomes[1].termination
        if outcomes[0].termination is Termination.OPTIMAL:
            assert outcomes[0].objective == pytest.approx(outcomes[1].objective, rel=1e-6)
            yield "optimal"
            if budget < top:
                yield "worse"


@FORMULATIONS
def test_never_cheaper_than_the_optimum_of_its_class(formulation: str) -> None:
    found = 0
    options = SolveOptions(strategy=f"checkmate-lp{{formulation={formulation}}}", threads=1)
    for seed in range(20):
        graph = small(seed)
        for budget in (peak_bound(graph).bytes, no_remat_peak(graph) - 1):
            truth = cheapest(graph, budget, passes=1)
            try:
                solved = solve(graph, budget, options)
            except Infeasible:
                continue
            found += 1
            assert truth is not None
            assert solved.report.replay.cost >= truth
            assert solved.plan.claim.lower_bound <= truth + 1e-9
            assert is_frontier_advancing(graph, computes_of(solved.plan))
    assert found > 10


def test_the_unit_chain() -> None:
    solved = solve(CHAIN, 8, SolveOptions(strategy="checkmate-lp", threads=1))
    assert solved.report.replay.peak_bytes <= 8
    assert 19 <= solved.plan.claim.cost <= 26
    assert 17 < solved.plan.claim.lower_bound <= 19
    assert solved.plan.claim.scope is Scope.FRONTIER
    assert solved.plan.solver == "highs"
    assert "epsilon=" in solved.plan.strategy
    assert "threshold=" in solved.plan.strategy


def test_given_options_are_used_as_such() -> None:
    solved = solve(CHAIN, 8, SolveOptions(strategy="checkmate-lp{epsilon=0.2,threshold=0.5}", threads=1))
    assert solved.plan.strategy == "checkmate-lp{epsilon=0.2,threshold=0.5}"
    with pytest.raises(Infeasible, match="no plan that checkmate-lp makes fits"):
        solve(CHAIN, 8, SolveOptions(strategy="checkmate-lp{epsilon=0,threshold=0}", threads=1))
    with pytest.raises(Infeasible, match="no plan that checkmate-lp makes fits"):
        solve(CHAIN, 8, SolveOptions(strategy="checkmate-lp{epsilon=0.9}", threads=1))


def test_an_impossible_relaxation_is_a_proof() -> None:
    # Four values that may be made only once, all there when the first of their readers runs.
    once = tuple(Node(f"s{i}", 1.0, (), (1,), recompute=False) for i in range(4))
    graph = Graph("g", (*once, *(Node(f"r{i}", 1.0, (i,), (1,)) for i in range(4))), (7,))
    with pytest.raises(Infeasible, match=r"^no frontier-advancing schedule fits a budget of 4 bytes"):
        solve(graph, 4, SolveOptions(strategy="checkmate-lp{formulation=retention}"))


@pytest.mark.parametrize(
    ("spec", "percent", "overhead", "share"),
    [
        ("vgg16{fused=true}", 86, 0.1933, 84.363),
        ("vgg16{fused=true}", 92, 0.0065, 91.58),
        ("vgg19{fused=true}", 80, 0.1523, 78.733),
    ],
)
def test_published_rounding_fits_where_the_relaxation_has_less_than_a_working_set(
    spec: str, percent: int, overhead: float, share: float
) -> None:
    graph = build_graph(spec)
    whole = no_remat_peak(graph)
    budget = whole * percent // 100
    less = int(0.9 * budget)
    assert less < peak_bound(graph).bytes
    values = relaxed(graph, less)
    assert values is not None
    own = prune(graph, rounded(graph, values, 0.5))
    solved = solve(graph, budget, SolveOptions(strategy="checkmate-lp{epsilon=0.1,threshold=0.5}", threads=1))
    cost = sum(graph.nodes[i].cost for i in own)
    assert (solved.plan.claim.cost, solved.report.replay.peak_bytes) == (pytest.approx(cost), peak(graph, own))
    assert round(100 * (cost / graph.total_cost - 1), 4) == overhead
    assert round(100 * peak(graph, own) / whole, 3) == share


def test_samples_depend_on_the_seed_alone() -> None:
    def sampled(seed: int) -> object:
        options = SolveOptions(strategy="checkmate-lp{samples=4,epsilon=0.3}", threads=1, seed=seed)
        try:
            return solve(CHAIN, 8, options).plan.statements
        except Infeasible as refusal:
            return refusal.hint

    assert [sampled(seed) for seed in range(4)] == [sampled(seed) for seed in range(4)]
    assert len({sampled(seed) for seed in range(4)}) > 1


def test_a_limit_before_anything() -> None:
    with pytest.raises(LimitReached):
        solve(build_graph("linear{n=300}"), "30%", SolveOptions(strategy="checkmate-lp", time_limit_s=0.2))


@pytest.mark.parametrize(
    "options", ["epsilon=1", "threshold=-0.1", "samples=-1", "samples=3,threshold=0.5", "formulation=x"]
)
def test_options_that_mean_nothing(options: str) -> None:
    with pytest.raises(UsageError):
        strategy_from_spec(f"checkmate-lp{{{options}}}")


@pytest.mark.parametrize("strategy", ["checkmate-lp", "checkmate-ilp"])
def test_a_model_that_cannot_be_built_is_not_begun(strategy: str) -> None:
    graph = build_graph("unit-chain{n=20001}")
    with pytest.raises(LimitReached, match=r"about 900\.1 M variables, and building it .* TB and \d+ hours") as refusal:
        solve(graph, "60%", SolveOptions(strategy=strategy))
    assert "take auto" in refusal.value.hint


def test_intervals_that_would_take_all_the_time_are_not_stated() -> None:
    graph = build_graph("unit-chain{n=20001}")
    with pytest.raises(
        LimitReached, match=r"about \d+(\.\d+)? k constraints, and building it .* and \d+ seconds"
    ) as refusal:
        solve(graph, "60%", SolveOptions(strategy="moccasin", time_limit_s=3))
    assert "allow a longer time_limit_s, or take auto" in refusal.value.hint
    assert too_many_intervals(graph, Control.within(3600), 2) is None
    assert too_many_intervals(build_graph("unit-chain{n=1001}"), Control.within(10), 2) is None


@seeded(range(25), schedules=25, broken=40)
def test_direct_rounding_is_a_schedule_where_1b_and_1c_hold(seed: int) -> Iterator[str]:
    graph = small(seed)
    budget = (peak_bound(graph).bytes + no_remat_peak(graph)) // 2
    relaxed = relaxation(graph, budget, "checkmate", Control())
    outcome = relaxed.solve(CONTEXT)
    if outcome.values is None:
        return
    entries = relaxed.entries
    assert entries is not None
    closed, n = relaxed.graph, len(relaxed.graph.nodes)
    again, stays = entries.levels(outcome.values)
    assert all(again[t, t] == 1 and not again[t, t + 1 :].any() for t in range(n))
    rng = np.random.default_rng(seed)
    computed, kept = rng.random((6, n, n)) < again, rng.random((6, n, len(closed.size))) < stays
    for k in (4, 5):  # relaxations are nearly integral: not so these
        computed[k] = np.tri(n).astype(bool) & (rng.random((n, n)) < 0.7) & [node.recompute for node in closed.nodes]
        computed[k] |= np.eye(n, dtype=bool)
        kept[k] &= rng.random(kept[k].shape) < 0.7
    if all(node.recompute for node in graph.nodes):
        computed[0], kept[0] = np.tri(n) > 0, False  # everything again in every stage
    for r, s, broken in zip(computed, kept, entries.broken(computed, kept), strict=True):
        bad = 0
        for t in range(n):
            for v, maker in enumerate(closed.producer):
                bad += sum(bool(r[t, k] and not r[t, maker] and not s[t, v]) for k in closed.readers[v])
                bad += bool(t and s[t, v] and not r[t - 1, maker] and not s[t - 1, v])
        assert broken == bad
        yield "broken" if bad else "schedules"
        if not bad:
            computes = entries.computes(r, len(graph.nodes))
            assert is_frontier_advancing(graph, prune(graph, computes))
            assert replay(graph, derive(graph, prune(graph, computes))).valid


def test_direct_rounding_says_why_it_has_no_plan() -> None:
    for samples in ("", ",samples=50000"):
        with pytest.raises(Infeasible, match=r"(1 of 1|50000 of 50000) direct roundings are no schedules"):
            solve(CHAIN, 4, SolveOptions(strategy=f"checkmate-lp{{direct=true{samples}}}", threads=1))
    found = solve(CHAIN, None, SolveOptions(strategy="checkmate-lp{direct=true}", threads=1))
    assert found.report.overhead == 0
    with pytest.raises(UsageError, match="in the paper's formulation only"):
        strategy_from_spec("checkmate-lp{direct=true,formulation=retention}")


@pytest.mark.parametrize("solver", ["highs", "glpk", "cbc"])
def test_without_a_budget_something_always_fits(solver: str) -> None:
    """Where nothing costs anything, solvers recompute as they like, and a rounding needed a byte more than no-remat."""
    forward = [Node("f1", 0, (), (1,), workspace=2), Node("f2", 0, (0,), (1,)), Node("f3", 0, (1,), (1,))]
    backward = [Node("b3", 0, (1, 3), (1,)), Node("b2", 0, (0, 4), (1,)), Node("b1", 0, (5,), (1,))]
    graph = Graph("free", (*forward, Node("loss", 0, (2,), (2**31,)), *backward), outputs=(6,))
    solved = solve(graph, None, SolveOptions(strategy="checkmate-lp", solver=solver))
    assert solved.report.replay.peak_bytes <= no_remat_peak(graph)


@pytest.mark.parametrize("solver", ["highs", "glpk", "cbc", "gurobi"])
def test_the_bound_is_proven_by_duals(solver: str) -> None:
    """CBC stopped at an objective 5e-6 too high, more than a solver's tolerance, where sizes are 2^33 to 2^57."""
    nodes = (
        Node("n0", 269610779, (), (2**57 + 3,)),
        Node("n1", 10, (0,), (2**33 + 3,), recompute=False),
        Node("n2", 1555, (0,), (2**56 + 3,)),
        Node("n3", 9, (0, 1, 2), (2**36,)),
    )
    graph = Graph("uneven", nodes, outputs=(0, 1, 2))
    solved = solve(graph, 216172859423195145, SolveOptions(strategy="checkmate-lp", solver=solver, threads=1))
    assert solved.plan.claim.lower_bound == graph.total_cost
