"""A search that starts from an old plan."""

import random
from dataclasses import replace

import pytest
from families import random_graph
from seeded import seeded

from remat_cli.control import Control
from remat_cli.errors import Infeasible, LimitReached, RematError, StrategyMismatch, UsageError
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.document import Document
from remat_cli.graph.io import graph_from_document
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Plan
from remat_cli.planning.curve import solve_curve
from remat_cli.planning.job import Job
from remat_cli.planning.least_peak import solve_smallest
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.solving import solve
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
