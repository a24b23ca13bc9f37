"""Plans with copies: against a search of all plans, against what only recomputes or only copies, and by the judge."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from copying_bruteforce import TooMany, least_time, tiny
from families import varied_graph
from seeded import seeded

from remat_cli.control import Control
from remat_cli.errors import Infeasible, LimitReached, StrategyMismatch, UsageError
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph, Node
from remat_cli.kernels import compiling
from remat_cli.plan.check import check
from remat_cli.plan.copying import CopyBack, Copying, CopyOut, derive_copying
from remat_cli.plan.derive import derive
from remat_cli.plan.host import Host
from remat_cli.plan.io import dump_plan
from remat_cli.plan.model import Copies, Scope
from remat_cli.plan.replay import replay
from remat_cli.planning.solving import Solved, SolveOptions, solve
from remat_cli.strategies.copying.walker import Walker, steps_of


def solved(graph: Graph, budget: int, host: Host, strategy: str = "offload", limit_s: float = 5.0) -> Solved | None:
    """The plan, checked; None if there is none."""
    options = SolveOptions(strategy=strategy, host=host, time_limit_s=limit_s, threads=1)
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


def host_of(rng: random.Random) -> Host:
    return Host(
        rng.choice((0.5, 1.0, 4.0)), rng.choice((0.5, 2.0)), rng.choice((0.0, 0.5)), rng.choice((None, None, 5))
    )


def test_tiny_graphs_get_plans_that_no_plan_beats_and_bounds_that_hold() -> None:
    assert compiling.wait("copying", Control())
    best = compared = 0
    for seed in range(40):
        rng, graph = random.Random(seed), tiny(seed)
        low, high = peak_bound(graph).bytes, no_remat_peak(graph)
        if low == high:
            continue
        budget, host = rng.randint(low, high - 1), host_of(rng)
        try:
            least = least_time(graph, budget, host, most=5_000)
        except TooMany:
            continue
        found = solved(graph, budget, host, limit_s=1.5)
        if least is None:
            assert found is None
            continue
        compared += 1
        if found is None:
            continue
        claim = found.plan.claim
        assert claim.lower_bound <= least + 1e-6, seed
        assert claim.cost >= least - 1e-6, seed
        best += claim.cost <= least + 1e-6
        assert (claim.scope, claim.copies) in {(Scope.DOCUMENT_ORDER, Copies.ANY), (Scope.ANY_ORDER, Copies.ANY)}
    assert compared >= 6
    assert best >= 0.9 * compared


@seeded(range(2))
def test_both_is_never_worse_than_one_alone(seed: int) -> None:
    rng = random.Random(seed)
    graph = replace(varied_graph(seed, 8, 14), cost_unit="ms")
    low, high = peak_bound(graph).bytes, no_remat_peak(graph)
    if low == high:
        return
    host = Host(rng.choice((500.0, 2000.0)), rng.choice((500.0, 2000.0)))
    both, recompute, copy = (
        solved(graph, (low + high) // 2, host, name, 4.0)
        for name in ("auto", "offload{copy=false}", "offload{recompute=false}")
    )
    alone = [found.plan.claim.cost for found in (recompute, copy) if found is not None]
    if alone:
        assert both is not None
        assert both.plan.claim.cost <= min(alone) * (1 + 1e-9)
    if recompute is not None:
        assert not recompute.plan.copies
    if copy is not None:
        assert all(times == 1 for times in copy.report.replay.times)


@seeded(range(80))
def test_the_kernel_times_a_sequence_as_the_judge_does(seed: int) -> None:
    assert compiling.wait("copying", Control())
    rng = random.Random(seed)
    graph = replace(varied_graph(seed, 3, 12), cost_unit="s")
    host = host_of(rng)
    budget = rng.randint(peak_bound(graph).bytes, no_remat_peak(graph))
    walker = Walker(graph, budget - graph.fixed_memory, host, seed)
    start = walker.timed(range(len(graph.nodes)))
    assert start is not None
    best = walker.anneal(start, 1000, (1e-1, 1e-3))
    if best.excess_bytes:
        return
    seen = replay(graph, derive(graph, best.schedule.computes, copying=best.schedule.copying), host=host)
    assert seen.findings == ()
    assert seen.time == pytest.approx(best.time, rel=1e-9)
    assert seen.peak_bytes <= budget
    assert seen.host_peak_bytes <= (math.inf if host.memory_bytes is None else host.memory_bytes)
    again = walker.timed(steps_of(graph, best.schedule))
    assert again is not None
    assert again.excess_bytes == 0


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
"""Without copies, a waits while c runs, where 16 bytes are needed."""


def test_a_copy_beside_computations_costs_nothing() -> None:
    found = solved(STEP, 14, Host(4.0, 1.0))
    assert found is not None
    assert found.plan.claim.cost == 29.0  # out in 2 s beside b, back in 8 s beside d
    assert found.plan.claim.status.value == "optimal"
    assert found.plan.copies
    assert '"schema": "remat-plan/2"' in dump_plan(found.plan)


def test_what_may_not_be_copied_is_computed_again() -> None:
    pinned = replace(STEP, nodes=(replace(STEP.nodes[0], offload=False), *STEP.nodes[1:]))
    found = solved(pinned, 14, Host(4.0, 1.0))
    assert found is not None
    assert (found.plan.claim.cost, found.plan.copies) == (30.0, False)
    assert '"schema": "remat-plan/1"' in dump_plan(found.plan)


def test_a_slow_host_is_not_used() -> None:
    found = solved(STEP, 14, Host(0.1, 0.1))
    assert found is not None
    assert (found.plan.claim.cost, found.plan.claim.status.value) == (30.0, "optimal")
    assert not found.plan.copies


def test_what_no_host_can_do_is_refused() -> None:
    host = Host(1.0, 1.0)
    with pytest.raises(StrategyMismatch, match="offload needs a host"):
        solve(STEP, 14, SolveOptions(strategy="offload"))
    with pytest.raises(StrategyMismatch, match="chen-sqrt copies nothing"):
        solve(STEP, 14, SolveOptions(strategy="chen-sqrt", host=host))
    with pytest.raises(UsageError, match="costs are flops"):
        solve(replace(STEP, cost_unit="flops"), 14, SolveOptions(host=host))
    with pytest.raises(UsageError, match="document's order"):
        solve(STEP, 14, SolveOptions(host=host, reorder=True))


def test_impossible_copies_are_refused() -> None:
    with pytest.raises(ValueError, match="b:0 comes back before compute 3, and is not read"):
        derive_copying(STEP, (0, 1, 2, 3, 4), Copying((), (CopyBack(1, 3),)))
    with pytest.raises(ValueError, match="is copied or freed when it is not there"):
        derive_copying(STEP, (0, 1, 2, 3, 4), Copying((CopyOut(4, 1, 5),), ()))
    with pytest.raises(ValueError, match="is read before it is computed"):
        derive_copying(STEP, (1, 0, 2, 3, 4), Copying((), ()))
