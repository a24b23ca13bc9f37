"""A search that starts from an old plan."""

import random
from dataclasses import replace

import pytest
from families import random_graph
from overlapping_bruteforce import tiny_sharded
from seeded import seeded

from remat_cli.control import Control
from remat_cli.errors import Infeasible, LimitReached, RematError, StrategyMismatch, UsageError
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.document import Document
from remat_cli.graph.io import graph_from_document
from remat_cli.graph.model import Graph, Node, NodeQueue
from remat_cli.plan.check import check
from remat_cli.plan.model import Compute, Plan
from remat_cli.planning.curve import solve_curve
from remat_cli.planning.job import Job
from remat_cli.planning.least_peak import solve_smallest
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.solving import solve
from remat_cli.planning.warm_start import in_order_of
from remat_cli.solvers.highs import Highs
from remat_cli.strategies.base import Context, Known, Schedule, Task
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.zoo.registry import build_graph

UNET = build_graph("unet{batch=1}")


def planned(graph: Graph, budget: str | int, **options: object) -> Plan:
    return solve(graph, budget, SolveOptions(**options)).plan  # type: ignore[arg-type]


def test_without_time_the_old_plan_is_the_answer() -> None:
    at_once = SolveOptions(time_limit_s=1e-3)
    with pytest.raises(LimitReached):
        solve(UNET, "60%", at_once)
    old = planned(UNET, "60%", strategy="dtr")
    for budget in ("60%", "70%"):
        again = solve(UNET, budget, replace(at_once, start=old))
        assert again.plan.claim.cost == old.claim.cost
        assert again.plan.strategy == "dtr"
        assert again.plan.provenance["start"] == {"cost": old.claim.cost, "peak_memory": again.report.replay.peak_bytes}
        assert again.report.ok
    with pytest.raises(LimitReached):
        solve(UNET, "50%", replace(at_once, start=old))
    curve = solve_curve(UNET, "50%,60%,90%", replace(at_once, start=old))
    costs = [None if point.solved is None else point.solved.plan.claim.cost for point in curve.points]
    assert costs == [None, old.claim.cost, old.claim.cost]
    assert solve_smallest(UNET, replace(at_once, start=old)).report.replay.peak_bytes <= UNET.fixed_memory + int(
        0.6 * no_remat_peak(UNET)
    )


@seeded(range(30), better=2, equal=3, of_no_use=5)
def test_a_search_is_never_worse_than_its_start(seed):
    rng = random.Random(seed)
    graph = random_graph(rng, rng.randint(6, 12), max_outputs=2, workspace=True)
    low, high = peak_bound(graph).bytes, no_remat_peak(graph)
    budget = rng.randint(low, high)
    try:
        old = planned(graph, rng.randint(low, high), strategy=rng.choice(["dtr", "xla-greedy", "optimal"]))
    except Infeasible:
        return
    options = SolveOptions(
        strategy=rng.choice(["auto", "optimal", "search", "lns", "anneal"]),
        time_limit_s=0.3,
        threads=1,
        reorder=rng.random() < 0.3,
        start=old,
    )
    try:
        new = solve(graph, budget, options)
    except RematError:
        assert _peak(old) > budget
        yield "of_no_use"
        return
    if _peak(old) > budget:
        yield "of_no_use"
        return
    assert new.plan.claim.cost <= old.claim.cost
    yield "better" if new.plan.claim.cost < old.claim.cost else "equal"


def _peak(plan: Plan) -> int:
    return Job.of(plan.graph, SolveOptions(start=plan), None).start.peak_bytes  # type: ignore[union-attr]


def test_an_old_plan_does_not_make_the_first_stages_needless() -> None:
    """Its quality is unknown, unlike that of what an earlier search of the same command found."""
    context = Context(Control(), Highs())
    schedules = (Schedule(tuple(range(len(UNET.nodes)))),)
    for searched in (True, False):
        task = Task(UNET, None, Known(schedules, searched=searched))
        assert Incumbent.of(task, context).informed is searched


def test_plans_that_cannot_be_a_start_are_refused() -> None:
    old = planned(UNET, "60%", strategy="dtr")
    other = build_graph("unet{batch=2}")
    broken = replace(old, statements=old.statements[1:])
    for graph, plan, options, error, words in (
        (other, old, {}, UsageError, "is for a different graph: they first differ at node"),
        (UNET, broken, {}, UsageError, "the plan to start from is invalid: statement 0"),
        (UNET, old, {"strategy": "chen-sqrt"}, StrategyMismatch, "chen-sqrt does not start from a plan"),
    ):
        with pytest.raises(error, match=words) as caught:
            solve(graph, "60%", SolveOptions(start=plan, **options))  # type: ignore[arg-type]
        assert caught.value.hint


def test_a_start_is_a_plan_and_not_its_path() -> None:
    with pytest.raises(
        UsageError, match=r"start is str 'old\.plan\.json', expected a plan, as load_plan reads it, or None"
    ):
        SolveOptions(start="old.plan.json")  # type: ignore[arg-type] - the mistake in question


def test_a_plan_in_another_order_starts_a_search_for_orders_only() -> None:
    nodes = [
        {"id": "a1", "cost": 1, "memory": 1000, "inputs": []},
        {"id": "b1", "cost": 1, "memory": 1000, "inputs": []},
        {"id": "a2", "cost": 1, "memory": 10, "inputs": ["a1"]},
        {"id": "b2", "cost": 1, "memory": 10, "inputs": ["b1"]},
        {"id": "end", "cost": 1, "memory": 10, "inputs": ["a2", "b2"]},
    ]
    graph = graph_from_document(Document("two", {"schema": "remat-graph/1", "nodes": nodes}))
    old = planned(graph, "1100B", reorder=True)
    with pytest.raises(UsageError, match="in another order") as caught:
        solve(graph, "1100B", SolveOptions(start=old))
    assert caught.value.hint == "set reorder=True"
    for strategy in (old.strategy, "someone-elses"):
        again = solve(graph, "1100B", SolveOptions(start=replace(old, strategy=strategy), reorder=True))
        assert again.plan.claim.cost == old.claim.cost == 5


def padded(graph: Graph, rng: random.Random) -> Graph:
    """``graph`` as a rank has it that pads what it sends: a node before some of those that read nothing."""
    nodes: list[Node] = []
    value_of: dict[int, int] = {}
    count = 0
    for k, node in enumerate(graph.nodes):
        inputs = tuple(value_of[v] for v in node.inputs)
        if not inputs and rng.random() < 0.7:
            nodes.append(Node(f"{node.id}/pad", 0.5, (), (rng.randint(1, 9),), phase=node.phase))
            inputs, count = (count,), count + 1
        nodes.append(replace(node, inputs=inputs))
        for slot, v in enumerate(graph.values_of(k)):
            value_of[v] = count + slot
        count += len(node.outputs)
    return replace(graph, nodes=tuple(nodes), outputs=tuple(value_of[v] for v in graph.outputs))


def ran(plan: Plan) -> list[str]:
    return [plan.graph.nodes[one.node].id for one in plan.statements if isinstance(one, Compute)]


@seeded(range(40), padded=20, again=8)
def test_a_rank_that_pads_runs_in_the_order_of_the_first(seed):
    rng = random.Random(seed)
    graph = tiny_sharded(seed)
    wider = padded(graph, rng)
    budget = rng.randint(peak_bound(graph).bytes, no_remat_peak(graph))
    try:
        plan = planned(graph, budget, strategy="overlap", time_limit_s=0.3)
    except (Infeasible, LimitReached):
        return
    own = in_order_of(plan, wider)
    assert own is not None
    report = check(own)
    assert report.valid
    assert {finding.code for finding in report.findings} <= {"over-budget"}, "padding takes memory"
    assert own.claim.cost == pytest.approx(report.replay.time)
    assert [name for name in ran(own) if not name.endswith("/pad")] == ran(plan)
    for at, name in enumerate(ran(own)):
        if name.endswith("/pad"):
            assert ran(own)[at + 1] == name.removesuffix("/pad"), "right before what reads it, each time"
    same = in_order_of(plan, graph)
    assert same is not None
    assert ran(same) == ran(plan)
    if len(wider.nodes) > len(graph.nodes):
        yield "padded"
        assert in_order_of(own, graph) is None, "a node is missing"
        if len(ran(plan)) > len(graph.nodes):
            yield "again"


def test_other_graphs_are_not_run_in_the_order_of_a_plan() -> None:
    graph = next(one for one in map(tiny_sharded, range(50)) if len(one.nodes) > 3)
    plan = planned(graph, no_remat_peak(graph), strategy="keep-all")
    last = len(graph.nodes) - 1
    for other in (
        replace(graph.nodes[last], op="other"),
        replace(graph.nodes[last], inputs=()),
        replace(graph.nodes[last], id="other"),
    ):
        one = replace(graph, nodes=(*graph.nodes[:last], Node("pad", 1.0, (), ()), other))
        assert in_order_of(plan, one) is None
    more = Node("more", 1.0, (), (1,), queue=NodeQueue.COMMUNICATION)
    assert in_order_of(plan, replace(graph, nodes=(*graph.nodes, more))) is None, "collectives of its own"
    unread = in_order_of(plan, replace(graph, nodes=(*graph.nodes, replace(more, queue=NodeQueue.COMPUTE))))
    assert unread is not None
    assert check(unread).valid
