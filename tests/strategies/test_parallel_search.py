"""Two searches that share what they find, each in a thread."""

from __future__ import annotations

import random
import time

import bruteforce
import families
import pytest

from remat_cli.control import Control
from remat_cli.errors import Infeasible, Interrupted, SolverFailed
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.plan.io import dump_plan
from remat_cli.plan.model import Scope
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.solving import solve
from remat_cli.solvers.registry import usable_solver
from remat_cli.strategies.base import Bound, Context, Found, Schedule, Task
from remat_cli.strategies.incumbent import Incumbent, Verdict
from remat_cli.strategies.parallel_search import Mailbox, ParallelSearch
from remat_cli.zoo.registry import build_graph

CHAIN = build_graph("unit-chain{n=9}")
BUDGET = 4
CHEAPEST = bruteforce.cheapest(CHAIN, BUDGET)


def computes():
    """A cheapest schedule within the budget."""
    return families.computes_of(solve(CHAIN, f"{BUDGET}B", SolveOptions(strategy="optimal")).plan)


def pair(published=lambda found: None):
    """Two searches for a plan of the chain."""
    context = Context(Control.within(30.0), usable_solver("highs"), threads=2, publish=published)
    incumbent = Incumbent.of(Task(CHAIN, BUDGET), context)
    return context, incumbent, ParallelSearch.of(incumbent, Task(CHAIN, BUDGET))


def wait_for(condition):
    until_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_each_search_hears_what_the_other_finds():
    published = []
    context, incumbent, beside = pair(published.append)
    better, worse = computes(), families.computes_of(solve(CHAIN, "3B", SolveOptions(strategy="optimal")).plan)
    assert bruteforce.cheapest(CHAIN, 3) > CHEAPEST

    def first(mine):
        mine.offer(worse, "first")
        mine.raise_bound(Bound(CHEAPEST, Scope.DOCUMENT_ORDER))
        wait_for(mine.context.control.stopping)  # the other search has a proof

    def second(mine):
        assert mine.cost == bruteforce.cheapest(CHAIN, 3)
        wait_for(lambda: mine.merge_news() or mine.bound.cost == CHEAPEST)
        mine.offer(better, "second")
        assert mine.done()

    beside.run(context, first, second)
    assert incumbent.cost == CHEAPEST
    assert incumbent.maker == "second"
    assert incumbent.verdict is Verdict.EXACT
    assert incumbent.exhausted()
    assert {found.maker for found in published} == {"first", "second"}


def test_the_second_search_ends_with_the_first_one_and_its_failure_is_recorded():
    context, incumbent, beside = pair()

    def first(mine):
        mine.offer(computes())
        time.sleep(0.3)

    def fails(mine):
        raise SolverFailed("it broke")

    beside.run(context, first, fails)
    assert incumbent.cost == CHEAPEST
    assert [record.note for record in context.trace if record.name == "second-search"] == ["it broke"]
    seconds = []
    context, _, beside = pair()
    beside.run(context, first, lambda mine: seconds.append(wait_for(mine.context.control.stopping)))
    assert len(seconds) == 1


def test_an_interruption_is_passed_on_and_a_proof_is_not_one():
    context, _, beside = pair()

    def interrupted(mine):
        context.control.cancelled.set()
        raise Interrupted("interrupted")

    with pytest.raises(Interrupted):
        beside.run(context, interrupted, lambda mine: None)
    context, incumbent, beside = pair()

    def first(mine):
        mine.offer(computes())
        mine.raise_bound(Bound(CHEAPEST, Scope.DOCUMENT_ORDER))
        wait_for(mine.context.control.stopping)
        raise Interrupted("stopped while a model was built")

    beside.run(context, first, lambda mine: wait_for(lambda: mine.merge_news() or mine.done()))
    assert incumbent.done()


def test_bounds_of_schedules_that_one_search_considered_are_kept_to_itself():
    box = Mailbox()
    bounds = (Bound(9.0, Scope.RESTRICTED), Bound(8.0, Scope.FRONTIER))
    box.put(Found(Schedule((0,)), bounds))
    assert [found.bounds for found in box.take()] == [bounds[1:]]
    assert box.take() == ()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("strategy", ["auto", "search"])
def test_plans_and_claims_of_two_threads_are_true(seed, strategy):
    graph = families.random_graph(random.Random(seed), 7, max_outputs=2)
    for percent in (60, 80):
        budget = graph.fixed_memory + (no_remat_peak(graph) - graph.fixed_memory) * percent // 100
        least = bruteforce.cheapest(graph, budget)
        try:
            claim = solve(graph, f"{budget}B", SolveOptions(strategy=strategy, threads=2, time_limit_s=5)).plan.claim
        except Infeasible:
            assert least is None
            continue
        assert claim.cost >= least
        if claim.scope is Scope.DOCUMENT_ORDER or claim.scope is Scope.ANY_ORDER:
            assert claim.lower_bound <= least
            if claim.status == "optimal":
                assert claim.cost == pytest.approx(least, rel=1e-4)


def test_without_a_time_limit_two_threads_give_the_same_plan_every_time():
    graph = build_graph("linear{n=12}")
    plans = [solve(graph, "50%", SolveOptions(threads=2)).plan for _ in range(2)]
    first, second = (dump_plan(plan).partition('"run"')[0] for plan in plans)
    assert first == second
