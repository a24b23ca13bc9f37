"""Spines along path decompositions, and what follows from them: strategy pwremat{spine=true}."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from families import random_graph
from seeded import seeded

from remat_cli.control import Control
from remat_cli.errors import StrategyMismatch, UsageError
from remat_cli.graph.model import Graph
from remat_cli.plan.derive import derive, peak, prune
from remat_cli.plan.replay import replay
from remat_cli.planning.solving import SolveOptions, solve
from remat_cli.strategies.published.separators import path_bags
from remat_cli.strategies.published.spine import Spine, spine_schedule
from remat_cli.strategies.published.twremat import in_document_order
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.zoo.registry import build_graph

CONTROL = Control()
LONG = 10**6


def graph_of(seed: int) -> Graph:
    rng = random.Random(seed)
    return random_graph(rng, rng.randint(2, 30), max_inputs=rng.choice((1, 2, 3)), max_outputs=2, zero_outputs=False)


def spines(graph: Graph) -> tuple[Spine, Spine]:
    return Spine.both(graph, CONTROL)


@seeded(range(60), stretched=60)
def test_a_spine_keeps_a_path_decomposition_of_at_most_twice_the_nodes(seed: int) -> Iterator[str]:
    graph = graph_of(seed)
    for spine, bags in zip(spines(graph), (path_bags(graph, CONTROL), path_bags(graph, CONTROL)[::-1]), strict=True):
        spans = [range(a, b + 1) for a, b in zip(spine.first, spine.last, strict=True)]
        for at, bag in enumerate(bags):
            assert all(at in spans[node] for node in bag), "the decomposition without the spine is in it"
        assert sorted(spine.order) == list(range(len(graph.nodes)))
        for node, made in enumerate(graph.nodes):
            for v in made.inputs:
                assert spine.place[graph.producer[v]] < spine.place[node]
        assert all(set(spans[a]) & set(spans[b]) for a, b in itertools.pairwise(spine.order))
        counts = Counter(at for span in spans for at in span)
        assert spine.width == max(counts.values()) - 1
        assert spine.bare_width == max(map(len, bags)) - 1
        assert spine.width + 1 <= 2 * (spine.bare_width + 1)
        if spine.width > spine.bare_width:
            yield "stretched"


@seeded(range(60), left=40, right=20)
def test_last_nodes_of_bags_rise_to_the_bag_with_the_end_of_the_spine(seed: int) -> Iterator[str]:
    graph = graph_of(seed)
    for spine in spines(graph):
        lasts = [
            max(spine.place[i] for i in range(len(graph.nodes)) if spine.first[i] <= at <= spine.last[i])
            for at in range(max(spine.last) + 1)
        ]
        middle = spine.first[spine.order[-1]]
        assert lasts[: middle + 1] == sorted(lasts[: middle + 1])
        assert lasts[middle:] == sorted(lasts[middle:], reverse=True)
        yield from ["left"] * middle + ["right"] * (len(lasts) - middle - 1)


@seeded(range(60), again=30)
def test_schedules_are_valid_and_what_they_read_was_made(seed: int) -> Iterator[str]:
    graph = graph_of(seed)
    for spine in spines(graph):
        for levels, fewest in ((0, 1), (2, 1), (LONG, 1), (LONG, 4)):
            computes = spine_schedule(graph, [spine], levels, LONG, CONTROL, fewest)
            assert computes is not None
            assert set(computes) == set(range(len(graph.nodes)))
            done: set[int] = set()
            for i in computes:
                assert {graph.producer[v] for v in graph.nodes[i].inputs} <= done
                done.add(i)
            schedule = prune(graph, in_document_order(graph, computes))
            assert replay(graph, derive(graph, schedule)).valid
            if levels == 0:
                assert len(computes) == len(graph.nodes)
            elif len(computes) > len(graph.nodes):
                yield "again"


def test_length_and_memory_of_a_chain_grow_with_the_logarithm() -> None:
    told = {}
    for n in (257, 513, 1025, 2049, 4097):
        graph = build_graph(f"unit-chain{{n={n}}}")
        computes = spine_schedule(graph, spines(graph), LONG, LONG, CONTROL)
        assert computes is not None
        schedule = prune(graph, in_document_order(graph, computes))
        told[n] = len(schedule) / n, peak(graph, schedule)
    assert told[4097] == (pytest.approx(3.7486, abs=1e-4), 14)
    for n, (length, values) in told.items():
        assert length < math.log2(n)
        assert values <= math.log2(n) + 2.01
    assert all(b[0] - a[0] < 0.5 and b[1] - a[1] <= 1 for a, b in itertools.pairwise(told.values()))


def test_both_ends_are_tried() -> None:
    graph = build_graph("feed-forward{depth=50,backward=operator}")
    lengths = [len(spine_schedule(graph, [spine], LONG, LONG, CONTROL) or ()) for spine in spines(graph)]
    assert lengths[0] != lengths[1]
    assert len(spine_schedule(graph, spines(graph), LONG, LONG, CONTROL) or ()) == min(lengths)


def test_options() -> None:
    graph = build_graph("mobilenet-v1")
    overheads = []
    for budget in ("80%", "50%", "35%"):
        solved = solve(graph, budget, SolveOptions(strategy="pwremat{spine=true}"))
        assert "levels=" in solved.plan.strategy
        assert "spine=true" in solved.plan.strategy
        again = solve(graph, budget, SolveOptions(strategy=solved.plan.strategy))
        assert again.plan.statements == solved.plan.statements
        overheads.append(solved.report.overhead)
    assert 0 < overheads[0] < overheads[1] < overheads[2] < 1
    found = solve(graph, "60%", SolveOptions(strategy="pwremat{spine=true,bags=8}"))
    assert found.plan.strategy == "pwremat{bags=8,spine=true}"
    wide = random_graph(random.Random(1), 60, max_inputs=6)
    with pytest.raises(StrategyMismatch, match=r"has width \d+, above 16"):
        solve(wide, "90%", SolveOptions(strategy="pwremat{spine=true}"))
    with pytest.raises(UsageError):
        strategy_from_spec("pwremat{spine=true,bags=1,levels=2}")
