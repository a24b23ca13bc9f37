"""Searches over budgets with a host: curves, least peaks, batches, and starts, against a search of all plans."""

import math
import random
from dataclasses import replace

import pytest
from copies import random_plan
from copying_bruteforce import TooMany, least_time, tiny
from families import varied_graph

from remat_cli.api import max_batch
from remat_cli.control import Control
from remat_cli.errors import StrategyMismatch, UsageError
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph, Node
from remat_cli.kernels import compiling
from remat_cli.plan.check import check
from remat_cli.plan.copying import copying_of
from remat_cli.plan.derive import derive
from remat_cli.plan.host import Host
from remat_cli.plan.model import Claim, ClaimStatus, Copies, Plan, Scope
from remat_cli.plan.replay import replay
from remat_cli.planning.curve import solve_curve
from remat_cli.planning.least_peak import solve_smallest
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.solving import solve
from remat_cli.planning.warm_start import WarmStart
from remat_cli.strategies.copying.offload import Offload
from remat_cli.strategies.copying.walker import Walker

STEP = Graph(
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


@pytest.fixture(autouse=True)
def compiled() -> None:
    """No test's time goes to compilation."""
    assert compiling.wait("copying", Control())


def options(host: Host = HOST, limit_s: float = 6.0, **more: object) -> SolveOptions:
    return SolveOptions(host=host, time_limit_s=limit_s, threads=1, **more)


def test_a_curve_with_a_host_neither_rises_nor_goes_below_the_truth() -> None:
    compared = 0
    for seed in range(12):
        rng, graph = random.Random(seed), tiny(seed)
        low, high = peak_bound(graph).bytes, no_remat_peak(graph)
        if low == high:
            continue
        host = Host(rng.choice((0.5, 1.0, 4.0)), rng.choice((0.5, 2.0)))
        budgets = sorted({low, (low + high) // 2, high})
        curve = solve_curve(graph, [f"{budget}B" for budget in budgets], options(host, 3.0))
        before = math.inf
        for point in curve.points:
            if point.solved is None:
                continue
            claim = point.solved.plan.claim
            assert claim.copies is Copies.ANY
            assert claim.cost == pytest.approx(point.solved.report.replay.time)
            assert claim.cost <= before + 1e-9
            before = claim.cost
            try:
                least = least_time(graph, point.budget_bytes, host, most=4_000)
            except TooMany:
                continue
            assert least is not None
            assert claim.lower_bound <= least + 1e-6
            assert claim.cost >= least - 1e-6
            compared += 1
        if compared >= 8:
            return
    assert compared >= 4


def test_the_least_peak_with_copies_is_that_of_the_largest_working_set() -> None:
    fast = Host(math.inf, math.inf)
    pinned = replace(STEP, nodes=tuple(replace(node, recompute=False) for node in STEP.nodes))
    solved = solve_smallest(pinned, options(fast))
    assert solved.report.replay.peak_bytes == peak_bound(pinned).bytes == 12 < no_remat_peak(pinned)
    assert solved.plan.claim.peak is not None
    assert (solved.plan.claim.peak.lower_bound_bytes, solved.plan.claim.peak.scope) == (12, Scope.ANY_ORDER)
    assert solved.plan.claim.cost == 29.0
    # What may be neither copied nor computed again has to stay.
    kept = replace(pinned, nodes=tuple(replace(node, offload=False) for node in pinned.nodes))
    assert solve_smallest(kept, options(fast)).report.replay.peak_bytes == no_remat_peak(kept) == 16


def test_a_batch_grows_by_copies_alone() -> None:
    pinned = replace(STEP, nodes=tuple(replace(node, recompute=False) for node in STEP.nodes))
    found = max_batch(pinned, "42B", graph_batch=1, max_overhead="1%", options=options(HOST))
    assert (found.without, found.found) == (2, 3)
    assert found.solved is not None
    assert found.solved.plan.copies
    assert found.cost == 29.0
    with pytest.raises(UsageError, match="without latency and without a limit"):
        max_batch(pinned, "42B", graph_batch=1, max_overhead="1%", options=options(Host(4.0, 1.0, memory_bytes=9)))


def test_a_search_starts_from_an_old_plan_with_copies_and_is_never_worse() -> None:
    old = solve(STEP, 14, options()).plan
    assert old.copies
    again = solve(STEP, 14, options(limit_s=3.0, start=old)).plan
    assert again.claim.cost == 29.0
    assert again.provenance["start"] == {"cost": 29.0, "peak_memory": old.budget_bytes}
    # A plan for another bandwidth counts at its time here, and one without copies at its cost.
    slow = solve(STEP, 14, options(Host(0.5, 0.5), 3.0, start=old)).plan
    assert slow.claim.cost == 30.0
    plain = solve(STEP, 14, SolveOptions(time_limit_s=3.0)).plan
    assert solve(STEP, 14, options(limit_s=3.0, start=plain)).plan.claim.cost == 29.0


def test_starts_that_make_no_sense_are_refused() -> None:
    old = solve(STEP, 14, options()).plan
    with pytest.raises(UsageError, match="copies values to a host"):
        solve(STEP, 14, SolveOptions(start=old))
    with pytest.raises(UsageError, match="needs 8 B of host memory"):
        solve(STEP, 14, options(Host(4.0, 1.0, memory_bytes=7), start=old))
    with pytest.raises(StrategyMismatch, match="does not start from a plan"):
        solve(STEP, 14, SolveOptions(strategy="chen-sqrt", start=old))


def test_plans_of_others_are_taken_as_they_are_or_refused() -> None:
    refused = taken = 0
    for seed in range(12):
        statements = random_plan(STEP, random.Random(seed))
        seen = replay(STEP, statements, host=HOST)
        claim = Claim(ClaimStatus.FEASIBLE, seen.time, 0.0, Scope.ANY_ORDER, copies=Copies.ANY)
        plan = Plan(STEP, statements, None, claim, "by-hand", host=HOST)
        assert check(plan).valid
        try:
            start = WarmStart.of(plan, STEP, Offload(), host=HOST)
        except UsageError as error:
            refused += "in another way than searches do" in error.message
            continue
        taken += 1
        assert start.cost <= seen.time * (1 + 1e-9)
        assert start.peak_bytes <= seen.peak_bytes
    assert refused
    assert taken
    assert refused + taken == 12


def test_the_copies_of_a_schedule_can_be_read_from_its_statements() -> None:
    read = 0
    for seed in range(120):
        rng = random.Random(seed)
        graph = replace(varied_graph(seed, 3, 12), cost_unit="s")
        host = Host(rng.choice((0.5, 1.0, 4.0)), rng.choice((0.5, 2.0)))
        walker = Walker(
            graph, rng.randint(peak_bound(graph).bytes, no_remat_peak(graph)) - graph.fixed_memory, host, seed
        )
        start = walker.timed(range(len(graph.nodes)))
        assert start is not None
        best = walker.anneal(start, 1000, (1e-1, 1e-3))
        if best.excess_bytes:
            continue
        statements = derive(graph, best.schedule.computes, copying=best.schedule.copying)
        assert copying_of(statements) == best.schedule.copying
        read += best.schedule.copying is not None
    assert read > 20
