"""The bound of served levels against exhaustive search, and against plans."""

import math

import pytest
from bruteforce import cheapest
from test_repeated import least_room, repeated_graph

from remat_cli.control import Control
from remat_cli.errors import Infeasible
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.planning.solving import SolveOptions, solve
from remat_cli.strategies.repeated.bound import bound_of
from remat_cli.strategies.repeated.levels import MOST_LEVELS, Spine, least, levels_of, without_small
from remat_cli.zoo.registry import build_graph

UNLIMITED = Control.within(None)


def bounds(graph, room):
    """The bounds with values of all sizes left out, of coarser spines, and of divided ones."""
    for threshold in {0, *(size + 1 for size in graph.size)}:
        for most in (MOST_LEVELS, 3, 2):
            spine = Spine.of(graph, most)
            for divided in (False, True):
                levels = levels_of(without_small(graph, threshold), spine, divided=divided)
                if levels is not None and (found := bound_of(graph, levels, room, UNLIMITED)) is not None:
                    yield found


@pytest.mark.parametrize("seed", range(60))
def test_no_bound_exceeds_the_optimum_of_all_schedules(seed):
    graph = next(
        g for g in (repeated_graph(seed, 3), repeated_graph(seed, 2), repeated_graph(seed, 1)) if len(g.nodes) <= 8
    )
    for budget in range(least_room(graph), no_remat_peak(graph) + 1):
        truth = cheapest(graph, budget)
        for found in bounds(graph, budget):
            assert truth is None or found <= truth * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(24))
def test_no_bound_exceeds_the_cost_of_a_plan(seed):
    graph = repeated_graph(seed, 6)
    top = no_remat_peak(graph)
    raised = 0
    for percent in (35, 45, 60, 80):
        budget = max(least_room(graph), top * percent // 100)
        try:
            plan = solve(graph, f"{budget}B", SolveOptions(strategy="auto", time_limit_s=3.0, threads=1)).plan
        except Infeasible:
            continue
        for found in bounds(graph, budget):
            assert found <= plan.claim.cost * (1 + 1e-9)
            raised += found > graph.total_cost
    assert raised or seed % 3 == 0


def test_what_is_computed_again_falls_as_more_is_kept():
    graph = build_graph("gpt2{depth=6,batch=1,width=96,heads=4,sequence=64,vocab=50,backward=operator}")
    levels = levels_of(graph, Spine.of(graph))
    assert levels is not None
    assert len(set(levels)) < len(levels)
    for level in levels:
        costs = [least(level.lines, kept) for kept in range(0, 400_000, 10_000)]
        assert costs == sorted(costs, reverse=True)
        assert all(cost <= graph.total_cost for cost in costs)


def test_the_bound_rises_as_memory_shrinks_and_nothing_fits_without_a_working_set():
    graph = build_graph("gpt2{depth=6,batch=1,width=96,heads=4,sequence=64,vocab=50,backward=operator}")
    levels = levels_of(graph, Spine.of(graph))
    assert levels is not None
    rooms = [least_room(graph) * k // 4 for k in range(4, 30)]
    found = [bound_of(graph, levels, room, UNLIMITED) for room in rooms]
    assert None not in found
    assert found[0] > graph.total_cost * 1.05
    assert found[-1] < found[0]
    assert bound_of(graph, levels, 1, UNLIMITED) == math.inf
