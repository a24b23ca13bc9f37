"""Proofs of a bound, from any schedule at hand, against searches of all schedules."""

from __future__ import annotations

import math
import random

import pytest
from bruteforce import cheapest
from families import random_graph, varied_graph

from remat_cli.control import Control, Outcome
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph, Node, closed
from remat_cli.milp import cover_bound, retention
from remat_cli.milp.support import Support, full_support
from remat_cli.mip import Row
from remat_cli.plan.model import ClaimStatus, Scope
from remat_cli.planning.solving import SolveOptions, solve
from remat_cli.reports.words import certainty
from remat_cli.solvers.base import Request
from remat_cli.solvers.highs import Highs
from remat_cli.strategies.annealing.walk import Problem, Walk
from remat_cli.strategies.base import Context, Schedule, Task
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.objective import Evaluation
from remat_cli.strategies.retention.proof import InStageProof, InStageProofs
from remat_cli.strategies.retention.reduced_cost import Cheaper
from remat_cli.tolerances import SETTLED


def best_of(graph: Graph, budget: int, *, known: bool, gap: float = 0.0) -> Incumbent:
    """Nothing known, or a schedule that a short walk comes to."""
    best = Incumbent.of(Task(graph, budget), Context(Control(), Highs(), gap=gap, threads=1))
    if known:
        walk = Walk.of(Problem.of(graph, budget - graph.fixed_memory), range(len(graph.nodes)), 1, 3.0)
        walk.advance(300, 0.3, 0.01)
        if walk.best is not None:
            best.offer(walk.best)
    return best


def document_order(best: Incumbent) -> float:
    return max((b.cost for b in best.bounds.values() if b.scope.contains(Scope.DOCUMENT_ORDER)), default=0.0)


def test_no_proof_is_above_the_truth() -> None:
    known = exact = 0
    for seed in range(1000, 1090):
        graph = varied_graph(seed)
        top = no_remat_peak(graph)
        for budget in range(max(peak_bound(graph).bytes, top - 3), top):
            truth = cheapest(graph, budget)
            started = best_of(graph, budget, known=seed % 3 > 0)
            known += started.computes is not None
            least = math.inf if truth is None else truth
            best = best_of(graph, budget, known=seed % 3 > 0, gap=(0.0, 0.05, 0.3)[seed % 4 % 3])
            InStageProofs(best).turn(Control())
            assert document_order(best) <= least
            assert best.computes is None or best.cost >= least
            exact += document_order(best) >= least
    assert known > 30
    assert exact > 30


def test_a_rehearsal_proves_nothing_and_finds_the_rows() -> None:
    stated = 0
    for seed in range(60, 110):
        graph = varied_graph(seed)
        best = best_of(graph, peak_bound(graph).bytes, known=False)
        before = dict(best.bounds)
        rehearsal = InStageProof.of(best, 1.0)
        rehearsal.run(best.context.control)
        assert best.bounds == before
        stated += len(rehearsal.rows.steps) > 0
        steps = rehearsal.rows.steps
        proof = InStageProof.of(best)
        assert proof.state(steps) == bool(steps)
        assert proof.rows.steps == steps, "the full support holds the small one"
    assert stated > 3


def optimum(graph: Graph, budget: int, cheaper: Cheaper | None, support: Support) -> float | None:
    """Optimum without in-stage rows, with the rows that everything below a ceiling meets."""
    stated = retention.build(graph, budget, None, Control(), support=support)
    model = stated.model()
    model = model if cheaper is None else model.with_rows(cheaper.rows(stated, model))
    outcome = Highs().solve(Request(model, gap=1e-9, threads=1))
    return None if outcome.objective is None else round(outcome.objective * stated.cost_scale, 6)


def test_what_is_below_a_ceiling_stays_and_what_is_above_it_goes() -> None:
    """Whatever the prices: of the solver's, and of random weights."""
    kept = cut = counted = 0
    for seed in range(300, 420):
        rng = random.Random(seed)
        graph = random_graph(
            rng,
            rng.randint(5, 11),
            max_outputs=rng.choice((1, 1, 2)),
            max_cost=rng.choice((3, 50)),
            workspace=rng.random() < 0.4,
            recompute_false=rng.choice((0.0, 0.2)),
        )
        end = closed(graph)
        budget = rng.randint(peak_bound(graph).bytes, no_remat_peak(graph))
        least = optimum(graph, budget, None, full_support(end))
        if least is None or least == graph.total_cost:
            continue
        stated = cover_bound.price_model(end, budget)
        weights = [rng.choice((0.0, rng.random() / 6)) for _ in stated.rows]
        solved = Incumbent.of(Task(graph, budget), Context(Control(), Highs(), threads=1))
        solved.best = Evaluation(Schedule(tuple(range(len(graph.nodes)))), 2 * least, budget)  # whatever it may be
        for prices in (stated.prices(weights), Cheaper.than_best(solved).prices):
            for ceiling in (least, least + rng.random() * (least - graph.total_cost), least - 0.5):
                cheaper = Cheaper(end, graph.total_cost, ceiling, prices)
                support = cheaper.affordable()
                counted += sum(low > 0 or high <= 1 for _, _, low, high in rows_of(graph, budget, cheaper, support))
                found = optimum(graph, budget, cheaper, support)
                assert found == (least if ceiling >= least else None)
                kept += ceiling >= least
                cut += ceiling < least
    assert kept > 100
    assert cut > 50
    assert counted > 250


def rows_of(graph: Graph, budget: int, cheaper: Cheaper, support: Support) -> list[Row]:
    """The rows on counts, without the ceiling."""
    stated = retention.build(graph, budget, None, Control(), support=support)
    return cheaper.rows(stated, stated.model())[1:]


def test_a_gap_of_zero_is_closed_when_only_rounding_is_left() -> None:
    """A solver's bound is a little below the optimum, and costs that are no whole numbers cannot make up for that."""
    nodes = (
        Node("a", 8.9057704383983, (), (1538,)),
        Node("b", 9.3153, (0,), (266, 1823, 1451)),
        Node("c", 6.891179002716684, (0, 1, 2), ()),
        Node("d", 7.9131302, (2, 3), (3222,)),
        Node("e", 2.54, (0, 1), (3107, 2427, 726)),
        Node("f", 1.0806, (3, 4, 6), (2416,), 1536),
        Node("g", 7.87081404, (4, 5), (2646,)),
    )
    graph, budget = Graph("floats", nodes, (9,)), 12_445
    solved = solve(graph, budget, SolveOptions(gap=0.0, time_limit_s=120.0, threads=1))
    claim = solved.plan.claim
    assert solved.ending.outcome is Outcome.FINISHED, "it must not search until the limit"
    assert claim.status is ClaimStatus.OPTIMAL
    assert 0 < claim.gap <= SETTLED, "what is left is stated"
    assert claim.cost == pytest.approx(cheapest(graph, budget), rel=1e-9)
    assert f"up to a gap of less than 0.0001% (lower bound {claim.lower_bound:.4g}" in certainty(solved.report)
