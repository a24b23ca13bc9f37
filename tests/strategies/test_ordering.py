"""Other orders than the document's: the searches for them and what ``reorder`` claims, against all orders."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
from anyorder import all_orders, cheapest_in_any_order, least_order_peak, peak_of
from families import computes_of, random_graph
from seeded import seeded

from remat_cli.control import Control
from remat_cli.errors import Infeasible, LimitReached, StrategyMismatch
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph, Node
from remat_cli.milp.cover_bound import least_peak_in_any_order
from remat_cli.milp.free_cut import FreeCuts
from remat_cli.plan.check import check
from remat_cli.plan.derive import peak
from remat_cli.plan.liveness import heights
from remat_cli.plan.model import ClaimStatus, Scope
from remat_cli.planning.solving import Solved, SolveOptions, solve
from remat_cli.solvers.base import Request
from remat_cli.solvers.registry import solver_from_spec
from remat_cli.strategies.base import Context, Known, Schedule, Task
from remat_cli.strategies.bounds import cover_bound
from remat_cli.strategies.ordering.anneal import Problem, anneal, settle, shake, unroll
from remat_cli.strategies.ordering.beam import Aim, Steps, Stretch, search
from remat_cli.strategies.ordering.candidates import find_orders
from remat_cli.strategies.ordering.reorder import free_cut_bound, solve_reordered
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.zoo.registry import build_graph


def graph_of(seed: int, fewest: int = 3, most: int = 7, **more: object) -> Graph:
    rng = random.Random(seed)
    options = {"max_outputs": 2, "max_inputs": 2, "workspace": seed % 2 == 0, "random_outputs": seed % 3 == 0, **more}
    return random_graph(rng, rng.randint(fewest, most), fixed_memory=rng.choice((0, 7)), **options)


def excess_of(graph: Graph, order: Sequence[int], target: int) -> int:
    """Bytes over ``target``, which leaves fixed memory out, summed over the steps of an order."""
    return sum(max(0, height - graph.fixed_memory - target) for height in heights(graph, order))


def wide(seed: int, n: int) -> Graph:
    """A graph with many orders: half of the nodes read nothing or a single value."""
    return random_graph(random.Random(seed), n, max_outputs=2, max_inputs=2, zero_outputs=True, unread=False)


@seeded(range(80), lower=10)
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_a_beam_that_drops_nothing_finds_the_smallest_peak(seed: int, backward: bool) -> Iterator[str]:
    graph = graph_of(seed, 1, 9, zero_outputs=True)
    steps = Steps.of(graph)
    everything = Stretch(tuple(range(len(graph.nodes))), 0, steps.at_end if backward else 0)
    beam = search(steps, everything, Aim(0, 10, 10**9), 10**6, Control(), backward=backward)
    assert beam.exact
    assert beam.nodes is not None
    assert graph.fixed_memory + max(beam.peak, steps.at_end) == least_order_peak(graph) == peak_of(graph, beam.nodes)
    assert excess_of(graph, beam.nodes, 10) == beam.excess
    # Within a limit below the smallest peak there is nothing, and it says so.
    none = search(steps, everything, Aim(0, 10, beam.peak - 1), 10**6, Control(), backward=backward)
    assert (none.nodes, none.exact) == (None, True)
    if least_order_peak(graph) < no_remat_peak(graph):
        yield "lower"


@seeded(range(20), lower=15)
def test_annealing_keeps_its_books(seed: int) -> Iterator[str]:
    """It ends with a topological order whose bytes over the target are what a walk through it counts."""
    graph = wide(seed, 25)
    target = peak(graph, range(25)) * 2 // 3
    order, excess = anneal(Problem.of(graph), range(25), target, 3_000, seed)
    assert sorted(order) == list(range(25))
    assert peak(graph, order) == peak_of(graph, order)
    assert excess_of(graph, order, target) == excess
    assert excess <= excess_of(graph, range(25), target)
    assert anneal(Problem.of(graph), range(25), target, 3_000, seed) == (order, excess)
    if excess < excess_of(graph, range(25), target):
        yield "lower"


@seeded(range(12), lower=4)
def test_annealing_alone_comes_to_the_smallest_peak(seed: int) -> Iterator[str]:
    graph = wide(seed, 9)
    start = peak(graph, range(9))
    order, _ = anneal(Problem.of(graph), range(9), start, 20_000, seed, floor=0)
    assert peak(graph, order) == least_order_peak(graph)
    if peak(graph, order) < start:
        yield "lower"


@seeded(range(40), lower=10, others=25)
def test_orders_are_orders_and_the_lowest_is_lowest(seed: int) -> Iterator[str]:
    graph = graph_of(seed, 2, 9)
    truth = least_order_peak(graph)
    found = find_orders(graph, None, Control(), seed)
    assert found.given.nodes == tuple(range(len(graph.nodes)))
    for order in (found.given, found.lowest, *found.others):
        assert order.peak_bytes == peak_of(graph, order.nodes)
    assert found.lowest.peak_bytes == truth
    within = find_orders(graph, truth, Control(), seed)
    assert within.lowest.peak_bytes == truth
    yield from ["lower"] * (truth < found.given.peak_bytes) + ["others"] * len(found.others)


@pytest.mark.parametrize(("branches", "exact"), [(8, True), (80, False)])
def test_branches_one_after_the_other(branches: int, exact: bool) -> None:
    """Each makes much and leaves little; the document has all of the former first."""
    nodes = [Node(f"big{i}", 1.0, (), (100,)) for i in range(branches)]
    nodes += [Node(f"small{i}", 1.0, (i,), (1,)) for i in range(branches)]
    last = Node("sum", 1.0, tuple(range(branches, 2 * branches)), (1,))
    graph = Graph("fan", (*nodes, last), outputs=(2 * branches,))
    found = find_orders(graph, None, Control(), 0)
    assert found.given.peak_bytes == 100 * branches + 1
    assert found.lowest.peak_bytes == max(100 + branches, branches + 1)
    assert found.exact is exact


@seeded(range(60), compared=50, apart=15, impossible=150)
def test_bounds_for_any_order_hold_in_every_order(seed: int) -> Iterator[str]:
    graph = graph_of(seed, 3, 6, recompute_false=0.2)
    context = Context(Control(), solver_from_spec("highs"), threads=1)
    top = no_remat_peak(graph)
    least = least_peak_in_any_order(graph)
    for budget in range(max(1, top - 6), top):
        truth = cheapest_in_any_order(graph, budget)
        bound = cover_bound(graph, budget, context, time_limit_s=10.0, any_order=True)
        assert bound.scope is Scope.ANY_ORDER
        assert truth is None or (bound.cost <= truth and least <= budget)
        yield "impossible" if truth is None else "compared"
        if truth is not None and bound.cost > graph.total_cost:
            yield "apart"


@seeded(range(60), compared=70, apart=30, beyond=12)
def test_cut_bounds_hold_in_every_order(seed: int) -> Iterator[str]:
    """They do at every stage, not only at the best one; and sometimes they are above the cover bound."""
    graph = graph_of(seed, 3, 6, recompute_false=0.2)
    context = Context(Control(), solver_from_spec("highs"), threads=1)
    top = no_remat_peak(graph)
    for budget in range(max(1, top - 6), top):
        truth = cheapest_in_any_order(graph, budget)
        if truth is None or budget <= graph.fixed_memory:
            continue
        cuts = FreeCuts.of(graph, budget)
        for t in range(len(cuts.graph.nodes)):
            for integral in (False, True):
                outcome = context.solver.solve(Request(cuts.model(t, integral=integral), Control(), gap=0.0))
                assert outcome.bound is not None
                assert graph.total_cost * (1 + outcome.bound) <= truth * (1 + 1e-6)
        bound = free_cut_bound(graph, budget, context, Control())
        assert bound.scope is Scope.ANY_ORDER
        assert bound.cost <= truth
        yield "compared"
        if bound.cost > graph.total_cost:
            yield "apart"
        if bound.cost > cover_bound(graph, budget, context, time_limit_s=10.0, any_order=True).cost:
            yield "beyond"


@seeded(range(60), above=30)
def test_a_bound_for_the_order_of_the_document_claims_no_more(seed: int) -> Iterator[str]:
    """Other orders may be cheaper than it, and then it must not be said to hold for them."""
    graph = graph_of(seed, 3, 6, recompute_false=0.2)
    context = Context(Control(), solver_from_spec("highs"), threads=1)
    top = no_remat_peak(graph)
    for budget in range(max(1, top - 6), top):
        bound = cover_bound(graph, budget, context, time_limit_s=10.0)
        truth = cheapest_in_any_order(graph, budget)
        if truth is not None and bound.cost > truth:
            assert bound.scope is Scope.DOCUMENT_ORDER
            yield "above"


@pytest.mark.parametrize("strategy", ["auto", "optimal", "search", "keep-all", "checkmate-ilp"])
@seeded(range(12), compared=20, apart=3)
def test_never_worse_and_nothing_false_is_claimed(strategy: str, seed: int) -> Iterator[str]:
    graph = graph_of(seed, 4, 6, recompute_false=0.1)
    top = no_remat_peak(graph)
    for budget in (None, top, top - 1, top - 4):
        if budget is not None and budget <= 0:
            continue
        given = attempt(graph, budget, strategy, reorder=False)
        other = attempt(graph, budget, strategy, reorder=True)
        truth = cheapest_in_any_order(graph, 10**9 if budget is None else budget)
        if not isinstance(other, Solved):
            assert not isinstance(given, Solved), "a plan in the order of the document, and none with --reorder"
            assert truth is None or not isinstance(other, Infeasible) or strategy == "keep-all", "falsely infeasible"
            continue
        claim = other.plan.claim
        assert truth is not None
        assert claim.lower_bound <= truth <= claim.cost
        assert claim.status is not ClaimStatus.OPTIMAL or claim.cost <= truth * (1 + 1e-4)
        assert claim.scope is Scope.ANY_ORDER
        assert other.plan.provenance["reorder"] is True
        assert check(other.plan).ok
        yield "compared"
        if not isinstance(given, Solved) or claim.cost < given.plan.claim.cost:
            yield "apart"
        if isinstance(given, Solved):
            assert claim.cost <= given.plan.claim.cost
            if claim.cost == given.plan.claim.cost:
                assert other.report.replay.peak_bytes <= given.report.replay.peak_bytes


def attempt(graph: Graph, budget: int | None, strategy: str, *, reorder: bool) -> Solved | Infeasible | LimitReached:
    try:
        return solve(graph, budget, SolveOptions(strategy=strategy, threads=1, reorder=reorder))
    except (Infeasible, LimitReached) as refusal:
        return refusal


def test_what_fits_in_another_order_is_computed_once() -> None:
    graph = Graph(
        "two branches",
        (
            Node("a1", 1.0, (), (10,)),
            Node("b1", 1.0, (), (10,)),
            Node("a2", 1.0, (0,), (1,)),
            Node("b2", 1.0, (1,), (1,)),
            Node("end", 1.0, (2, 3), (1,)),
        ),
        outputs=(4,),
    )
    solved = solve(graph, 12, SolveOptions(strategy="optimal", reorder=True))
    assert no_remat_peak(graph) == 21
    assert (solved.report.replay.peak_bytes, solved.plan.claim.cost) == (12, 5.0)
    assert (solved.plan.claim.status, solved.plan.strategy) == (ClaimStatus.OPTIMAL, "keep-all")
    assert solved.report.order
    assert [k for k in computes_of(solved.plan) if k in (0, 2)] == [0, 2]


def test_no_budget_asks_for_the_smallest_peak() -> None:
    graph = wide(6, 9)
    assert least_order_peak(graph) < no_remat_peak(graph)
    solved = solve(graph, None, SolveOptions(reorder=True))
    assert solved.report.replay.peak_bytes == least_order_peak(graph)


@seeded(range(25), orders=600, lower=120)
def test_unrolled_schedules_in_other_orders(seed: int) -> Iterator[str]:
    """Any order of the computations of a schedule is a schedule, with no more memory than the unrolled graph needs."""
    rng = random.Random(seed)
    graph = graph_of(seed, 3, 5)
    computes = [*range(len(graph.nodes)), *(rng.randrange(len(graph.nodes)) for _ in range(2))]
    unrolled = unroll(graph, computes)
    for order in list(all_orders(unrolled))[:200]:
        sequence = [computes[x] for x in order]
        assert peak(graph, sequence) <= peak(unrolled, order)
        yield "orders"
        if peak(graph, sequence) < peak(graph, computes):
            yield "lower"
    assert peak(graph, computes) == peak(unrolled, range(len(computes)))


def test_shaking_makes_it_cheaper_and_keeps_it_within_the_budget() -> None:
    better = 0
    for seed in range(30):
        graph = wide(seed, 14)
        budget = no_remat_peak(graph)
        computes = [k for k in range(14) for k in (*(j for j in range(k) if reads_of(graph, k, j)), k)]
        if peak(graph, computes) > budget:
            continue
        seen: list[tuple[int, ...]] = []
        result = shake(graph, computes, budget, Control(), random.Random(seed), seen.append)
        assert peak(graph, result) <= budget
        assert set(result) == set(range(14))
        assert len(result) <= len(computes)
        better += len(result) < len(computes)
        assert settle(graph, result, budget, random.Random(0)) is not None
    assert better > 0


def reads_of(graph: Graph, k: int, j: int) -> bool:
    """Whether node k reads from j, which reads nothing itself."""
    return not graph.nodes[j].inputs and any(graph.producer[v] == j for v in graph.nodes[k].inputs)


def test_an_only_order_widens_what_is_proven_of_it() -> None:
    graph = build_graph("mobilenet-v1")
    plain, wider = (solve(graph, "80%", SolveOptions(reorder=reorder)).plan.claim for reorder in (False, True))
    assert plain.scope is Scope.DOCUMENT_ORDER
    assert wider.scope is Scope.ANY_ORDER
    assert (plain.status, plain.cost, plain.lower_bound) == (wider.status, wider.cost, wider.lower_bound)


def test_what_is_known_is_never_lost() -> None:
    """A known schedule in an order of its own is the answer if nothing better comes up."""
    graph = wide(6, 9)
    best = find_orders(graph, None, Control(), 0).lowest
    task = Task(graph, best.peak_bytes, Known((Schedule(best.nodes),)))
    context = Context(Control(), solver_from_spec("highs"), threads=1)
    answer = solve_reordered(strategy_from_spec("optimal"), task, context)
    assert peak(graph, answer.schedule.computes) <= best.peak_bytes  # type: ignore[union-attr]


def test_strategies_that_live_off_the_order_refuse() -> None:
    with pytest.raises(StrategyMismatch, match="checkpoint-all does not go with another order"):
        solve(build_graph("vgg16"), None, SolveOptions(strategy="checkpoint-all", reorder=True))


def test_same_seed_same_orders() -> None:
    graph = wide(3, 40)
    first, again = (find_orders(graph, 1, Control(), 7) for _ in range(2))
    assert first == again


def test_a_stopped_search_keeps_the_given_order() -> None:
    control = Control()
    control.cancelled.set()
    found = find_orders(wide(3, 40), 1, control, 0)
    assert found.lowest == found.given
    assert found.others == ()


def test_less_is_recomputed_in_another_order() -> None:
    """No order fits without recomputation; in the document's own, 78 is proven to be the least cost."""
    graph = wide(4, 14)
    budget = least_order_peak(graph) - 1
    solved = solve(graph, budget, SolveOptions(strategy="anneal{patience=1}", reorder=True, threads=1))
    assert solved.plan.claim.cost < 78
    assert solved.report.recomputed
    assert solved.report.order is not None
    assert solved.report.ok
