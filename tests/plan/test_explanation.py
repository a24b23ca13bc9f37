import math
import random
from dataclasses import replace

from families import random_graph
from seeded import seeded

from remat_cli.graph.model import Graph, Node
from remat_cli.plan.check import check
from remat_cli.plan.derive import derive
from remat_cli.plan.explanation import MOST_CHANGES, Change, explain
from remat_cli.plan.model import Claim, ClaimStatus, Plan, Scope

# a makes 5 bytes for b and, much later, d; b makes 4 for c and d; nothing else is there at c.
GRAPH = Graph(
    "small",
    (
        Node("a", 10.0, (), (5,)),
        Node("b", 3.0, (0,), (4,)),
        Node("c", 1.0, (1,), (2,)),
        Node("d", 1.0, (0, 1, 2), (1,)),
    ),
    (3,),
)


def plan_of(graph: Graph, computes: list[int], budget: int | None = None) -> Plan:
    cost = math.fsum(graph.nodes[i].cost for i in computes)
    claim = Claim(ClaimStatus.FEASIBLE, cost, 0.0, Scope.RESTRICTED)
    return Plan(graph, derive(graph, computes), budget, claim, "by-hand")


def explained(plan: Plan, node: int):
    return explain(plan, check(plan), node)


def test_a_life_statement_by_statement():
    told = explained(plan_of(GRAPH, [0, 1, 2, 3]), 0)
    (life,) = told.lives
    assert (life.value, life.size_bytes) == ("a:0", 5)
    assert (life.allocated, life.computed, life.freed) == (0, 1, 8)
    assert life.reads == ((3, "b"), (7, "d"))
    assert told.computed == ((1, "a"),)
    assert told.keep == ()


def test_what_keeping_would_do():
    """Computed again for d, a is gone while c runs: 4 + 2 bytes there instead of 5 + 4 + 2; d needs 5 + 4 + 2 + 1."""
    plan = plan_of(GRAPH, [0, 1, 2, 0, 3], budget=12)
    told = explained(plan, 0)
    assert [stage for _, stage in told.computed] == ["a", "d"]
    assert told.keep == (Change(4, 8, 5, 12, -10.0, (), True),)
    assert explained(replace(plan, budget_bytes=11), 0).keep[0].fits is False
    assert explained(replace(plan, budget_bytes=None), 0).keep[0].fits is None


def test_what_dropping_would_do():
    told = explained(plan_of(GRAPH, [0, 1, 2, 3], budget=12), 0)
    assert told.drop == (Change(3, 7, 5, 12, 10.0, (), True),)


def test_dropping_takes_along_what_is_gone_and_keeps_what_may_not_be_computed_again():
    """e reads b again when a is gone: to drop b before e, a has to be computed again, or kept if it may not be."""
    nodes = (*GRAPH.nodes[:3], Node("d", 1.0, (2,), (2,)), Node("e", 1.0, (1, 3), (1,)))
    told = explained(plan_of(Graph("five", nodes, (4,)), [0, 1, 2, 3, 4]), 1)
    assert told.drop == (Change(6, 11, 4, 11, 13.0, ("a",), None),)
    fixed = Graph("five", (replace(nodes[0], recompute=False), *nodes[1:]), (4,))
    (change,) = explained(plan_of(fixed, [0, 1, 2, 3, 4]), 1).drop
    assert (change.cost_change, change.others) == (3.0, ())
    assert change.peak_bytes == 11  # a, b and c at c; b is dropped and a kept from there to e
    assert explained(plan_of(fixed, [0, 1, 2, 3, 4]), 0).drop == ()


def test_keeping_saves_what_was_only_for_it():
    chain = Graph("chain", tuple(Node(f"n{i}", 1.0 + i, (i - 1,) if i else (), (1,)) for i in range(3)), (2,))
    graph = replace(chain, nodes=(*chain.nodes, Node("end", 1.0, (1, 2), (1,))), outputs=(3,))
    told = explained(plan_of(graph, [0, 1, 2, 0, 1, 3]), 1)
    (change,) = told.keep
    assert (change.cost_change, change.others) == (-3.0, ("n0",))


def test_nothing_is_tried_on_an_invalid_plan():
    plan = plan_of(GRAPH, [0, 1, 2, 0, 3])
    told = explained(replace(plan, statements=plan.statements[:-6]), 0)
    assert (told.keep, told.drop) == ((), ())
    assert len(told.lives) == 1


def random_schedule(rng: random.Random, graph: Graph) -> list[int]:
    computes: list[int] = []
    for node in range(len(graph.nodes)):
        for _ in range(rng.randint(0, 3) if node else 0):
            again = rng.randrange(node)
            if graph.nodes[again].recompute:
                computes.append(again)
        computes.append(node)
    return computes


@seeded(range(40), recomputed=60, keep=150, drop=50, fits=120)
def test_lives_add_up_to_the_memory_of_the_replay_and_changes_to_its_cost(seed):
    rng = random.Random(seed)
    graph = random_graph(
        rng,
        rng.randint(2, 9),
        max_outputs=2,
        zero_outputs=seed % 2 == 0,
        workspace=True,
        recompute_false=0.2,
        random_outputs=seed % 3 == 0,
        fixed_memory=seed % 4,
    )
    plan = plan_of(graph, random_schedule(rng, graph), budget=rng.randint(10, 60))
    report = check(plan)
    assert report.valid
    memory = [graph.fixed_memory] * len(plan.statements)
    for node, item in enumerate(graph.nodes):
        told = explain(plan, report, node)
        assert len(told.computed) == report.replay.times[node]
        for at, _ in told.computed:
            memory[at] += item.workspace
        for life in told.lives:
            for at in range(life.allocated, len(memory) if life.freed is None else life.freed):
                memory[at] += life.size_bytes
        yield from ["recomputed"] * (len(told.computed) > 1) + ["keep"] * len(told.keep) + ["drop"] * len(told.drop)
        for change in (*told.keep, *told.drop):
            assert change.start < change.stop
            assert change.fits == (change.peak_bytes <= plan.budget_bytes)
            if change.fits:
                yield "fits"
        assert all(change.cost_change <= -item.cost for change in told.keep)
        assert all(change.cost_change >= item.cost for change in told.drop)
        assert len(told.keep) + len(told.drop) <= 2 * MOST_CHANGES
        assert not told.drop or item.recompute
    assert memory == list(report.replay.profile)


def test_what_is_skipped_is_counted():
    readers = [Node(f"r{i}", 1.0, (0,) if i % 2 == 0 else (), (1,)) for i in range(40)]
    graph = Graph("star", (Node("a", 1.0, (), (1,)), *readers), ())
    told = explained(plan_of(graph, list(range(41))), 0)
    assert len(told.drop) == MOST_CHANGES
    assert told.skipped == 19 - MOST_CHANGES
    assert [c.start for c in told.drop] == sorted(c.start for c in told.drop)
