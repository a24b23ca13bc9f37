"""Objectives: what evaluates schedules by cost or by time, which bounds count, and what an incumbent keeps."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph, Node
from remat_cli.plan.copying import CopyBack, Copying, CopyOut
from remat_cli.plan.derive import derive
from remat_cli.plan.host import Host
from remat_cli.plan.model import Copies, Scope
from remat_cli.plan.replay import replay
from remat_cli.solvers.highs import Highs
from remat_cli.strategies.base import Bound, Context, Found, Known, Schedule, Task
from remat_cli.strategies.incumbent import Incumbent, Verdict
from remat_cli.strategies.objective import Cost, Evaluation, Time, objective_of

GRAPH = Graph(
    "step",
    (
        Node("a", 1.0, (), (8,)),
        Node("b", 9.0, (0,), (4,)),
        Node("c", 9.0, (1,), (4,)),
        Node("d", 9.0, (2,), (2,)),
        Node("e", 1.0, (0, 3), (1,)),
    ),
    (4,),
    cost_unit="s",
)
HOST = Host(4.0, 1.0)
ONCE = tuple(range(5))
COPYING = Schedule(ONCE, copying=Copying((CopyOut(0, 0, 2),), (CopyBack(0, 3),)))
AGAIN = Schedule((0, 1, 2, 3, 0, 4))


def test_time_is_what_the_replay_says_and_cost_does_not_see_copies() -> None:
    time, cost = objective_of(GRAPH, HOST), objective_of(GRAPH, None)
    assert (type(time), type(cost)) == (Time, Cost)
    copied = time.evaluate(COPYING)
    seen = replay(GRAPH, derive(GRAPH, ONCE, copying=COPYING.copying), host=HOST)
    assert copied == Evaluation(COPYING, seen.time, seen.peak_bytes)
    assert copied.peak_bytes < no_remat_peak(GRAPH)
    recomputed = time.evaluate(AGAIN)
    assert recomputed is not None
    assert recomputed.cost == cost.cost(AGAIN) == 30.0
    assert time.better(copied, recomputed)


@pytest.mark.parametrize(
    "schedule",
    [Schedule((1, 0, 2, 3, 4), copying=COPYING.copying), replace(COPYING, copying=Copying((), (CopyBack(1, 3),)))],
)
def test_a_schedule_that_does_not_replay_is_none(schedule: Schedule) -> None:
    assert Time(GRAPH, HOST).evaluate(schedule) is None


def test_a_schedule_beyond_the_host_memory_or_too_slow_for_numbers_is_none() -> None:
    assert Time(GRAPH, replace(HOST, memory_bytes=7)).evaluate(COPYING) is None
    assert Time(GRAPH, replace(HOST, memory_bytes=8)).evaluate(COPYING) is not None
    assert Time(GRAPH, Host(5e-324, 5e-324)).evaluate(COPYING) is None


def test_a_node_that_may_run_once_is_not_run_twice() -> None:
    once = replace(GRAPH, nodes=tuple(replace(node, recompute=False) for node in GRAPH.nodes))
    assert Cost(once).evaluate(AGAIN) is None
    assert Time(once, HOST).evaluate(AGAIN) is None


def test_of_equal_times_fewer_copies_win_and_of_equal_costs_lower_peaks() -> None:
    plain, copied = Evaluation(Schedule(ONCE), 30.0, 14), Evaluation(COPYING, 30.0 * (1 - 1e-12), 12)
    assert Time(GRAPH, HOST).better(plain, copied)
    assert not Time(GRAPH, HOST).better(copied, plain)
    assert Cost(GRAPH).better(copied, plain)


def test_an_incumbent_takes_the_bounds_of_its_objective_alone() -> None:
    context = Context(Control(), Highs(), threads=1)
    known = Known((COPYING,))
    for host, copies in ((HOST, Copies.ANY), (None, Copies.NONE)):
        best = Incumbent.of(Task(GRAPH, 14, known, host), context)
        assert (best.best is not None) is (host is not None), "without a host the known schedule does not fit"
        best.raise_bound(Bound(29.0 + 1e-6, Scope.DOCUMENT_ORDER, copies))
        assert best.bound.cost == pytest.approx(29.0 + 1e-6 if host is None else 29.0)
        best.raise_bound(Bound(math.inf, Scope.ANY_ORDER, Copies.ANY if copies is Copies.NONE else Copies.NONE))
        assert best.verdict is not Verdict.IMPOSSIBLE
        best.take(Found(AGAIN, (Bound(math.inf, Scope.DOCUMENT_ORDER, copies),)))
        assert best.cost == (29.0 if host is not None else 30.0)
