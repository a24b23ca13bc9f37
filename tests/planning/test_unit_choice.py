"""The choice of plans for sharded units, against all combinations."""

import itertools
import math
import random
from dataclasses import replace

import pytest

from remat_cli import SolveOptions
from remat_cli.errors import Infeasible
from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.plan.derive import derive, prune
from remat_cli.plan.sharded_units import Between, Choice, ShardedStep, UnitBytes, UnitCall, UnitGraph, UnitRun
from remat_cli.planning.unit_choice import UnitPlanner
from remat_cli.planning.unit_programme import cheapest

X = 100
"""The memory of the input of the first unit."""


def unit(draw):
    """A unit of four forward operations in a chain, and their backward passes, which read all results."""
    sizes = [draw.randint(1, 9) for _ in range(4)]
    nodes = []
    for k in range(4):
        inputs = (k - 1,) if k else ()
        nodes.append(Node(f"f{k}", draw.randint(1, 5), inputs, (sizes[k],), phase=Phase.FORWARD))
    nodes.append(Node("tangents", 0, (3,), (sizes[3],), recompute=False, op="tangents", phase=Phase.BACKWARD))
    for k in reversed(range(4)):
        read = tuple(sorted({k, len(nodes) - 1}))
        nodes.append(Node(f"b{k}", 5, read, (sizes[max(0, k - 1)],), phase=Phase.BACKWARD))
    graph = Graph("unit", tuple(nodes), outputs=(8,))
    reads = tuple(frozenset({0}) if node.id in {"f0", "b0"} else frozenset() for node in nodes)
    return UnitGraph(graph, 4, reads, draw.randint(1, 9), sizes[0])


def step_of(draw, count):
    """A step of units, some of them alike, with code between them and parameters around them."""
    graphs = (unit(draw), unit(draw))
    kinds, linked = [draw.randrange(2) for _ in range(count)], draw.random() < 0.5
    calls = []
    for k, kind in enumerate(kinds):
        gathered = draw.randint(1, 20)
        memory = UnitBytes(gathered, gathered, 1, gathered, gathered, gathered // 2, gathered // 2, 0, gathered)
        inputs = {X + k: graphs[kinds[k - 1]].graph.size[3] if k else 7}
        results = {3: X + k + 1}
        beside, costs = draw.randint(0, 3), (linked * draw.randint(1, 40), linked * draw.randint(1, 20))
        calls.append(UnitCall(f"u{k}", kind, memory, inputs, (X + k,), results, beside, True, k == 0, *costs))
    between = [Between({k: draw.randint(0, 3)}, lambda counted, k=k: 2 + (k not in counted)) for k in range(count + 1)]
    root = UnitBytes(9, 9, 0, 9, 9, 4, 4, 0, 9) if draw.random() < 0.5 else UnitBytes()
    last = {X + count: graphs[kinds[-1]].graph.size[3]}
    return ShardedStep(graphs, tuple(calls), tuple(between), root, 9, 1000, last, last, 3, 5)


def time_of(step, choices):
    """The time of the passes on one queue, where a link gathers ahead, after the reduction before that."""
    time = sum(choice.run.cost - choice.run.backward_cost for choice in choices)
    gathered = link = time + (step.calls[-1].gather_cost if choices[-1].reshard else 0)
    for at in reversed(range(len(choices))):
        begins = max(time, gathered)
        time = begins + choices[at].run.backward_cost
        link = begins + (step.calls[at + 1].reduce_cost if at + 1 < len(choices) else 0)
        gathered = link + step.calls[at - 1].gather_cost if at and choices[at - 1].reshard else 0
    return time


@pytest.mark.parametrize("seed", range(25))
def test_the_programme_finds_the_cheapest_of_all_combinations(seed):
    draw = random.Random(seed)
    step = step_of(draw, draw.randint(2, 3))
    runs = []
    for one in step.graphs:
        again = [sorted(draw.sample(range(4), draw.randint(1, 4))) for _ in range(2)]
        sequences = [(*range(4), *more, *range(4, 9)) for more in ([], *again)]
        found = {UnitRun.of(one, derive(one.graph, computes)).computes: computes for computes in sequences}
        runs.append([UnitRun.of(one, derive(one.graph, computes)) for computes in found.values()])
    every = [
        [Choice(run, reshard) for run in runs[call.kind] for reshard in (False, True)] for call in step.calls
    ]  # fmt: skip
    peaks = {}
    for choices in itertools.product(*every):
        again = sum(call.memory.gathering for call, one in zip(step.calls, choices, strict=True) if one.reshard)
        value = time_of(step, choices), again
        peak = step.peak_bytes(choices)
        peaks[peak] = min(value, peaks.get(peak, value))
    for budget in (min(peaks) - 1, min(peaks), *draw.sample(sorted(peaks), min(8, len(peaks))), max(peaks)):
        best = cheapest(step, runs, budget)
        possible = [value for peak, value in peaks.items() if peak <= budget]
        if best is None:
            assert not possible
            continue
        again = sum(call.memory.gathering for call, one in zip(step.calls, best, strict=True) if one.reshard)
        assert step.peak_bytes(best) <= budget
        assert (step.cost(best), again) == min(possible)


def test_no_choices_cost_less_than_the_bound():
    """Against the cheapest choices from plans that compute any operations again, before the backward pass."""
    steps_up = 0
    for seed in range(6):
        step = step_of(random.Random(seed), 3)
        calls = [replace(call, memory=UnitBytes(*[1] * 9), beside=0) for call in step.calls]
        step = replace(step, calls=tuple(calls), fixed_bytes=0, root=UnitBytes(), root_gradients=0)
        runs = []
        for one in step.graphs:
            sets = [again for count in range(5) for again in itertools.combinations(range(4), count)]
            sequences = {prune(one.graph, (*range(5), *again, *range(5, 9))) for again in sets}
            runs.append([UnitRun.of(one, derive(one.graph, computes)) for computes in sequences])
        planner = UnitPlanner(step, SolveOptions(time_limit_s=3))
        top, once = step.peak_bytes(planner.keep_all()), planner.least_cost(10**6)
        assert once == math.fsum(step.graphs[call.kind].graph.total_cost for call in step.calls)
        budgets = [budget for budget in range(top, 0, -2) if cheapest(step, runs, budget) is not None]
        bounds = []
        for budget in (budgets[0], budgets[len(budgets) // 2], budgets[-1]):
            found = step.cost(planner.within(budget))
            bounds.append(planner.least_cost(budget))
            assert bounds[-1] <= min(found, step.cost(cheapest(step, runs, budget))) + 1e-9
        assert bounds[0] == once
        assert bounds == sorted(bounds)
        steps_up += bounds[-1] > once
    assert steps_up >= 3


def test_the_search_finds_plans_between_keeping_and_recomputing_all():
    step = step_of(random.Random(3), 3)
    planner = UnitPlanner(step, SolveOptions(time_limit_s=5))
    top = step.peak_bytes(planner.keep_all())
    assert planner.least_bound() <= top
    costs = []
    for share in (1.0, 0.99, 0.98, 0.97):
        try:
            choices = planner.within(int(top * share))
        except Infeasible as error:
            least = int(error.hint.partition("(")[2].partition(" ")[0])
            assert planner.least_bound() <= least
            assert step.peak_bytes(planner.within(least)) <= least
            break
        assert step.peak_bytes(choices) <= top * share
        costs.append(step.cost(choices))
    assert costs == sorted(costs)
    assert costs[0] == sum(step.graphs[call.kind].graph.total_cost for call in step.calls)
