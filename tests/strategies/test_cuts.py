"""Cuts: their bound holds for every schedule in document order, and their answers give valid schedules that cost it."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import bruteforce
import families
import numpy as np
import pytest
from seeded import seeded

from benchmarks.families import layered
from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_peak, no_remat_profile, working_set
from remat_cli.graph.model import Graph
from remat_cli.milp import stage_cuts
from remat_cli.plan.derive import derive, peak
from remat_cli.plan.liveness import heights
from remat_cli.plan.model import Compute, Scope
from remat_cli.plan.replay import replay
from remat_cli.planning.solving import solve
from remat_cli.solvers.base import Request, Termination
from remat_cli.solvers.highs import Highs
from remat_cli.strategies.base import Bound, Context, Task
from remat_cli.strategies.incumbent import Incumbent, Verdict
from remat_cli.strategies.openers import stage_cuts as _cuts
from remat_cli.strategies.openers.stage_cuts import StageCuts
from remat_cli.strategies.openers.tails import Tail
from remat_cli.tolerances import CUTS_GAP
from remat_cli.zoo.registry import build_graph


def small_graph(rng: random.Random, n: int) -> Graph:
    return families.random_graph(
        rng,
        n,
        max_outputs=2,
        workspace=True,
        zero_outputs=rng.random() < 0.3,
        recompute_false=0.15,
        random_outputs=rng.random() < 0.5,
    )


def with_derived_values(rng: random.Random, graph: Graph) -> Graph:
    """``graph`` with nodes that cost nothing and make one value no smaller than the one they read, where it can be."""
    size, nodes = list(graph.size), []
    for i, node in enumerate(graph.nodes):
        made = graph.values_of(i)
        if len(made) == len(node.inputs) == 1 and rng.random() < 0.7:
            size[made[0]] = size[node.inputs[0]] + rng.choice((0, 0, 1))
            node = replace(node, cost=0.0, outputs=(size[made[0]],))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def solved(
    graph: Graph, cuts: list[int], room: int, inside: list[stage_cuts.Cut] | None = None, **options: Any
) -> tuple[float, tuple[int, ...]] | None:
    """The optimum, in the graph's unit, and the schedule; None if there is none."""
    stated = stage_cuts.build(graph, sorted([*((t, t) for t in cuts), *(inside or ())]), room, Control(), **options)
    outcome = Highs().solve(Request(stated.model, Control(), gap=1e-9, threads=1))
    if outcome.termination is Termination.INFEASIBLE:
        return None
    assert outcome.values is not None
    assert outcome.objective is not None
    return graph.total_cost * (1 + outcome.objective), stated.computes(outcome.values)


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


@pytest.mark.parametrize("seed", range(30))
def test_one_cut_equals_the_best_of_all_choices(seed: int) -> None:
    rng = random.Random(seed)
    graph = small_graph(rng, rng.randint(4, 8))
    profile = no_remat_profile(graph)
    stage = profile.index(max(profile))
    room = max(working_set(graph, stage), round(rng.uniform(0.6, 1.0) * max(profile)))
    truth = cheapest_choice(graph, stage, room)
    found = solved(graph, [stage], room)
    if found is None:
        assert math.isinf(truth)
        return
    assert found[0] == pytest.approx(graph.total_cost + truth)


def test_no_bound_is_above_the_cheapest_schedule_of_all_in_document_order() -> None:
    compared = met = apart = 0
    for seed in range(120):
        rng = random.Random(seed)
        graph = small_graph(rng, rng.randint(3, 7))
        for budget in range(bruteforce.least_peak(graph), no_remat_peak(graph)):
            truth = bruteforce.cheapest(graph, budget)
            assert truth is not None
            room = budget - graph.fixed_memory
            cuts = sorted(rng.sample(range(len(graph.nodes)), rng.randint(1, len(graph.nodes))))
            found = solved(graph, cuts, room)
            assert found is not None, (seed, budget, cuts)
            least, computes = found
            assert least <= truth + 1e-6, (seed, budget, cuts)
            seen = replay(graph, derive(graph, computes))
            assert not seen.findings
            assert seen.cost <= least + 1e-6
            compared += 1
            met += least >= truth - 1e-6
            apart += least > graph.total_cost + 1e-6
    assert compared > 100
    assert apart > 50
    assert met > 0.4 * compared


def test_cuts_at_recomputations_give_no_bound_above_the_cheapest_schedule() -> None:
    compared = higher = met = 0
    for seed in range(300):
        rng = random.Random(seed)
        graph = small_graph(rng, rng.randint(4, 7))
        n, least = len(graph.nodes), bruteforce.least_peak(graph)
        for budget in range(least, min(least + 3, no_remat_peak(graph))):
            truth = bruteforce.cheapest(graph, budget)
            assert truth is not None
            room = budget - graph.fixed_memory
            whole = rng.random() < 0.5
            cuts = list(range(n)) if whole else sorted(rng.sample(range(n), rng.randint(2, n)))
            inside = [(t, rng.randrange(t)) for t in cuts if t - 1 in cuts and rng.random() < 0.8]
            plain, found = solved(graph, cuts, room), solved(graph, cuts, room, inside)
            assert plain is not None, (seed, budget, cuts)
            assert found is not None, (seed, budget, cuts, inside)
            assert plain[0] - 1e-6 <= found[0] <= truth + 1e-6, (seed, budget, cuts, inside)
            assert not replay(graph, derive(graph, found[1])).findings
            compared += 1
            higher += found[0] > plain[0] + 1e-6
            met += found[0] > truth - 1e-6
    assert compared > 300
    assert higher >= 3
    assert met > 0.6 * compared


def test_leaving_derived_values_out_changes_no_optimum() -> None:
    """They cost nothing here. What is decided inside stages, or at recomputations, is part of every third case."""
    fewer = compared = kept = 0
    for seed in range(400):
        rng = random.Random(seed)
        plain = families.random_graph(
            rng,
            rng.randint(5, 10),
            max_inputs=rng.choice((1, 2, 2)),
            workspace=True,
            recompute_false=0.1,
            random_outputs=rng.random() < 0.5,
        )
        graph = with_derived_values(rng, plain)
        derived = stage_cuts.derived_values(graph)
        n, profile = len(graph.nodes), no_remat_profile(graph)
        cuts = sorted(rng.sample(range(n), rng.randint(1, n)))
        room = rng.randint(max(working_set(graph, t) for t in range(n)), max(profile))
        inside = [(t, rng.randrange(t)) for t in cuts if t - 1 in cuts and seed % 3 == 0 and rng.random() < 0.5]
        seen = frozenset(rng.sample(range(n), rng.randint(0, n))) if seed % 3 == 1 else frozenset()
        every = [(t, t) for t in cuts]
        stated = stage_cuts.build(graph, sorted([*every, *inside]), room, Control(), seen=seen, derived=derived)
        fewer += bool(stated.omitted)
        whole = solved(graph, cuts, room, inside, seen=seen)
        found = solved(graph, cuts, room, inside, seen=seen, derived=derived)
        assert (whole is None) == (found is None), seed
        if whole is None or found is None:
            continue
        compared += 1
        kept += whole[0] > graph.total_cost + 1e-6
        assert found[0] == pytest.approx(whole[0], abs=1e-6), seed
        replayed = replay(graph, derive(graph, found[1]))
        assert not replayed.findings
        assert replayed.cost <= found[0] + 1e-6
    assert compared > 300
    assert fewer > 90
    assert kept > 80


def test_spans_are_the_blocks_of_earlier_rounds_and_pairs_of_neighbours() -> None:
    assert stage_cuts.spans([]) == stage_cuts.spans([0]) == {}
    assert stage_cuts.spans([0, 1, 1, 0]) == {
        (0, 1): ((0, 0), (1, 1)),
        (1, 2): ((1, 1), (2, 2)),
        (2, 3): ((2, 2), (3, 3)),
        (0, 2): ((0, 0), (1, 1), (2, 2)),
        (0, 3): ((0, 2), (3, 3)),
    }
    rng = random.Random(3)
    for _ in range(100):
        rounds = [rng.randrange(5) for _ in range(rng.randint(1, 20))]
        known = {(k, k) for k in range(len(rounds))}
        for span, parts in stage_cuts.spans(rounds).items():
            assert known.issuperset(parts), "they are stated before"
            assert [k for first, last in parts for k in range(first, last + 1)] == [*range(span[0], span[1] + 1)]
            known.add(span)
        for some in range(5):  # the model of an earlier round, and its own spans
            starts = [k for k, added in enumerate(rounds) if added <= some]
            ends = [k - 1 for k in (*starts[1:], len(rounds))]
            earlier = stage_cuts.spans([rounds[k] for k in starts])
            blocks = [*((k, k) for k in range(len(starts))), *earlier]
            assert known >= {(starts[first], ends[last]) for first, last in blocks}


@seeded(range(60), compared=40, stronger=15)
def test_spans_lose_no_solution_and_more_cuts_never_lower_the_relaxation(seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    graph = small_graph(rng, rng.randint(10, 18))
    n, profile = len(graph.nodes), no_remat_profile(graph)
    cuts = sorted(rng.sample(range(n), rng.randint(3, n)))
    room = rng.randint(max(working_set(graph, t) for t in range(n)), max(profile))

    added = {t: rng.randrange(4) for t in cuts}

    def relaxed(some: list[int], rounds: list[int]) -> float:
        every = [(t, t) for t in some]
        stated = stage_cuts.build(graph, every, room, Control(), seen=frozenset(), rounds=rounds)
        outcome = Highs().solve(Request(stated.model.relaxed(), Control(), threads=1))
        return math.inf if outcome.objective is None else outcome.objective

    inside = [(t, rng.randrange(t)) for t in cuts if t - 1 in cuts and rng.random() < 0.5]
    rounds = [added[t] for t, _ in sorted([*((t, t) for t in cuts), *inside])]
    plain, plain_relaxed = solved(graph, cuts, room, inside), relaxed(cuts, [])
    spanned = solved(graph, cuts, room, inside, rounds=rounds)
    spanned_relaxed = relaxed(cuts, [added[t] for t in cuts])
    for some in range(3):
        earlier = [t for t in cuts if added[t] <= some]
        if earlier:
            assert spanned_relaxed >= relaxed(earlier, [added[t] for t in earlier]) - 1e-9
    assert (spanned is None) == (plain is None)
    if spanned is not None and plain is not None:
        assert spanned[0] == pytest.approx(plain[0])
        yield "compared"
    if math.isfinite(plain_relaxed):
        assert spanned_relaxed >= plain_relaxed - 1e-9
        yield from ["stronger"] * (spanned_relaxed > plain_relaxed + 1e-9)


def test_derived_values_cost_next_to_nothing_and_come_from_one_value_that_is_no_larger() -> None:
    graph = build_graph("resnet18")
    derived = stage_cuts.derived_values(graph)
    assert 0 < len(derived) < len(graph.size)
    for v in derived:
        node = graph.nodes[graph.producer[v]]
        (u,) = set(node.inputs)
        assert graph.size[u] <= graph.size[v]
        assert node.cost <= 1e-4 * graph.total_cost
        assert not node.id.endswith("conv")
    once = replace(graph, nodes=tuple(replace(node, recompute=False) for node in graph.nodes))
    assert not stage_cuts.derived_values(once)


def test_what_is_offered_is_within_the_budget_and_its_bounds_hold() -> None:
    closed = 0
    for seed in range(60):
        graph = small_graph(random.Random(seed), 6)
        least = bruteforce.least_peak(graph)
        for budget in range(max(1, least - 2), no_remat_peak(graph)):
            best = Incumbent.of(Task(graph, budget), Context(Control(), Highs(), threads=1))
            StageCuts(best).turn(Control())
            bound = best.bounds.get(Scope.DOCUMENT_ORDER)
            truth = bruteforce.cheapest(graph, budget)
            assert bound is None or bound.cost <= (math.inf if truth is None else truth + 1e-9)
            if best.computes is not None:
                assert truth is not None
                assert peak(graph, best.computes) <= budget
                assert best.cost >= truth - 1e-9
                closed += best.done()
    assert closed > 30


@pytest.mark.parametrize(("spec", "percent"), [("gpt2", 50), ("bert", 50), ("vgg16", 60)])
def test_training_steps_get_an_optimal_plan_at_once(spec: str, percent: int) -> None:
    graph = build_graph(spec)
    budget = no_remat_peak(graph) * percent // 100
    best = Incumbent.of(Task(graph, budget), Context(Control(), Highs(), threads=1))
    StageCuts(best).turn(Control())
    assert best.computes is not None
    assert peak(graph, best.computes) <= budget
    assert best.done()


def test_it_ends_where_cuts_do_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = build_graph("unit-chain{n=17}")
    best = Incumbent.of(Task(chain, 5), Context(Control(), Highs(), threads=1))
    StageCuts(best).turn(Control())
    assert best.bounds[Scope.DOCUMENT_ORDER].cost <= 22
    monkeypatch.setattr(_cuts, "_MOST_CUTS", 0)
    StageCuts(best).turn(Control())


def test_a_solve_that_takes_long_stops_well_within_the_gap_that_is_open() -> None:
    chain = build_graph("unit-chain{n=17}")
    best = Incumbent.of(Task(chain, 5), Context(Control(), Highs(), threads=1))
    stages = StageCuts(best)
    assert stages._loose_gap() == pytest.approx(0.1)  # no schedule yet
    best.offer(tuple(s.node for s in solve(chain, "5B").plan.statements if isinstance(s, Compute)))
    for share, gap in ((0.5, 0.1), (0.96, 0.02), (1.0, CUTS_GAP)):
        best.raise_bound(Bound(share * best.cost, Scope.DOCUMENT_ORDER))
        assert stages._loose_gap() == pytest.approx(gap)


@pytest.mark.parametrize(("asked", "recomputed", "gap"), [(0.01, 0.5, 0.002), (0.01, 1e-9, 0.1), (0.0, 0.5, CUTS_GAP)])
def test_a_solve_leaves_a_tenth_of_the_gap_that_was_asked_for(asked: float, recomputed: float, gap: float) -> None:
    chain = build_graph("unit-chain{n=17}")
    best = Incumbent.of(Task(chain, 5), Context(Control(), Highs(), threads=1, gap=asked))
    stages = StageCuts(best)
    assert stages._exact_gap() == CUTS_GAP  # nothing is known of what is recomputed
    best.raise_bound(Bound(chain.total_cost * (1 + recomputed), Scope.DOCUMENT_ORDER))
    assert stages._exact_gap() == pytest.approx(gap, rel=1e-6)


@pytest.mark.parametrize(
    ("least", "most", "anew"),
    [(0.3, 0.4, True), (0.2, 0.4, False), (0.3, 0.3001, False)],
    ids=["all", "cheap", "unknown"],
)
def test_cuts_begin_anew_at_a_tail_that_says_about_as_much(least: float, most: float, anew: bool) -> None:
    graph = build_graph("resnet18")
    best = Incumbent.of(Task(graph, no_remat_peak(graph) // 2), Context(Control(), Highs(), threads=1))
    best.raise_bound(Bound(1.4 * graph.total_cost, Scope.DOCUMENT_ORDER))
    stages = StageCuts(best)
    (peak_stage,) = stages.cuts
    assert 30 < peak_stage[0] < 120
    stages.cuts = [(30, 30), peak_stage, (130, 130)]
    none = np.zeros((1, graph.first_value[120]), dtype=np.bool_)
    stages._begin_before(Tail(120, frozenset(range(120, 137)), none, np.array([least]), most, ended=True))
    kept = [peak_stage] if anew else [(30, 30), peak_stage, (130, 130)]
    assert stages.cuts == sorted([*kept, (120, 120)])


def test_a_solve_that_was_cut_short_counts_as_long() -> None:
    graph = build_graph("unet")
    best = Incumbent.of(Task(graph, no_remat_peak(graph) // 2), Context(Control(), Highs(), threads=1))
    stages = StageCuts(best)
    assert stages.run(Control()) is not None
    assert stages.took_s < _cuts._LONG_S
    assert stages.run(Control.within(0.0)) is None
    assert stages.took_s >= _cuts._LONG_S


@pytest.mark.parametrize("within", [True, False])
def test_within_the_gap_that_was_asked_for_no_solve_is_long(within: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = build_graph("unit-chain{n=17}")
    best = Incumbent.of(Task(chain, 5), Context(Control(), Highs(), threads=1, gap=0.01))
    best.offer(tuple(s.node for s in solve(chain, "5B").plan.statements if isinstance(s, Compute)))
    best.raise_bound(Bound(best.cost * (0.995 if within else 0.9), Scope.DOCUMENT_ORDER))
    given: list[float | None] = []
    monkeypatch.setattr(StageCuts, "run", lambda self, control: given.append(control.remaining_s()))
    StageCuts(best).turn(Control.within(60), goal=Verdict.SETTLED)
    (remaining,) = given
    assert remaining is not None
    assert (remaining <= 0.1) is within


def test_the_largest_excess_is_cut_first_unless_working_sets_leave_little_room() -> None:
    graph = layered(120, 0)
    roomy = StageCuts(Incumbent.of(Task(graph, no_remat_peak(graph) * 9 // 10), Context(Control(), Highs())))
    profile = no_remat_profile(graph)
    assert not roomy.tight
    assert roomy._over(range(120))[0][1] == profile.index(max(profile))

    segnet = build_graph("segnet")
    least = StageCuts(Incumbent.of(Task(segnet, 8_620_710_056), Context(Control(), Highs())))
    over = least._over(range(len(segnet.nodes)))
    assert least.tight
    assert over[0][0] == max(working_set(segnet, node) for _, _, node in over)
    assert heights(segnet, range(len(segnet.nodes)))[over[0][2]] < no_remat_peak(segnet)


def test_a_budget_below_a_working_set_is_proven_too_small() -> None:
    graph = build_graph("linear{n=6}")
    best = Incumbent.of(Task(graph, 3), Context(Control(), Highs(), threads=1))
    StageCuts(best).turn(Control())
    assert best.verdict is Verdict.IMPOSSIBLE


def test_a_schedule_that_computes_again_what_must_not_be_is_not_taken():
    chain = build_graph("unit-chain{n=17}")
    statements = solve(chain, "5B").plan.statements
    computes = tuple(statement.node for statement in statements if isinstance(statement, Compute))
    once = replace(chain, nodes=tuple(replace(node, recompute=False) for node in chain.nodes))
    for graph, taken in ((chain, True), (once, False)):
        best = Incumbent.of(Task(graph, 5), Context(Control(), Highs(), threads=1))
        assert best.offer(computes) is taken
        assert (best.lowest.computes == computes) is taken
