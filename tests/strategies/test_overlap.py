"""Plans with collectives: against a search of all plans, against baselines, and by the judge."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from families import random_graph
from overlapping_bruteforce import LINK, TooMany, any_tiny, least_time, tiny_sharded
from seeded import seeded

from remat_cli.control import Control
from remat_cli.errors import Infeasible, LimitReached, StrategyMismatch, UsageError
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.kernels import compiling
from remat_cli.plan.check import check
from remat_cli.plan.derive import derive
from remat_cli.plan.host import Host
from remat_cli.plan.model import Compute, Scope
from remat_cli.plan.replay import replay
from remat_cli.planning.least_peak import solve_smallest
from remat_cli.planning.max_batch import max_batch
from remat_cli.planning.solution_pool import SolutionPool
from remat_cli.planning.solving import Solved, SolveOptions, solve
from remat_cli.planning.warm_start import carried
from remat_cli.solvers.registry import SOLVERS
from remat_cli.strategies.base import Found, Schedule
from remat_cli.strategies.overlapping.once import time_once
from remat_cli.strategies.overlapping.simple import simple_schedules
from remat_cli.strategies.overlapping.walker import Walker
from remat_cli.strategies.overlapping.weighted import _gathered_again
from remat_cli.strategies.registry import STRATEGIES


def solved(
    graph: Graph, budget: int, strategy: str = "overlap", limit_s: float | None = 4.0, solver: str = "highs"
) -> Solved | None:
    """The plan, checked; None if there is none."""
    options = SolveOptions(strategy=strategy, time_limit_s=limit_s, threads=1, solver=solver)
    try:
        found = solve(graph, budget, options)
    except (Infeasible, LimitReached):
        return None
    report = check(found.plan)
    assert report.ok
    assert report.findings == ()
    assert report.replay.time == pytest.approx(found.plan.claim.cost, rel=1e-9)
    assert found.plan.claim.lower_bound <= report.replay.time * (1 + 1e-9)
    return found


def between(graph: Graph, rng: random.Random) -> int:
    return rng.randint(peak_bound(graph).bytes, no_remat_peak(graph) + 2)


def test_tiny_graphs_get_plans_that_no_plan_beats_and_bounds_that_hold() -> None:
    assert compiling.wait("overlapping", Control())
    best = compared = tight = 0
    for seed in range(45):
        graph = any_tiny(seed)
        budget = between(graph, random.Random(seed))
        if not graph.overlaps:
            continue
        try:
            least = least_time(graph, budget, most=60_000)
        except TooMany:
            continue
        assert least is None or time_once(graph) <= least + 1e-6, seed
        found = solved(graph, budget, limit_s=1.0)
        if least is None:
            assert found is None
            continue
        compared += 1
        if found is None:
            continue
        claim = found.plan.claim
        assert claim.lower_bound <= least + 1e-6, (seed, budget)
        assert claim.cost >= least - 1e-6, (seed, budget)
        best += claim.cost <= least + 1e-6
        tight += claim.lower_bound >= least * (1 - 1e-5)
        assert claim.scope in {Scope.DOCUMENT_ORDER, Scope.ANY_ORDER, Scope.FRONTIER}
    assert compared >= 25
    assert best >= 0.95 * compared
    assert tight >= 0.5 * compared


INSTALLED = [name for name in SOLVERS.names() if SOLVERS.load(name)().availability().available]


@pytest.mark.parametrize("solver", INSTALLED)
@pytest.mark.parametrize("seed", [1, 5, 14])
def test_bounds_hold_with_every_solver(solver: str, seed: int) -> None:
    graph = tiny_sharded(seed)
    budget = (peak_bound(graph).bytes + no_remat_peak(graph)) // 2
    least = least_time(graph, budget, most=200_000)
    found = solved(graph, budget, limit_s=3.0, solver=solver)
    assert least is not None
    assert found is not None
    assert found.plan.claim.lower_bound <= least + 1e-6 <= found.plan.claim.cost + 2e-6


def random_sharded(seed: int) -> tuple[Graph, int]:
    """A random graph with random collectives, and a budget."""
    rng = random.Random(seed)
    graph = random_graph(rng, rng.randint(2, 14), max_outputs=2, recompute_false=0.2, workspace=True, zero_outputs=True)
    nodes = [replace(node, queue=LINK) if rng.random() < 0.4 else node for node in graph.nodes]
    nodes[0] = replace(nodes[0], queue=LINK)
    graph = replace(graph, nodes=tuple(nodes), cost_unit="s")
    return graph, between(graph, rng)


@seeded(range(120))
def test_the_kernel_times_a_sequence_as_the_judge_does(seed: int) -> None:
    assert compiling.wait("overlapping", Control())
    graph, budget = random_sharded(seed)
    walker = Walker(graph, budget, seed)
    start = walker.timed(range(len(graph.nodes)))
    assert start is not None
    found = walker.anneal(start, 1000, (1e-1, 1e-3))
    early = walker.issued_early(found)
    assert (early.excess_bytes, early.time) <= (found.excess_bytes, found.time)
    for timed in (found, early):
        if timed.excess_bytes:
            continue
        seen = replay(graph, derive(graph, timed.steps, within_bytes=budget))
        assert seen.findings == ()
        assert seen.time == pytest.approx(timed.time, rel=1e-9)
        assert seen.peak_bytes <= budget


@seeded(range(60))
def test_more_memory_for_late_frees_is_never_slower(seed: int) -> None:
    graph, _ = random_sharded(seed)
    order = range(len(graph.nodes))
    own = replay(graph, derive(graph, order))
    assert own.findings == ()
    assert own.peak_bytes == no_remat_peak(graph)
    times = [replay(graph, derive(graph, order, within_bytes=own.peak_bytes + more)).time for more in (0, 2, 8, 10**6)]
    assert times == sorted(times, reverse=True)
    assert times[-1] >= graph.no_remat_cost * (1 - 1e-9)
    assert own.time == times[0]


def test_late_frees_are_the_best_that_any_frees_can_be() -> None:
    """Every other choice of frees for the same sequence of computes takes at least as long."""
    compared = 0
    for seed in range(200):
        graph, budget = random_sharded(seed)
        count = len(graph.nodes)
        if count > 6 or no_remat_peak(graph) > budget or any(map(graph.moves_freely, range(count))):
            continue
        once = replace(graph, nodes=tuple(replace(node, recompute=False) for node in graph.nodes))
        seen = replay(graph, derive(graph, range(count), within_bytes=budget))
        assert seen.time == pytest.approx(least_time(once, budget)), seed
        compared += 1
    assert compared >= 10


def sharded(depth: int) -> Graph:
    """A step of several blocks with phases and layers, in milliseconds."""
    nodes: list[Node] = []
    for k in range(depth):
        nodes.append(Node(f"layers.{k}/gather", 3.0, (), (40,), phase=Phase.FORWARD, queue=LINK))
        below = (3 * k - 1,) if k else ()
        nodes.append(Node(f"layers.{k}/a", 4.0, (3 * k, *below), (16,), phase=Phase.FORWARD))
        nodes.append(Node(f"layers.{k}/b", 1.0, (3 * k + 1,), (8,), phase=Phase.FORWARD))
    count = 3 * depth
    nodes.append(Node("loss", 1.0, (count - 1,), (8,), phase=Phase.LOSS))
    grad, count, outputs = count, count + 1, []
    for k in range(depth - 1, -1, -1):
        reads = (*((3 * k - 1,) if k else ()), 3 * k, 3 * k + 1, grad)
        nodes.append(Node(f"grad/layers.{k}/a", 10.0, reads, (8, 40), phase=Phase.BACKWARD))
        nodes.append(Node(f"grad/layers.{k}/reduce", 4.0, (count + 1,), (5,), phase=Phase.BACKWARD, queue=LINK))
        grad, outputs, count = count, [*outputs, count + 2], count + 3
    return Graph("sharded", tuple(nodes), tuple(outputs), cost_unit="ms", fixed_memory=100)


BASELINES = (
    "keep-all",
    "fsdp{reshard=true}",
    "fsdp{reshard=false}",
    "fsdp{reshard=true,checkpoint=true}",
    "fsdp{reshard=false,checkpoint=true}",
    "min-cut",
    "every-n-layers",
)


def test_the_joint_plan_is_never_above_what_frameworks_do() -> None:
    graph = sharded(5)
    peaks = {}
    for strategy in BASELINES:
        found = solve(graph, None, SolveOptions(strategy=strategy)) if strategy != "min-cut" else None
        peaks[strategy] = no_remat_peak(graph) if found is None else found.report.replay.peak_bytes
    assert peaks["fsdp{reshard=true,checkpoint=true}"] < peaks["fsdp{reshard=true}"] < peaks["fsdp{reshard=false}"]
    for strategy, peak in peaks.items():
        usual = solve(graph, peak, SolveOptions(strategy=strategy))
        joint = solved(graph, peak, "auto", limit_s=3.0)
        assert joint is not None
        assert joint.report.replay.time <= usual.report.replay.time * (1 + 1e-9)


def converted(depth: int) -> Graph:
    """As :func:`sharded`, but every part is converted before its gather, and put together behind it."""
    graph, numbers = sharded(depth), dict[int, int]()
    nodes: list[Node] = []
    for v, node in enumerate(graph.nodes):
        reads = tuple(
            numbers[graph.producer[one]] + one - graph.first_value[graph.producer[one]] for one in node.inputs
        )
        at = sum(len(one.outputs) for one in nodes)
        numbers[v] = at + 2 * graph.moves_freely(v)
        if graph.moves_freely(v):
            nodes.append(Node(f"{node.id}/cast", 1.0, (), (5,), phase=node.phase))
            nodes.append(replace(node, inputs=(at,)))
            nodes.append(Node(f"{node.id}/cat", 1.0, (at + 1,), (40,), phase=node.phase))
        else:
            nodes.append(replace(node, inputs=reads))
    outputs = tuple(numbers[graph.producer[v]] for v in graph.outputs)
    return replace(graph, nodes=tuple(nodes), outputs=outputs)


@pytest.mark.parametrize("made", [sharded, converted])
def test_what_a_simple_schedule_fits_needs_no_time(made: Callable[[int], Graph]) -> None:
    """Each gathered once and late, once more in the backward pass, or for every reader: no search has to find it."""
    graph = made(4)
    peaks = []
    for computes in simple_schedules(graph):
        seen = replay(graph, derive(graph, computes))
        assert seen.findings == ()
        peaks.append(seen.peak_bytes)
        for strategy in ("overlap", "auto"):
            assert solved(graph, seen.peak_bytes, strategy, limit_s=1e-6) is not None
    kept, again, each = peaks
    assert kept <= no_remat_peak(graph)
    assert max(again, each) < kept - 2 * 40, "of four, one is gathered at a time"


@seeded(range(60))
def test_simple_schedules_run_whatever_the_graph(seed: int) -> None:
    for graph in (random_sharded(seed)[0], any_tiny(seed)):
        for computes in simple_schedules(graph):
            assert replay(graph, derive(graph, computes)).findings == ()


@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_gathers_that_run_again_are_those_of_the_first_layers(count: int) -> None:
    graph = sharded(5)
    chosen = {3 * k for k in range(count)}
    again, origin = _gathered_again(graph, chosen)
    assert replay(again, derive(again, range(len(again.nodes)))).findings == ()
    seen = replay(graph, derive(graph, origin))
    assert seen.findings == ()
    assert {k for k, times in enumerate(seen.times) if times == 2} == chosen
    assert max(seen.times) <= 2
    assert not [node for node in again.nodes if node.queue is LINK and node.recompute and not node.inputs]
    assert seen.peak_bytes == no_remat_peak(again)


def test_a_mixture_is_found_where_both_queues_are_busy() -> None:
    assert compiling.wait("overlapping", Control())
    nodes = [replace(node, cost=9.0) if node.queue is LINK else node for node in sharded(8).nodes]
    graph = replace(sharded(8), nodes=tuple(nodes))
    budget = no_remat_peak(graph) * 70 // 100
    found = solved(graph, budget, limit_s=None)
    assert found is not None
    times = found.report.replay.times
    assert {times[3 * k] for k in range(8)} == {1, 2}


def test_reshard_gathers_again() -> None:
    graph = sharded(3)
    plan = solve(graph, None, SolveOptions(strategy="fsdp{checkpoint=true}")).plan
    times = replay(graph, plan.statements).times
    by_id = {node.id: times[k] for k, node in enumerate(graph.nodes)}
    assert by_id == {
        node.id: 2 if node.phase is Phase.FORWARD and not node.id.endswith("/b") else 1 for node in graph.nodes
    }
    kept = solve(graph, None, SolveOptions(strategy="fsdp{reshard=false}")).plan
    assert set(replay(graph, kept.statements).times) == {1}


def test_what_knows_no_collectives_says_so() -> None:
    graph = sharded(2)
    for name in STRATEGIES.names():
        if STRATEGIES.load(name).overlaps:
            continue
        with pytest.raises((StrategyMismatch, UsageError)):
            solve(graph, "90%", SolveOptions(strategy=name))
    with pytest.raises(UsageError, match="copies to a host are not planned"):
        solve(graph, "90%", SolveOptions(host=Host(1.0, 1.0)))
    with pytest.raises(UsageError, match="run in the document's order"):
        solve(graph, "90%", SolveOptions(reorder=True))
    with pytest.raises(UsageError, match="costs are unit, and nodes in the communication queue"):
        solve(replace(graph, cost_unit="unit"), "90%")


@pytest.mark.parametrize("strategy", ["overlap", "fsdp"])
def test_what_is_for_collectives_needs_them(strategy: str) -> None:
    graph = Graph("plain", (Node("a", 1.0, (), (1,)),), (0,))
    with pytest.raises(StrategyMismatch, match=f"{strategy} needs "):
        solve(graph, "100%", SolveOptions(strategy=strategy))


def test_the_plan_is_the_same_twice() -> None:
    graph = sharded(3)
    plans = [solve(graph, "70%", SolveOptions(strategy="auto", threads=1)).plan for _ in range(2)]
    assert plans[0].statements == plans[1].statements
    assert plans[0].claim == plans[1].claim


def test_the_least_peak_is_found() -> None:
    assert compiling.wait("overlapping", Control())
    for seed in (1, 4, 7):
        graph = tiny_sharded(seed)
        found = solve_smallest(graph, SolveOptions(time_limit_s=4.0, threads=1))
        claim = found.plan.claim.peak
        assert found.report.ok
        assert claim is not None
        least = next(b for b in range(peak_bound(graph).bytes, 100) if least_time(graph, b) is not None)
        assert claim.lower_bound_bytes <= least <= found.report.replay.peak_bytes
        assert found.report.replay.peak_bytes == least


def test_the_largest_batch_is_refused() -> None:
    with pytest.raises(
        UsageError, match="the largest batch is not searched for graphs with nodes in the communication"
    ):
        max_batch(sharded(2), 10**4, graph_batch=1, most_cost=1e9)


def test_a_plan_with_early_gathers_is_a_start() -> None:
    assert compiling.wait("overlapping", Control())
    graph = sharded(3)
    early = solve(graph, "80%", SolveOptions(time_limit_s=3.0, threads=1))
    order = [s.node for s in early.plan.statements if isinstance(s, Compute)]
    assert list(dict.fromkeys(order)) != sorted(set(order))  # a gather comes before its place in the document
    again = solve(graph, "90%", SolveOptions(time_limit_s=2.0, threads=1, start=early.plan))
    assert again.plan.claim.cost <= early.plan.claim.cost * (1 + 1e-9)
    assert again.plan.provenance["start"]["cost"] == pytest.approx(early.plan.claim.cost)


def test_a_carried_plan_is_judged_by_its_time() -> None:
    graph = sharded(3)
    plan = solve(graph, None, SolveOptions(strategy="fsdp")).plan
    smaller = replace(graph, nodes=tuple(replace(node, outputs=node.outputs) for node in graph.nodes), fixed_memory=90)
    found = carried(smaller, [plan], no_remat_peak(graph))
    assert found is not None
    report = check(found)
    assert report.ok
    assert report.findings == ()


@seeded(range(6))
def test_a_curve_neither_rises_nor_goes_below_the_truth(seed: int) -> None:
    graph = tiny_sharded(seed + 1)
    low, high = peak_bound(graph).bytes, no_remat_peak(graph)
    pool = SolutionPool(graph)
    for budget in (low, (low + high) // 2, high):
        found = solved(graph, budget, limit_s=0.5)
        if found is not None:
            order = tuple(s.node for s in found.plan.statements if isinstance(s, Compute))
            pool.add(Found(Schedule(order)))
    answers = [entry.cost for budget in range(low, high + 3) if (entry := pool.within(budget)) is not None]
    assert answers == sorted(answers, reverse=True)
