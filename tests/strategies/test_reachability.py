"""Listing the states of memory: its "no" is that of brute force, on the whole graph and on every part of it."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from bruteforce import least_peak
from families import sized_graph, uneven_graph
from seeded import seeded

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_peak, working_sets
from remat_cli.graph.induced import induced
from remat_cli.graph.model import Graph, Node
from remat_cli.plan.model import Scope
from remat_cli.solvers.highs import Highs
from remat_cli.strategies.base import Context, NotFound, Task
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.strategies.repeated import reachability
from remat_cli.strategies.repeated.reachability import Reachability
from remat_cli.zoo.registry import build_graph

_MANY = 10**6
"""Sets enough for every graph here."""


def fits(graph: Graph, room: int, least: float = 0.0, most: int = _MANY) -> bool | None:
    return reachability._States.of(graph, least).fit(room, most, Control())


def small(seed: int) -> Graph:
    return uneven_graph(seed) if seed % 2 else sized_graph(seed, 7)


@seeded(range(24), tight=5, looser=8)
def test_a_budget_is_possible_exactly_from_the_least_peak_on(seed: int) -> Iterator[str]:
    graph = small(seed)
    least = least_peak(graph) - graph.fixed_memory
    assert fits(graph, least)
    assert fits(graph, least - 1) is False
    room = max(working_sets(graph))
    while room < least:  # from one budget at which the answer may change to the next
        states = reachability._States.of(graph, 0.0)
        assert states.fit(room, _MANY, Control()) is False
        room += states.more
    assert room == least
    if least > max(working_sets(graph)):  # else one working set alone says no
        yield "tight"
    largest = max(graph.size)
    for threshold in (largest, largest / 2, largest / 4):
        assert fits(graph, least, threshold)  # counting fewer values never excludes what fits
        if fits(graph, least - 1, threshold):
            yield "looser"


@seeded(range(16), part=48, lower=10)
def test_a_part_needs_no_more_than_the_whole(seed: int) -> Iterator[str]:
    graph, rng = small(seed), random.Random(seed)
    least = least_peak(graph) - graph.fixed_memory
    for _ in range(3):
        part, _ = induced(graph, [i for i in range(len(graph.nodes)) if rng.random() < 0.7] or [0])
        assert fits(part, least)
        yield "part"
        if fits(part, least - 1):
            yield "lower"


def test_sets_are_told_apart_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = build_graph("linear{n=10}")
    whole = strategy_from_spec("optimal")
    for room in (3, 4, 5):
        context = Context(Control.within(60), Highs(), threads=1)
        possible = not isinstance(whole.solve(Task(graph, graph.fixed_memory + room), context), NotFound)
        assert fits(graph, room) is possible
        monkeypatch.setattr(reachability, "_FIRST_SPACE", 4)
        assert fits(graph, room) is possible
        monkeypatch.undo()
    assert fits(graph, 5, most=10) is None


def test_blocks_that_do_not_fit_exclude_a_network_of_any_depth() -> None:
    """Two gradients of the widest stage, and what a block keeps while it runs once more, are five of its tensors."""
    tensor = 128 * 64 * 32 * 32 * 4
    for depth in (101, 506):
        graph = build_graph(f"resnet-deep{{depth={depth},backward=operator}}")
        least = Reachability.of(graph).least_beyond(graph.fixed_memory + 5 * tensor - 1, Control.within(120))
        assert least == graph.fixed_memory + 5 * tensor
    assert Reachability.of(graph).least_beyond(no_remat_peak(graph), Control.within(120)) is None


def test_it_stops_with_the_clock() -> None:
    graph = build_graph("llama{depth=4,backward=operator}")
    control = Control()
    control.cancelled.set()
    budget = graph.fixed_memory + max(working_sets(graph))
    assert Reachability.of(graph).least_beyond(budget, control) is None


def test_an_impossible_budget_is_told_with_one_that_may_do() -> None:
    graph = build_graph("resnet-deep{depth=47,backward=operator}")
    budget = graph.fixed_memory + 4 * 128 * 64 * 32 * 32 * 4 - 1
    answer = strategy_from_spec("optimal").solve(Task(graph, budget), Context(Control.within(60), Highs(), threads=1))
    assert isinstance(answer, NotFound)
    assert answer.scope is Scope.DOCUMENT_ORDER
    assert answer.peak_bound_bytes is not None
    assert answer.peak_bound_bytes > budget


def test_many_equal_values_are_given_up_soon() -> None:
    """Half of sixty equal values can be chosen in more ways than anyone can list."""
    sources = [Node(f"n{i}", 1.0, (), (1,)) for i in range(60)]
    graph = Graph("equal", (*sources, *(Node(f"r{i}", 1.0, (i,), (0,)) for i in range(60))), ())
    assert fits(graph, 31, most=10_000) is None
