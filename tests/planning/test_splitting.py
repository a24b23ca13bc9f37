"""Plans with regions in parts: the best choice of all, its bound, its document and its errors."""

import json
import random
from dataclasses import replace
from itertools import product

import pytest

import remat_cli as remat
from remat_cli.errors import Infeasible, InputError, LimitReached
from remat_cli.graph.document import parse_document
from remat_cli.graph.model import Graph, Node, NodeQueue, Operation, Region
from remat_cli.plan.check import graphs_differ, other_graph
from remat_cli.plan.io import dump_plan, plan_from_document
from remat_cli.plan.model import ClaimStatus, Scope
from remat_cli.planning import splitting
from tests.bruteforce import cheapest, least_peak
from tests.families import random_graph

LIMITS = remat.SolveOptions(time_limit_s=20)


def offering(seed: int) -> Graph:
    """A random graph of 6 nodes that offers one or two regions of neighbouring nodes in 2 or 3 parts."""
    rng = random.Random(seed)
    graph = random_graph(rng, 6, workspace=True, random_outputs=True)
    regions = []
    for k, first in enumerate(rng.choice(((1,), (0, 3), (2,)))):
        nodes = tuple(range(first, first + rng.randint(2, 3)))
        cost = sum(graph.nodes[i].cost for i in nodes)
        made = sum(sum(graph.nodes[i].outputs) for i in nodes)
        operation = Operation(f"o{k}", nodes, (), (cost + rng.randint(0, 2), cost + 3), (made // 2, made // 3))
        regions.append(Region(f"r{k}", (2, 3), (operation,)))
    return replace(graph, splits=tuple(regions))


def contracted(graph: Graph, counts: tuple[int | None, ...]) -> Graph:
    """The graph with regions of neighbouring nodes in parts, made in another way than the product makes it."""
    taken = [(r.operations[0], r.parts.index(c)) for r, c in zip(graph.splits, counts, strict=True) if c is not None]
    heads = {operation.nodes[-1]: (operation, at) for operation, at in taken}
    inside = {i for operation, _ in heads.values() for i in operation.nodes}
    nodes, new = [], {}
    for i, node in enumerate(graph.nodes):
        if i not in inside:
            reads, made, cost, workspace = node.inputs, list(graph.values_of(i)), node.cost, node.workspace
        elif i in heads:
            operation, at = heads[i]
            own = {v for j in operation.nodes for v in graph.values_of(j)}
            reads = dict.fromkeys(v for j in operation.nodes for v in graph.nodes[j].inputs if v not in own)
            outside = {r for r in range(6) if r not in operation.nodes}
            made = [v for v in sorted(own) if v in graph.outputs or outside & {*graph.readers[v]}]
            cost, workspace = operation.costs[at], operation.workspaces[at]
        else:
            continue
        made_bytes = tuple(graph.size[v] for v in made)
        nodes.append(Node(f"m{i}", cost, tuple(new[v] for v in reads), made_bytes, workspace))
        new |= {v: len(new) + k for k, v in enumerate(made)}
    return Graph("contracted", tuple(nodes), tuple(sorted(new[v] for v in graph.outputs)))


def all_choices(graph: Graph) -> list[Graph]:
    return [contracted(graph, counts) for counts in product(*((None, *r.parts) for r in graph.splits))]


@pytest.mark.parametrize("seed", range(25))
def test_the_plan_is_the_cheapest_of_all_choices(seed):
    graph = offering(seed)
    choices = all_choices(graph)
    least = min(least_peak(choice) for choice in choices)
    whole = least_peak(choices[0])
    for budget in sorted({least, (least + whole) // 2, whole}):
        costs = [cost for choice in choices if (cost := cheapest(choice, budget)) is not None]
        solved = remat.solve(graph, budget, LIMITS)
        assert solved.report.ok
        assert solved.report.replay.cost == pytest.approx(min(costs))
        claim = solved.plan.claim
        assert claim.any_split
        assert claim.lower_bound <= min(costs) * (1 + 1e-9)
        assert claim.status is ClaimStatus.OPTIMAL
    with pytest.raises(Infeasible):
        remat.solve(graph, least - 1, LIMITS)


@pytest.mark.parametrize("seed", range(25))
def test_the_least_peak_is_the_least_of_all_choices(seed):
    graph = offering(seed)
    solved = remat.solve_smallest(graph, LIMITS)
    choices, claim = all_choices(graph), solved.plan.claim.peak
    passes = 1 if claim.scope is Scope.FRONTIER else None
    assert claim.lower_bound_bytes <= min(least_peak(choice, passes=passes) for choice in choices)
    assert solved.report.replay.peak_bytes <= min(least_peak(choice, passes=1) for choice in choices)


def test_overhead_and_percent_are_of_the_whole_graph():
    graph = offering(3)
    solved = remat.solve_smallest(graph, LIMITS)
    whole = remat.solve(replace(graph, splits=()), "100%").report.replay
    report = solved.report
    assert report.no_remat_peak_bytes == whole.peak_bytes
    assert report.overhead == pytest.approx(report.replay.cost / whole.cost - 1)


def in_parts() -> remat.Plan:
    """A plan with a region in parts."""
    for seed in range(100):
        plan = remat.solve_smallest(offering(seed), LIMITS).plan
        if plan.graph.origin is not None:
            return plan
    raise AssertionError


@pytest.mark.parametrize("split", [True, False])
def test_a_plan_comes_back_from_its_document(split):
    plan = in_parts() if split else remat.solve(offering(0), None, replace(LIMITS, split=False)).plan
    again = plan_from_document(parse_document(dump_plan(plan), "plan"))
    assert again.graph == plan.graph
    assert again.statements == plan.statements
    assert dump_plan(again) == dump_plan(plan)
    assert remat.check(again).ok


def test_a_plan_cannot_take_what_the_graph_does_not_offer():
    data = json.loads(dump_plan(in_parts()))
    [(region, parts)] = [*data["splits"].items()][:1]
    for splits, message in (({region: 7}, "does not offer 7 parts"), ({"rx": parts}, "the graph has no region")):
        with pytest.raises(InputError, match=message):
            plan_from_document(parse_document(json.dumps({**data, "splits": splits}), "plan"))
    with pytest.raises(InputError, match="there is no node"):
        plan_from_document(parse_document(json.dumps({**data, "splits": {}}), "plan"))


def test_a_plan_with_parts_is_found_again_in_a_cache(tmp_path):
    graph = in_parts().graph.whole
    budget = remat.solve_smallest(graph, LIMITS).plan.budget_bytes
    first, second = (remat.solve(graph, budget, LIMITS, cache=tmp_path) for _ in range(2))
    assert first.recalled_from is None
    assert second.recalled_from is not None
    assert second.plan.statements == first.plan.statements


def test_many_regions_are_not_all_tried_and_the_bound_says_so():
    """Ten regions with three choices each: 59,049 choices."""
    nodes = [Node("n0", 1, (), (4,))]
    regions = []
    for k in range(10):
        nodes += [Node(f"a{k}", 1, (len(nodes) - 1,), (40,)), Node(f"b{k}", 1, (len(nodes),), (4,))]
        operation = Operation(f"o{k}", (2 * k + 1, 2 * k + 2), (), (2.5, 3.0), (20, 10))
        regions.append(Region(f"r{k}", (2, 4), (operation,)))
    graph = Graph("many", tuple(nodes), (20,), splits=tuple(regions))
    solved = remat.solve(graph, 30, LIMITS)
    assert solved.report.replay.cost == 26.0, "every region in two parts"
    assert solved.plan.claim.lower_bound == 21.0, "the choices that were not tried cost at least as much as no parts"
    assert solved.plan.claim.status is ClaimStatus.FEASIBLE


def test_two_choices_for_one_graph_are_told_apart():
    plan = in_parts()
    whole = remat.solve(plan.graph.whole, None, replace(LIMITS, split=False)).plan
    said = graphs_differ(plan.graph, whole.graph)
    assert said.startswith("they are the same one, with r")
    assert said.endswith("parts and with whole operations")
    assert other_graph(plan.graph, whole.graph) == ()


def test_a_region_beside_collectives_runs_in_parts():
    nodes = (
        Node("gather", 4, (), (4,), queue=NodeQueue.COMMUNICATION),
        Node("a", 3, (0,), (40,)),
        Node("b", 3, (1,), (4,)),
        Node("c", 1, (2, 0), (4,)),
    )
    region = Region("r", (2, 4), (Operation("o", (1, 2), (), (6.5, 7.0), (20, 10)),))
    graph = Graph("beside", nodes, (3,), cost_unit="ms", splits=(region,))
    for budget, parts, time in ((28, 2, 11.5), (18, 4, 12.0)):
        solved = remat.solve(graph, budget, LIMITS)
        assert solved.plan.graph.origin.parts == {"r": parts}
        assert solved.report.replay.time == time


def test_many_choices_share_the_time_limit(monkeypatch):
    """Each search takes all the time that it is given; what is left without time is not searched at all."""
    graph = next(graph for graph in map(offering, range(100)) if len(graph.splits) == 2)
    clock, given = [0.0], []
    monkeypatch.setattr(splitting.time, "monotonic", lambda: clock[0])

    def solve_one(_, options):
        given.append(options.time_limit_s)
        clock[0] += options.time_limit_s
        raise LimitReached("too little time")

    with pytest.raises(LimitReached):
        splitting.cheapest_split(graph, replace(LIMITS, time_limit_s=1.2, started_s=0.0), solve_one)
    assert sum(given) <= 1.2 + 1e-9
    assert 1 < len(given) < len(all_choices(graph))
