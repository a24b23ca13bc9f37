"""The bound of visits and the schedules by sweeps, against a search of all schedules."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from bruteforce import cheapest
from families import random_graph
from seeded import seeded

from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.kernels.segments import fill_visits
from remat_cli.plan.derive import peak
from remat_cli.plan.model import ClaimStatus, Scope
from remat_cli.planning.solving import SolveOptions, solve
from remat_cli.strategies.chains import visits
from remat_cli.strategies.chains.segments import Dense, Reserved, Segments, fill, highest_visited, prefix_sums
from remat_cli.strategies.chains.visits import chain_answer
from remat_cli.zoo.registry import build_graph

Draw = Callable[[], int]


def training_chain(
    rng: random.Random, layers: int, cost: Draw, size: Draw, reads: str, *, phases: bool = True, workspace: bool = False
) -> Graph:
    """A chain of layers, a loss, and one gradient per layer.

    Args:
        rng: Source of randomness.
        layers: Forward nodes.
        cost: Cost of the next node.
        size: Size of the next node's value.
        reads: What gradient i reads besides the gradient before: ``one`` (activation i), ``two`` (i and i + 1), or
            ``any`` (some of these, and now and then another).
        phases: Whether nodes say where they belong.
        workspace: Whether forward nodes may have some.
    """
    phase = {"f": Phase.FORWARD, "l": Phase.LOSS, "b": Phase.BACKWARD} if phases else {}
    nodes = []
    for i in range(layers):
        extra = rng.randint(0, 3) if workspace else 0
        nodes.append(
            Node(f"f{i}", float(cost()), (i - 1,) if i else (), (size(),), workspace=extra, phase=phase.get("f"))
        )
    nodes.append(Node("loss", float(cost()), (layers - 1,), (size(),), phase=phase.get("l")))
    for i in reversed(range(layers)):
        read = {len(nodes) - 1}
        if reads != "any" or rng.random() < 0.7:
            read.add(i)
        if reads == "two" or (reads == "any" and rng.random() < 0.4):
            read.add(min(i + 1, layers - 1))
        if reads == "any" and rng.random() < 0.2:
            read.add(rng.randrange(layers))
        nodes.append(Node(f"b{i}", float(cost()), tuple(sorted(read)), (size(),), phase=phase.get("b")))
    return Graph("chain", tuple(nodes), (len(nodes) - 1,))


def branched(rng: random.Random) -> Graph:
    """Blocks with inner nodes between cut nodes, and gradients that read here and there."""
    nodes: list[Node] = []
    most = rng.choice((0, 3))

    def add(reads: set[int], phase: Phase) -> int:
        size = rng.randint(0, most) if most else 1
        nodes.append(Node(f"n{len(nodes)}", float(rng.randint(0, 6)), tuple(sorted(reads)), (size,), phase=phase))
        return len(nodes) - 1

    cut = add(set(), Phase.FORWARD)
    for _ in range(rng.randint(1, 2)):
        first = add({cut}, Phase.FORWARD)
        inner = add({rng.choice((cut, first))}, Phase.FORWARD) if rng.random() < 0.5 else first
        cut = add({inner, first} | ({cut} if rng.random() < 0.6 else set()), Phase.FORWARD)
    before = add({cut}, Phase.LOSS)
    forward = before
    for k in range(rng.randint(2, 3)):
        read = {before, max(0, forward - 1 - k * forward // 3)}
        if rng.random() < 0.3:
            read.add(rng.randrange(forward))
        before = add(read, Phase.BACKWARD)
    return Graph("branched", tuple(nodes), (before,))


def check_everywhere(graph: Graph, *, exact: bool = False) -> int:
    """Hold the answer at every budget below no-remat against a search of all schedules; how many bounds say more
    than C0."""
    telling = 0
    for budget in range(peak_bound(graph).bytes, no_remat_peak(graph)):
        answer = chain_answer(graph, budget)
        if answer is None:
            assert not exact
            continue
        schedule, (bound,) = answer
        truth = cheapest(graph, budget)
        best = math.inf if truth is None else truth
        assert bound.cost <= best
        telling += graph.total_cost < bound.cost
        if schedule is not None:
            assert peak(graph, schedule.computes) <= budget
            assert sum(graph.nodes[k].cost for k in schedule.computes) >= best
        if exact:
            assert bound.cost == best
            assert (schedule is None) == (truth is None)
            assert schedule is None or sum(graph.nodes[k].cost for k in schedule.computes) == best
    return telling


@pytest.mark.parametrize("reads", ["one", "two"])
@seeded(range(12), telling=15)
def test_equal_sizes_are_exact_whatever_the_costs(seed: int, reads: str) -> Iterator[str]:
    rng = random.Random(seed)
    size = rng.randint(1, 3)
    highest = rng.choice((1, 6))
    graph = training_chain(rng, rng.randint(2, 5), lambda: rng.randint(highest // 6, highest), lambda: size, reads)
    yield from ["telling"] * check_everywhere(graph, exact=True)


@pytest.mark.parametrize("reads", ["one", "two"])
def test_long_chains_of_equal_layers_are_exact_in_closed_form(reads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if they were too long for a programme; the loss, too, is like the layers."""
    monkeypatch.setattr(visits, "MOST_LEVELS", 0)
    telling = 0
    for layers in range(2, 6):
        telling += check_everywhere(training_chain(random.Random(0), layers, lambda: 2, lambda: 3, reads), exact=True)
    assert telling >= 4


def test_the_closed_form_is_never_above_the_optimum_and_says_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visits, "MOST_LEVELS", 0)
    rng = random.Random(4)
    telling = 0
    for _ in range(25):
        size, cost = rng.choice((1, 3)), rng.choice((1, 6))
        reads, layers = rng.choice(("one", "two", "any")), rng.randint(2, 5)
        graph = training_chain(
            rng, layers, lambda most=cost: rng.randint(1, most), lambda most=size: rng.randint(1, most), reads
        )
        telling += check_everywhere(graph)
        telling += check_everywhere(branched(rng))
    assert telling >= 20


@pytest.mark.parametrize("seed", range(12))
def test_the_closed_form_is_never_above_the_programme(seed: int) -> None:
    """On chains beyond brute force; with equal layers both agree."""
    rng = random.Random(seed)
    most = 1 + seed % 4
    graph = training_chain(rng, rng.randint(20, 40), lambda: rng.randint(1, most), lambda: rng.randint(1, most), "two")
    levels = visits.Levels.of(graph, visits.forward_end(graph))
    assert levels is not None
    telling = 0
    for room in range(peak_bound(graph).bytes, no_remat_peak(graph), 2):
        closed, exact = levels.binomial(levels.spare(room)), levels._by_programme(levels.spare(room), 2.0)
        assert closed == exact if most == 1 else closed <= exact
        telling += closed > 0
    assert telling


def test_a_chain_of_thousands_of_layers_is_proven_near_the_least_memory() -> None:
    graph = build_graph("linear{n=3000}")
    claim = solve(graph, "8B", SolveOptions()).plan.claim
    assert claim.status is ClaimStatus.OPTIMAL
    # All nodes once cost 9,001. The last layer needs nothing again, and t(3000, 5) = 10 * 3,000 - C(15, 6).
    assert claim.cost == 9_001 + 10 * 3_000 - math.comb(15, 6) - 2_999


def test_no_bound_is_above_the_optimum_where_costs_and_sizes_differ() -> None:
    rng = random.Random(1)
    told = sum(
        check_everywhere(
            training_chain(
                rng,
                rng.randint(2, 4),
                lambda: rng.randint(0, 6),
                lambda: rng.randint(0, 4),
                rng.choice(("one", "two", "any")),
                phases=rng.random() < 0.5,
                workspace=rng.random() < 0.5,
            )
        )
        for _ in range(100)
    )
    assert told > 120


def test_no_bound_is_above_the_optimum_of_branched_graphs() -> None:
    rng = random.Random(2)
    assert sum(check_everywhere(branched(rng)) for _ in range(150)) > 40


def test_no_bound_is_above_the_optimum_of_any_graph() -> None:
    rng = random.Random(3)
    told = sum(
        check_everywhere(
            random_graph(
                rng,
                rng.randint(3, 6),
                max_outputs=rng.choice((1, 2)),
                workspace=True,
                recompute_false=0.1,
                random_outputs=rng.random() < 0.3,
                zero_outputs=rng.random() < 0.3,
                phases=rng.random() < 0.7,
            )
        )
        for _ in range(150)
    )
    assert told > 20


@pytest.mark.parametrize(
    ("spec", "costs"),
    [
        ("unit-chain{n=17}", [45, 26, 22, 21, 20, 19, 18, 17]),
        ("linear{n=8}", [46, 32, 29, 28, 27, 26, 25]),
    ],
)
def test_small_chains_at_every_budget(spec: str, costs: list[int]) -> None:
    """The first row is published (Checkmate's artifact); both agree with the MILPs."""
    graph = build_graph(spec)
    budgets = range(peak_bound(graph).bytes, no_remat_peak(graph) + 1)
    assert [solve(graph, b).plan.claim.cost for b in budgets] == costs


@pytest.mark.parametrize("spec", ["unit-chain{n=65}", "linear{n=32}"])
def test_65_nodes_are_proven_at_every_budget(spec: str) -> None:
    graph = build_graph(spec)
    for budget in range(peak_bound(graph).bytes, no_remat_peak(graph)):
        solved = solve(graph, budget, SolveOptions(strategy="optimal"))
        assert solved.plan.claim.status is ClaimStatus.OPTIMAL
        assert solved.plan.claim.lower_bound == solved.plan.claim.cost
        assert solved.plan.claim.scope is Scope.ANY_ORDER
        assert solved.plan.solver is None


def test_where_the_order_is_open_the_bound_is_for_that_of_the_document() -> None:
    graph = build_graph("linear{n=6}")
    beside = Graph("beside", (*graph.nodes, Node("aside", 1.0, (0,), (1,), phase=Phase.BACKWARD)), graph.outputs)
    answer = chain_answer(beside, no_remat_peak(beside) - 1)
    assert answer is not None
    assert answer[1][0].scope is Scope.DOCUMENT_ORDER


def test_coarse_units_stay_safe() -> None:
    """Sizes without a common divisor are rounded, the bound down and the schedules up."""
    rng = random.Random(4)
    for _ in range(6):
        sizes = [rng.randint(10**9, 2 * 10**9) for _ in range(12)]
        costs = [rng.randint(1, 9) for _ in range(12)]
        graph = build_graph(f"linear{{n=12,sizes={':'.join(map(str, sizes))},costs={':'.join(map(str, costs))}}}")
        budget = no_remat_peak(graph) * 6 // 10
        answer = chain_answer(graph, budget)
        assert answer is not None
        schedule, (bound,) = answer
        assert schedule is not None
        assert peak(graph, schedule.computes) <= budget
        assert graph.total_cost < bound.cost <= sum(graph.nodes[k].cost for k in schedule.computes)


@seeded(range(6))
def test_segments_are_filled_alike_with_and_without_numba(seed: int) -> None:
    rng = random.Random(seed)
    n, width = rng.randint(2, 12), rng.randint(1, 40)
    visited = sorted({n, *rng.sample(range(1, n + 1), rng.randint(1, n))})

    def units(*shape: int, most: int) -> Any:
        return np.array([rng.randint(0, most) for _ in range(math.prod(shape))], dtype=np.int64).reshape(shape)

    segments = Segments(
        prefix=prefix_sums([rng.random() for _ in range(n)]),
        tail=np.array([rng.random() / 2 for _ in range(n + 1)]),
        top=highest_visited(visited, n),
        hold=units(n + 1, n + 1, most=width // 2),
        sweep=units(n + 1, n + 1, most=2 * width),
        pending=units(n + 1, most=width // 2),
        visit=units(n + 1, most=width),
        width=width,
        starts=np.array(sorted(rng.sample(range(width), rng.randint(1, width))), dtype=np.int64),
    )
    compiled = np.full((n + 1, n + 1, width), np.inf)
    names = [field.name for field in fields(segments) if field.name not in {"starts", "width"}]
    fill_visits(*(getattr(segments, name) for name in names), np.zeros(width), compiled)
    reserved = Reserved.of(segments, math.inf)
    assert reserved is not None
    table = fill(segments, reserved)
    for low, amounts in enumerate(reserved.states):
        for r in range(n + 1):
            lows, highs = np.full(len(amounts), low), np.full(len(amounts), r)
            np.testing.assert_array_equal(table.look(lows, highs, amounts), compiled[low, r, amounts])
    for m in segments.starts.tolist():
        assert segments.order(table, m) == segments.order(Dense(compiled), m)
    assert not np.isinf(compiled).all()


@pytest.mark.parametrize("reads", ["one", "two", "any"])
def test_larger_units_weaken_a_bound_and_never_the_other_way_round(reads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    weaker = 0
    for _ in range(25):
        graph = training_chain(rng, rng.randint(2, 4), lambda: rng.randint(0, 6), lambda: rng.randint(1, 9), reads)
        for budget in range(peak_bound(graph).bytes, no_remat_peak(graph)):
            exact = chain_answer(graph, budget)
            with monkeypatch.context() as patch:
                patch.setattr("remat_cli.strategies.chains.segments._MOST_SUMS", 0.0)
                patch.setattr("remat_cli.strategies.chains.segments._MOST_UNITS", 3)
                coarse = chain_answer(graph, budget)
            assert exact is not None
            assert coarse is not None
            (bound,), (other,) = exact[1], coarse[1]
            truth = cheapest(graph, budget)
            assert other.cost <= bound.cost <= (math.inf if truth is None else truth)
            weaker += other.cost < bound.cost
            for schedule in (exact[0], coarse[0]):
                assert schedule is None or peak(graph, schedule.computes) <= budget
    assert weaker
