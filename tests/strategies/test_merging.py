"""Merging: what the model over a pool finds is no more expensive than any combination of what went in."""

from __future__ import annotations

import math
import random

import families
import pytest

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph, Node
from remat_cli.milp.cover_bound import least_peak
from remat_cli.plan.derive import peak
from remat_cli.plan.model import Scope
from remat_cli.solvers.highs import Highs
from remat_cli.strategies.annealing.pool import Pool
from remat_cli.strategies.base import Bound, Context, Known, Schedule, Task
from remat_cli.strategies.incumbent import Incumbent, Verdict
from remat_cli.strategies.retention.search import Merging


def two_hills() -> Graph:
    """Two parts, one after the other, of which each has a cheap (1) and a dear (5) value to give up."""
    nodes: list[Node] = []
    for half in range(2):
        first = 5 * half
        before = (first - 1,) if half else ()
        nodes += [
            Node(f"cheap{half}", 1.0, before, (4,)),
            Node(f"dear{half}", 5.0, before, (4,)),
            Node(f"x{half}", 3.0, before, (4,)),
            Node(f"y{half}", 3.0, (first + 2,), (4,)),
            Node(f"end{half}", 3.0, (first, first + 1, first + 3), (1,)),
        ]
    return Graph("two hills", tuple(nodes), (9,))


CHEAP_THEN_DEAR = (0, 1, 2, 3, 0, 4, 5, 6, 7, 8, 6, 9)
DEAR_THEN_CHEAP = (0, 1, 2, 3, 1, 4, 5, 6, 7, 8, 5, 9)


def start(*known: tuple[int, ...], budget: int = 13, bounds: tuple[Bound, ...] = ()) -> Incumbent:
    graph = two_hills()
    task = Task(graph, budget, Known(tuple(map(Schedule, known)), bounds))
    return Incumbent.of(task, Context(Control(), Highs(), threads=1))


def test_two_schedules_merge_into_one_that_has_the_best_of_both() -> None:
    best = start(CHEAP_THEN_DEAR, DEAR_THEN_CHEAP)
    assert no_remat_peak(best.graph) > 13
    before = best.cost
    assert before == best.graph.total_cost + 6
    merging = Merging(best)
    pool = merging.pool
    pool.add(CHEAP_THEN_DEAR)
    assert not merging.merge()
    pool.add(DEAR_THEN_CHEAP)
    assert merging.merge()
    assert best.cost == best.graph.total_cost + 2
    assert best.computes is not None
    assert peak(best.graph, best.computes) <= 13


def test_nothing_is_solved_again_until_there_is_something_new(monkeypatch: pytest.MonkeyPatch) -> None:
    best = start(CHEAP_THEN_DEAR)
    merging = Merging(best)
    pool = merging.pool
    pool.add(CHEAP_THEN_DEAR)
    merging.merge()
    monkeypatch.setattr("remat_cli.strategies.retention.search.Retention", None)  # whatever looked again would fail
    assert not merging.merge()


def test_a_pool_gives_the_latest_steps_first() -> None:
    pool = Pool(two_hills())
    pool.add(CHEAP_THEN_DEAR)
    pool.add(DEAR_THEN_CHEAP)
    assert set(pool.latest(2)) == {(4, 1), (9, 5)}
    pool.add(CHEAP_THEN_DEAR)
    assert set(pool.latest(2)) == {(4, 0), (9, 6)}
    assert set(pool.latest(99)) == {(4, 0), (4, 1), (9, 5), (9, 6)}


def test_random_pools_never_make_the_best_schedule_worse_or_too_large() -> None:
    better = 0
    for seed in range(25):
        rng = random.Random(seed)
        graph = families.random_graph(rng, 14, max_outputs=2, workspace=True, recompute_false=0.1)
        budget = max(least_peak(graph), round(0.8 * no_remat_peak(graph)))
        best = Incumbent.of(Task(graph, budget), Context(Control(), Highs(), threads=1))
        merging = Merging(best)
        for _ in range(6):
            # Whatever some nodes need, computed again right before a node.
            at = sorted(rng.sample(range(1, 14), 4))
            extra = {t: [k for k in range(t) if graph.nodes[k].recompute and rng.random() < 0.4] for t in at}
            computes = tuple(k for t in range(14) for k in (*extra.get(t, ()), t))
            best.offer(computes)
            merging.pool.add(computes)
        before = best.cost
        helped = merging.merge()
        assert helped == (best.cost < before)
        better += helped
        if best.computes is not None:
            assert peak(graph, best.computes) <= budget
            assert best.cost == math.fsum(graph.nodes[k].cost for k in best.computes)
    assert better > 3


def test_a_search_that_looks_beyond_a_class_is_not_ended_by_its_bound() -> None:
    best = start(CHEAP_THEN_DEAR, bounds=(Bound(36.0, Scope.FRONTIER),))
    assert best.cost == 36
    assert best.verdict is Verdict.CLASS
    assert not best.done()
    best.goal = Verdict.CLASS
    assert best.done()
    best.goal = Verdict.GAP
    best.raise_bound(Bound(36.0, Scope.DOCUMENT_ORDER))
    assert best.verdict is Verdict.EXACT
    assert best.done()


def test_cutting_puts_something_to_merge_into_the_pool() -> None:
    best = start(CHEAP_THEN_DEAR)
    merging = Merging(best)
    merging.cut()
    assert merging.pool.latest(99)
    assert best.bounds[Scope.DOCUMENT_ORDER].cost > best.graph.total_cost
    merging.turn(Control())
    assert best.cost == best.graph.total_cost + 2
    assert best.done()
