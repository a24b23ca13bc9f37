"""The judge of plans with copies: what it says of bad ones, and when everything runs."""

import random
from dataclasses import replace

import pytest
from copies import naive_time, random_plan
from families import random_graph
from seeded import seeded

from remat_cli.errors import UsageError
from remat_cli.graph.model import Graph, Node, NodeQueue
from remat_cli.plan.check import check
from remat_cli.plan.difference import beyond, compare_plans
from remat_cli.plan.host import Host
from remat_cli.plan.model import (
    Allocate,
    Claim,
    ClaimStatus,
    Compute,
    Deallocate,
    Offload,
    Plan,
    Prefetch,
    Release,
    Scope,
    Statement,
)
from remat_cli.plan.queues import Queue, timing
from remat_cli.plan.replay import replay

GRAPH = Graph(
    "g",
    (Node("a", 1.0, (), (10,)), Node("b", 2.0, (0,), (4,)), Node("c", 4.0, (1,), (4,)), Node("d", 1.0, (0, 2), (1,))),
    outputs=(3,),
    cost_unit="s",
)
HOST = Host(5.0, 2.5)  # a takes 2 s to the host and 4 s back
GOOD: tuple[Statement, ...] = (
    Allocate("%a", 0),
    Compute(0, ("%a",)),
    Offload("%a", "#a"),
    Allocate("%b", 1),
    Compute(1, ("%b",)),
    Deallocate("%a"),
    Allocate("%c", 2),
    Compute(2, ("%c",)),
    Deallocate("%b"),
    Allocate("%A", 0),
    Prefetch("#a", "%A"),
    Allocate("%d", 3),
    Compute(3, ("%d",)),
    Deallocate("%A"),
    Deallocate("%c"),
    Release("#a"),
)


def changed(at: int, *statements: Statement, drop: int = 1) -> tuple[Statement, ...]:
    return GOOD[:at] + statements + GOOD[at + drop :]


def test_the_good_plan() -> None:
    seen = replay(GRAPH, GOOD, host=HOST)
    assert seen.findings == ()
    assert seen.profile == (10, 10, 10, 14, 14, 4, 8, 8, 4, 14, 14, 15, 15, 5, 1, 1)
    assert seen.host_profile == (0, 0, *[10] * 13, 0)
    assert (seen.peak_bytes, seen.host_peak_bytes, seen.cost) == (15, 10, 8.0)
    times = seen.timing
    assert times is not None
    # a 0-1, copy out 1-3 beside b 1-3, c 3-7, copy in 7-11, d 11-12
    assert [(span.queue, span.start, span.end) for span in times.spans] == [
        (Queue.COMPUTE, 0, 1),
        (Queue.OUT, 1, 3),
        (Queue.COMPUTE, 1, 3),
        (Queue.COMPUTE, 3, 7),
        (Queue.IN, 7, 11),
        (Queue.COMPUTE, 11, 12),
    ]
    assert (times.time, times.stalled) == (12.0, 4.0)
    assert [(s.statement, s.duration, s.copy) for s in times.stalls] == [(12, 4.0, 10)]
    on_path = {Queue.COMPUTE: 8, Queue.COMMUNICATION: 0, Queue.OUT: 0, Queue.IN: 4}
    assert {queue: times.on_path(queue) for queue in Queue} == on_path
    assert times.share(Queue.OUT) == 2 / 12


def test_a_slow_copy_out_holds_the_deallocation() -> None:
    times = timing(GRAPH, GOOD, Host(1.0, 10.0))
    assert [(s.statement, s.duration, s.copy) for s in times.stalls] == [(5, 8.0, 2), (12, 1.0, 10)]
    assert times.time == 17.0


def test_a_released_slot_holds_the_queue_to_the_host() -> None:
    # The second copy out may take the memory of the released slot, so it waits until the copy back has ended.
    extra = (Release("#a"), Offload("%c", "#c"))
    early = (*changed(11, *extra, GOOD[11])[:-1], Release("#c"))
    seen = replay(GRAPH, early, host=HOST)
    assert seen.valid
    spans = seen.timing.spans if seen.timing else ()
    assert [(span.start, span.end) for span in spans if span.queue is Queue.OUT] == [(1, 3), (11, 11.8)]


CASES = {
    "slot-reused": (changed(4, GOOD[4], Offload("%b", "#a")), "statement 5: offload %b into #a, which was used before"),
    "missing-register": (changed(2, Offload("%z", "#a")), "statement 2: offload %z, never allocated"),
    "offload-empty": (changed(1, GOOD[2], GOOD[1], drop=2), "statement 1: offload %a (a:0), which was not computed"),
    "missing-slot": (changed(10, Release("#a"), GOOD[10]), "statement 11: prefetch #a, released at 10"),
    "wrong-register": (changed(10, GOOD[10], GOOD[11], Prefetch("#a", "%d")), "prefetch #a writes a:0 into %d"),
    "overwritten": (changed(10, GOOD[10], GOOD[10]), "statement 11: prefetch #a writes a:0 into %A, which already"),
    "double-release": (changed(15, GOOD[15], GOOD[15]), "statement 16: release #a, already released at 15"),
    "slot-left-over": (changed(15), "a:0 in slot #a (copied at 2) is never released"),
    "missing-input": (changed(10, drop=1), "statement 11: compute d reads a:0, allocated at 9 but not computed since"),
}


@pytest.mark.parametrize("code", CASES)
def test_every_fault_is_found(code: str) -> None:
    statements, message = CASES[code]
    found = replay(GRAPH, statements, host=HOST).findings
    assert any(f.code == code and message in f.message for f in found), found


def test_a_value_that_has_to_stay_may_not_be_copied() -> None:
    node = replace(GRAPH.nodes[0], offload=False)
    graph = Graph("g", (node, *GRAPH.nodes[1:]), GRAPH.outputs, cost_unit="s")
    assert [f.code for f in replay(graph, GOOD, host=HOST).findings] == ["offload-forbidden"]


def test_copies_need_a_host_and_times() -> None:
    assert [f.code for f in replay(GRAPH, GOOD).findings] == ["no-host"]
    flops = Graph("g", GRAPH.nodes, GRAPH.outputs, cost_unit="flops")
    with pytest.raises(UsageError, match="costs are flops"):
        replay(flops, GOOD, host=HOST)


def test_host_memory_has_a_limit() -> None:
    claim = Claim(ClaimStatus.FEASIBLE, 12.0, 0.0, Scope.DOCUMENT_ORDER)
    plan = Plan(GRAPH, GOOD, 15, claim, "hand", host=replace(HOST, memory_bytes=9))
    report = check(plan)
    assert report.valid
    assert not report.within_budget
    assert [(f.code, f.message) for f in report.findings] == [
        ("over-host-memory", "host memory 10 B is 1 B over its limit of 9 B (10 bytes, limit 9)")
    ]
    roomy = check(replace(plan, host=replace(HOST, memory_bytes=10)))
    assert roomy.ok
    [found] = beyond(compare_plans(roomy, report))
    assert found.message == "the new plan is over its limit of host memory by 1 B"


@seeded(range(200))
def test_a_second_replay_gives_the_same_times(seed: int) -> None:
    rng = random.Random(seed)
    graph = replace(random_graph(rng, rng.randint(2, 12), recompute_false=0.2), cost_unit="s")
    host = Host(rng.choice((0.5, 1.0, 4.0)), rng.choice((0.5, 2.0)), rng.choice((0.0, 0.5)))
    statements = random_plan(graph, rng)
    seen = replay(graph, statements, host=host)
    assert seen.findings == ()
    assert seen.time == pytest.approx(naive_time(graph, statements, host), rel=1e-12)
    times = seen.timing
    assert times is not None
    assert sum(times.on_path(queue) for queue in Queue) == pytest.approx(times.time, rel=1e-12)
    assert times.time >= max(seen.cost, times.busy(Queue.OUT), times.busy(Queue.IN))


@seeded(range(30))
def test_device_memory_does_not_depend_on_the_bandwidth(seed: int) -> None:
    rng = random.Random(seed)
    graph = replace(random_graph(rng, rng.randint(2, 12)), cost_unit="s")
    statements = random_plan(graph, rng)
    slow, fast = (replay(graph, statements, host=Host(rate, rate)) for rate in (0.01, 1e9))
    assert (slow.profile, slow.host_profile) == (fast.profile, fast.host_profile)
    assert slow.time >= fast.time


LINK = NodeQueue.COMMUNICATION
SHARDED = Graph(
    "sharded",
    (
        Node("gather1", 4.0, (), (8,), queue=LINK),
        Node("block1", 3.0, (0,), (2,)),
        Node("gather2", 5.0, (), (8,), queue=LINK),
        Node("block2", 2.0, (1, 2), (2,)),
        Node("reduce", 6.0, (3,), (1,), queue=LINK),
        Node("more", 1.0, (1,), (1,)),
    ),
    outputs=(4, 5),
    cost_unit="s",
)


def made(node: int) -> tuple[Statement, ...]:
    registers = tuple(f"%{v}" for v in SHARDED.values_of(node))
    return (
        *(Allocate(name, v) for name, v in zip(registers, SHARDED.values_of(node), strict=True)),
        Compute(node, registers),
    )


def freed(*values: int) -> tuple[Statement, ...]:
    return tuple(Deallocate(f"%{v}") for v in values)


def spans_of(statements: tuple[Statement, ...]) -> dict[str, tuple[float, float]]:
    seen = replay(SHARDED, statements)
    assert seen.findings == ()
    assert seen.timing is not None
    nodes = [SHARDED.nodes[s.node].id if isinstance(s, Compute) else "" for s in statements]
    return {nodes[span.statement]: (span.start, span.end) for span in seen.timing.spans}


def test_collectives_run_beside_computations() -> None:
    # gather2 is issued before block1, and so does not wait for it; freeing block2's output waits for the reduction.
    early = (*made(0), *made(2), *made(1), *freed(0), *made(3), *freed(2), *made(4), *made(5), *freed(3, 1))
    assert spans_of(early) == {
        "gather1": (0, 4),
        "gather2": (4, 9),
        "block1": (4, 7),
        "block2": (9, 11),
        "reduce": (11, 17),
        "more": (11, 12),
    }
    seen = replay(SHARDED, early)
    assert (seen.time, seen.cost, seen.peak_bytes) == (17.0, 21.0, 18)
    assert seen.timing is not None
    assert [(s.statement, s.duration, s.copy) for s in seen.timing.stalls] == [(5, 4.0, 1), (8, 2.0, 3), (14, 5.0, 11)]
    assert seen.timing.busy(Queue.COMMUNICATION) == 15.0
    assert seen.timing.time == seen.timing.on_path(Queue.COMPUTE) + seen.timing.on_path(Queue.COMMUNICATION)


def test_a_collective_waits_for_what_was_issued_before_it() -> None:
    late = (*made(0), *made(1), *freed(0), *made(2), *made(3), *freed(2), *made(4), *freed(3), *made(5), *freed(1))
    # gather2 waits for block1; freeing block2's output right after the reduction is issued holds the last block.
    assert spans_of(late) == {
        "gather1": (0, 4),
        "block1": (4, 7),
        "gather2": (7, 12),
        "block2": (12, 14),
        "reduce": (14, 20),
        "more": (20, 21),
    }
    assert SHARDED.no_remat_cost == 17.0  # every node once, with gather2 as early as possible, without frees
    assert SHARDED.least_cost == 15.0
    assert SHARDED.total_cost == 21.0


def test_only_collectives_that_read_nothing_leave_the_order() -> None:
    assert [SHARDED.moves_freely(k) for k in range(6)] == [True, False, True, False, False, False]
    wrong = (*made(0), *made(1), *freed(0), *made(5), *made(2), *made(3), *freed(2, 1), *made(4), *freed(3))
    assert [f.code for f in replay(SHARDED, wrong).findings] == ["out-of-order", "out-of-order"]


@seeded(range(300))
def test_a_second_replay_of_collectives_gives_the_same_times(seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(rng, rng.randint(2, 12), max_outputs=2, recompute_false=0.2)
    nodes = [replace(node, queue=LINK) if rng.random() < 0.4 else node for node in graph.nodes]
    graph = replace(graph, nodes=tuple(nodes), cost_unit="s")
    host = Host(rng.choice((0.5, 1.0, 4.0)), rng.choice((0.5, 2.0)), rng.choice((0.0, 0.5)))
    statements = random_plan(graph, rng)
    assert timing(graph, statements, host).time == pytest.approx(naive_time(graph, statements, host), abs=1e-9)
