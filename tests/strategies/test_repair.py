"""Repair: schedules of bottleneck stages that exceed the budget become schedules that fit."""

from __future__ import annotations

import math
import random

import bruteforce
import families
import pytest

from remat_cli.control import Control
from remat_cli.graph.model import Graph
from remat_cli.plan.derive import derive, peak
from remat_cli.plan.liveness import cost_of, heights
from remat_cli.plan.replay import replay
from remat_cli.solvers.highs import Highs
from remat_cli.strategies.annealing.pool import Proposal, Proposals
from remat_cli.strategies.annealing.repair import Repair
from remat_cli.strategies.base import Context, Task
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.openers.stage_cuts import stage_cuts_of
from remat_cli.zoo.registry import build_graph


def cut(graph: Graph, budget: int, rounds: int = 1) -> Incumbent:
    """An incumbent whose bottleneck stages were solved ``rounds`` times."""
    best = Incumbent.of(Task(graph, budget), Context(Control(), Highs(), threads=1))
    stages = stage_cuts_of(best)
    for _ in range(rounds):
        stages.run(Control())
    return best


def test_a_schedule_of_bottleneck_stages_that_exceeds_the_budget_is_repaired() -> None:
    graph = build_graph("linear{n=12}")
    budget = 5
    best = cut(graph, budget)
    (wish,) = best.proposals.front
    assert peak(graph, wish.computes) > budget
    assert math.isinf(best.cost)
    repair = Repair(best)
    assert repair.fresh
    assert repair.work(trials=2, patience=1)
    assert best.computes is not None
    replayed = replay(graph, derive(graph, best.computes))
    assert replayed.peak_bytes <= budget
    assert replayed.cost >= wish.cost, "it costs no more than a bound"


def test_each_schedule_is_mended_once() -> None:
    best = cut(build_graph("linear{n=12}"), 5)
    repair = Repair(best)
    runs = []
    for _ in range(2):
        repair.work(trials=2, patience=1)
        runs.append(repair.runs)
        assert not repair.fresh
        assert not repair.work(trials=2, patience=1)
        assert repair.runs == runs[-1]
        best.proposals.add(Proposal(tuple(range(len(best.graph.nodes))), best.graph.total_cost, 9.0))
    assert 0 < runs[0] < runs[1]


def test_without_a_schedule_of_bottleneck_stages_there_is_nothing_to_repair() -> None:
    best = Incumbent.of(Task(build_graph("linear{n=12}"), 5), Context(Control(), Highs(), threads=1))
    repair = Repair(best)
    assert not repair.work(trials=2, patience=1)
    assert repair.runs == 0


@pytest.mark.parametrize("seed", range(8))
def test_no_mended_schedule_is_cheaper_than_the_optimum(seed: int) -> None:
    rng = random.Random(seed)
    graph = families.random_graph(rng, 6, max_outputs=2, workspace=True)
    budget = bruteforce.least_peak(graph)
    optimum = bruteforce.cheapest(graph, budget)
    best = cut(graph, budget)
    assert optimum is not None
    for proposal in best.proposals.below(best.cost):
        assert peak(graph, proposal.computes) > budget
    Repair(best).work(trials=2, patience=1)
    if best.computes is not None:
        assert peak(graph, best.computes) <= budget
        assert best.cost >= optimum * (1 - 1e-9)


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_proposals_the_cheaper_with_less_excess_is_remembered(first: int) -> None:
    """Both recompute one node; only the second one frees what it takes where memory is short."""
    graph = build_graph("linear{n=4}")
    proposals = [(0, 1, 2, 3, 4, 5, 6, 5, 6, 7, 8), (0, 1, 2, 3, 4, 5, 6, 7, 0, 8)]
    best = Incumbent.of(Task(graph, 4), Context(Control(), Highs(), threads=1))
    excess = [sum(max(0, height - 4) for height in heights(graph, computes)) for computes in proposals]
    assert excess[0] > excess[1] > 0
    assert cost_of(graph, proposals[0]) > cost_of(graph, proposals[1])
    for computes in (proposals[first], proposals[1 - first]):
        assert not best.propose(computes)
    (left,) = best.proposals.front
    assert left.computes == proposals[1]
    assert left.cost == cost_of(graph, proposals[1])
    assert left.excess == excess[1] / (4 * len(graph.nodes))


def test_a_proposal_that_fits_is_the_incumbent_and_a_dear_one_is_forgotten() -> None:
    graph = build_graph("linear{n=4}")
    best = Incumbent.of(Task(graph, 5), Context(Control(), Highs(), threads=1))
    assert best.propose((0, 1, 2, 3, 4, 5, 6, 7, 0, 8))
    assert best.computes == (0, 1, 2, 3, 4, 5, 6, 7, 0, 8)
    assert not best.proposals.front
    assert not best.propose((0, 1, 2, 3, 4, 5, 6, 5, 6, 7, 8))
    assert not best.proposals.front
    assert not Repair(best).fresh


def test_of_all_proposals_those_stay_that_no_other_dominates() -> None:
    rng = random.Random(3)
    taken = [Proposal((k,), float(rng.randrange(9)), float(rng.randrange(9))) for k in range(60)]
    proposals = Proposals()
    for proposal in taken:
        proposals.add(proposal)
    pairs = {(one.cost, one.excess) for one in taken}
    least = {
        (cost, excess)
        for cost, excess in pairs
        if not any(other != (cost, excess) and other[0] <= cost and other[1] <= excess for other in pairs)
    }
    assert {(one.cost, one.excess) for one in proposals.front} == least
    assert [one.cost for one in proposals.front] == sorted(cost for cost, _ in least)
    assert proposals.below(3.0) == [one for one in proposals.front if one.cost < 3.0]
