"""The cut at the peak: its answers are cheapest among all choices of what to keep, and give valid schedules."""

from __future__ import annotations

import itertools
import math
import random

import graphgen
import pytest

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_peak, no_remat_profile, working_set
from remat_cli.graph.model import Graph
from remat_cli.milp import cut
from remat_cli.milp.compile import compile_model
from remat_cli.plan.derive import derive, peak
from remat_cli.plan.replay import replay
from remat_cli.solvers.base import Request, Termination
from remat_cli.solvers.highs import Highs
from remat_cli.strategies._best import Best
from remat_cli.strategies._cuts import offer_cuts
from remat_cli.strategies.base import Context, Task
from remat_cli.zoo.registry import build_graph


def cheapest_choice(graph: Graph, stage: int, room: int) -> float:
    """The least cost of what has to be computed again after ``stage``, over every set of values kept across it."""
    before = range(graph.first_value[stage])
    own = set(graph.nodes[stage].inputs)
    read = {v for j in range(stage + 1, len(graph.nodes)) for v in graph.nodes[j].inputs} | set(graph.outputs)
    least = math.inf
    for size in range(len(before) + 1):
        for kept in itertools.combinations(before, size):
            if sum(graph.size[v] for v in kept if v not in own) > room - working_set(graph, stage):
                continue
            todo, again = [v for v in read if v in before and v not in kept], set()
            while todo:
                i = graph.producer[todo.pop()]
                if i not in again:
                    again.add(i)
                    todo += [v for v in graph.nodes[i].inputs if v not in kept]
            if all(graph.nodes[i].recompute for i in again):
                least = min(least, math.fsum(graph.nodes[i].cost for i in again))
    return least


@pytest.mark.parametrize("seed", range(40))
def test_equals_the_best_of_all_choices(seed: int) -> None:
    rng = random.Random(seed)
    graph = graphgen.random_graph(rng, rng.randint(4, 9), max_outputs=2, workspace=True, recompute_false=0.15)
    stage = no_remat_profile(graph).index(max(no_remat_profile(graph)))
    room = round(rng.uniform(0.7, 1.0) * max(no_remat_profile(graph)))
    truth = cheapest_choice(graph, stage, room)
    stated = cut.build(graph, stage, room, Control())
    if room < working_set(graph, stage):
        assert math.isinf(truth)
        return
    compiled = compile_model(stated.model)
    outcome = Highs().solve(Request(compiled.model, Control(), gap=1e-9, threads=1))
    if math.isinf(truth):
        assert outcome.termination is Termination.INFEASIBLE
        return
    assert outcome.values is not None
    values = outcome.values
    computes = stated.computes(lambda var: values[compiled.column_of[id(var)]] if id(var) in compiled.column_of else 0)
    seen = replay(graph, derive(graph, computes))
    assert not seen.findings
    assert seen.cost == pytest.approx(graph.total_cost + truth)
    assert seen.profile[0] <= seen.peak_bytes


@pytest.mark.parametrize(("spec", "percent", "overhead"), [("gpt2", 50, 0.001), ("bert", 50, 0.004)])
def test_transformers_get_a_good_plan_at_once(spec: str, percent: int, overhead: float) -> None:
    graph = build_graph(spec)
    budget = no_remat_peak(graph) * percent // 100
    best = Best.of(Task(graph, budget), Context(Control(), Highs(), threads=1))
    offer_cuts(best)
    assert best.computes is not None
    assert peak(graph, best.computes) <= budget
    assert best.cost <= graph.total_cost * (1 + overhead)


def test_nothing_comes_of_a_peak_that_cannot_be_lowered() -> None:
    graph = build_graph("linear{n=6}")
    best = Best.of(Task(graph, 3), Context(Control(), Highs(), threads=1))
    offer_cuts(best)
    assert best.computes is None
