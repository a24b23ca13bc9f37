"""Beginnings of schedules as tasks of their own: with the cheapest one, a schedule is as cheap as it can be."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace

import bruteforce
import numpy as np
import pytest
from seeded import seeded
from test_tails import small

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.plan.derive import peak
from remat_cli.plan.liveness import cost_of
from remat_cli.solvers.highs import Highs
from remat_cli.strategies.base import Context, Task
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.openers.prefixes import Prefixes, prefix
from remat_cli.strategies.openers.tails import Tail, tails_of
from remat_cli.strategies.states import Search


def cheapest(graph: Graph, budget: int) -> tuple[int, ...] | None:
    search = Search.of(graph, budget - graph.fixed_memory, in_order=True, ceiling=math.inf, most_bytes=2**24)
    at = search.next(Control())
    return None if at is None else search.sequence(at)


@seeded(range(80), compared=300, apart=60)
def test_the_cheapest_beginning_before_the_end_of_an_optimum_gives_an_optimum(seed: int) -> Iterator[str]:
    graph, rng = small(seed), random.Random(seed)
    kept = rng.sample(range(len(graph.size)), 2)
    graph = replace(graph, outputs=tuple(sorted({*graph.outputs, *kept})))
    for budget in range(bruteforce.least_peak(graph), no_remat_peak(graph)):
        whole = cheapest(graph, budget)
        assert whole is not None
        for last in range(1, len(graph.nodes) - 1):
            at = whole.index(last) + 1
            begin = cheapest(prefix(graph, whole, at), budget)
            assert begin is not None
            joined = (*begin, *whole[at:])
            assert peak(graph, joined) <= budget
            assert cost_of(graph, joined) == pytest.approx(cost_of(graph, whole))
            yield "compared"
            if cost_of(graph, begin) > sum(node.cost for node in graph.nodes[: last + 1]):
                yield "apart"


@seeded(range(60), compared=100, cheaper=20, cheapest=20)
def test_a_schedule_with_an_expensive_beginning_gets_a_cheaper_one(seed: int) -> Iterator[str]:
    graph = small(seed, most=10)
    others = replace(graph, nodes=tuple(replace(node, cost=1 / (1 + node.cost)) for node in graph.nodes))
    none = np.zeros((0, len(graph.size)), dtype=np.bool_)
    for budget in range(bruteforce.least_peak(graph), no_remat_peak(graph)):
        expensive = cheapest(others, budget)  # cheap at other costs
        assert expensive is not None
        best = Incumbent.of(Task(graph, budget), Context(Control.within(60), Highs(), threads=1))
        best.offer(expensive)
        assert best.computes is not None
        first = len(graph.nodes) * 2 // 3
        tails_of(best).found = Tail(first, frozenset(), none, np.zeros(0), 0.0, ended=True)
        at, before = best.computes.index(first) + 1, best.cost
        begin = cheapest(prefix(graph, best.computes, at), budget)
        assert begin is not None
        least = cost_of(graph, (*begin, *best.computes[at:]))
        Prefixes(best).turn(Control.within(60))
        assert peak(graph, best.computes) <= budget
        assert least - 1e-9 <= best.cost <= before
        yield "compared"
        if best.cost < before - 1e-9:
            yield "cheaper"
            if best.cost == pytest.approx(least):
                yield "cheapest"
