"""The bound of served levels against exhaustive search, and against plans."""

import math
import random
from dataclasses import replace

import pytest
from bruteforce import cheapest
from test_repeated import least_room, repeated_graph

from remat_cli.control import Control
from remat_cli.errors import Infeasible, LimitReached
from remat_cli.graph.analysis import no_remat_peak, working_sets
from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.planning.solving import SolveOptions, solve
from remat_cli.strategies.repeated.bound import bound_of, thresholds
from remat_cli.strategies.repeated.levels import MOST_LEVELS, Form, Spine, least, levels_of, without_small
from remat_cli.strategies.repeated.parts import reduced
from remat_cli.zoo.registry import build_graph

UNLIMITED = Control.within(None)


def attention_graph(seed, blocks):
    """A training step of blocks with a large inner value, a skip, and gradients that wait while it is differentiated.

    In some a node without inputs is read by every block, as a mask is.
    """
    rng = random.Random(seed)
    hidden, inner, large = rng.randint(1, 3), rng.randint(1, 3), rng.randint(2, 7)
    first, second, last = (float(rng.randint(1, 9)) for _ in range(3))
    nodes, sizes = [], []

    def make(name, cost, inputs, outputs, phase, workspace=0):
        reads = tuple(sorted(set(inputs)))
        nodes.append(Node(name, cost, reads, outputs, workspace=workspace, phase=phase))
        sizes.extend(outputs)
        return range(len(sizes) - len(outputs), len(sizes))

    mask = make("mask", 1.0, (), (rng.randint(1, 2),), Phase.FORWARD) if rng.random() < 0.4 else ()
    (x,) = make("x", float(rng.randint(1, 9)), (), (hidden,), Phase.FORWARD)
    tape = []
    for block in range(blocks):
        (query,) = make(f"query{block}", first, (x,), (inner,), Phase.FORWARD)
        (scores,) = make(f"scores{block}", second, (query, *mask), (large,), Phase.FORWARD)
        tape.append((x, query, scores))
        (x,) = make(f"add{block}", last, (x, scores), (hidden,), Phase.FORWARD)
    (gradient,) = make("loss", 1.0, (x,), (hidden,), Phase.LOSS)
    two, reads_input, workspace = rng.random() < 0.5, rng.random() < 0.6, rng.choice((0, large))
    for block, (x, query, scores) in reversed(list(enumerate(tape))):
        if two:
            of_scores, waiting = make(f"b{block}", second, (gradient, scores, query), (large, inner), Phase.BACKWARD)
            (of_query,) = make(f"c{block}", first, (of_scores, waiting), (inner,), Phase.BACKWARD)
        else:
            (of_query,) = make(f"b{block}", second, (gradient, scores), (inner,), Phase.BACKWARD, workspace)
        reads = (gradient, of_query, x if reads_input else query)
        (gradient,) = make(f"d{block}", last, reads, (hidden,), Phase.BACKWARD)
    return Graph("attention", tuple(nodes), (gradient,))


def bottleneck_graph(seed, blocks):
    """A training step of blocks with a skip and narrow inner values, as in a ResNet; some halve it in the middle."""
    rng = random.Random(seed)
    hidden, narrow = rng.randint(3, 6), [rng.randint(1, 2) for _ in range(2)]
    first, second, third, last = (float(rng.randint(1, 9)) for _ in range(4))
    halved, normal, statistics = (rng.random() < share for share in (0.4, 0.5, 0.3))
    reads_third, workspace = rng.random() < 0.3, rng.choice((0, 0, hidden))
    nodes, sizes = [], []

    def make(name, cost, inputs, outputs, phase=Phase.FORWARD, workspace=0):
        reads = tuple(sorted(set(inputs)))
        nodes.append(Node(name, cost, reads, outputs, workspace=workspace, phase=phase))
        sizes.extend(outputs)
        return range(len(sizes) - len(outputs), len(sizes))

    (x,) = make("x", first, (), (hidden,))
    tape = []
    for block in range(blocks):
        into = skip = y = x
        if halved and block == blocks // 2:
            hidden = max(1, hidden // 2)
            (skip,) = make(f"skip{block}", third, (x,), (hidden,))
        if normal:
            (y,) = make(f"normal{block}", 0.5, (x,), (sizes[x],))
        a = make(f"a{block}", first, (y,), (narrow[0], 1) if statistics else (narrow[0],))
        (b,) = make(f"b{block}", second, (a[0],), (narrow[1],))
        (c,) = make(f"c{block}", third, (b,), (hidden,))
        (x,) = make(f"add{block}", last / 4, (skip, c), (hidden,))
        tape.append((into, y, a, b, c))
    (gradient,) = make("loss", 1.0, (x,), (hidden,), Phase.LOSS)
    for block, (into, y, a, b, c) in reversed(list(enumerate(tape))):
        reads = (gradient, b, c) if reads_third else (gradient, b)
        (of_b,) = make(f"of b{block}", 2 * third, reads, (narrow[1],), Phase.BACKWARD)
        (of_a,) = make(f"of a{block}", 2 * second, (of_b, *a), (narrow[0],), Phase.BACKWARD)
        (of_x,) = make(f"of y{block}", 2 * first, (of_a, y), (sizes[y],), Phase.BACKWARD, workspace)
        if normal:
            (of_x,) = make(f"of x{block}", 1.0, (of_x, into), (sizes[into],), Phase.BACKWARD)
        (gradient,) = make(f"sum{block}", 0.5, (gradient, of_x), (sizes[into],), Phase.BACKWARD)
    return Graph("bottleneck", tuple(nodes), (gradient,))


def bounds(graph, room, forms=tuple(Form)):
    """The bounds with values of all sizes left out, of coarser spines, and of each form of levels."""
    for threshold in {0, *(size + 1 for size in graph.size)}:
        for most in (MOST_LEVELS, 3, 2):
            spine = Spine.of(graph, most)
            for form in forms:
                levels = levels_of(without_small(graph, threshold), spine, form)
                if levels is not None and (found := bound_of(graph, levels, room, UNLIMITED)) is not None:
                    yield found


@pytest.mark.parametrize("seed", range(60))
def test_no_bound_exceeds_the_optimum_of_all_schedules(seed):
    graph = next(
        g for g in (repeated_graph(seed, 3), repeated_graph(seed, 2), repeated_graph(seed, 1)) if len(g.nodes) <= 8
    )
    for budget in range(least_room(graph), no_remat_peak(graph) + 1):
        truth = cheapest(graph, budget)
        for found in bounds(graph, budget):
            assert truth is None or found <= truth * (1 + 1e-9)


def test_no_bound_exceeds_the_optimum_of_blocks_with_large_values_and_some_meet_it():
    met = raised = 0
    for seed in range(12):
        graph = attention_graph(seed, 2)
        for budget in range(least_room(graph), no_remat_peak(graph)):
            truth = cheapest(graph, budget)
            found = max(bounds(graph, budget))
            assert truth is None or found <= truth * (1 + 1e-9), (seed, budget)
            if truth is not None and truth > graph.total_cost:
                raised += found > graph.total_cost
                met += found >= truth * (1 - 1e-9)
    assert raised >= 45
    assert met >= 8


@pytest.mark.parametrize("seed", range(24))
def test_no_bound_exceeds_the_cost_of_a_plan(seed):
    graph = repeated_graph(seed, 6)
    top = no_remat_peak(graph)
    raised = 0
    for percent in (35, 45, 60, 80):
        budget = max(least_room(graph), top * percent // 100)
        try:
            plan = solve(graph, f"{budget}B", SolveOptions(strategy="auto", time_limit_s=3.0, threads=1)).plan
        except Infeasible:
            continue
        for found in bounds(graph, budget):
            assert found <= plan.claim.cost * (1 + 1e-9)
            raised += found > graph.total_cost
    assert raised or seed % 3 == 0


@pytest.mark.parametrize("seed", [1, 2, 6, 9])
def test_no_bound_exceeds_the_cost_of_a_plan_of_bottleneck_blocks(seed):
    graph = bottleneck_graph(seed, 3 + seed % 4)
    assert max(bounds(graph, least_room(graph), (Form.APART,))) > graph.total_cost * (1 + 1e-9)
    for budget in range(least_room(graph), no_remat_peak(graph)):
        try:
            plan = solve(graph, f"{budget}B", SolveOptions(strategy="auto", time_limit_s=3.0, threads=1)).plan
        except (Infeasible, LimitReached):
            continue
        assert max(bounds(graph, budget)) <= plan.claim.cost * (1 + 1e-9)
        return
    pytest.fail("no budget below no-remat has a plan")


DEEP_COSTS = {
    (29, 2): 36675395072,
    (101, 2): 159914008064,
    (101, 4): 129743330816,
    (101, 6): 124778323456,
    (299, 6): 417091952128,
}
"""Costs of plans of `remat solve`, by depth and the multiple of the largest working set that is the room; the first is
optimal.

With more than two working sets, the bound would exceed them if partial values spared nothing."""


def deep(depth, sets):
    """A ResNet without reads of what passes by its blocks, its spine, and the room."""
    graph = build_graph(f"resnet-deep{{depth={depth},backward=operator}}")
    largest = max(working_sets(graph))
    cut = reduced(graph, largest).graph
    return cut, Spine.of(cut), sets * largest


@pytest.mark.parametrize(("depth", "sets"), DEEP_COSTS)
def test_no_bound_exceeds_the_cost_of_a_plan_of_a_deep_resnet(depth, sets):
    graph, spine, room = deep(depth, sets)
    told = set()
    for threshold in thresholds(graph, spine):
        for form in Form:
            levels = levels_of(without_small(graph, threshold), spine, form)
            found = bound_of(graph, levels, room, UNLIMITED) if levels is not None else None
            if found is not None:
                told.add(form)
                assert found <= DEEP_COSTS[depth, sets] * (1 + 1e-9)
    assert told == set(Form)


def test_what_needs_nothing_of_lower_levels_is_no_visit():
    """The keys are small. Without reads of them, what repeats them needs no level, so neither does what reads it."""
    forward = [
        Node("x", 1.0, (), (8,)),
        Node("keys", 1.0, (0,), (1,)),
        Node("repeated", 1.0, (1,), (8,)),
        Node("query", 1.0, (0,), (8,)),
        Node("scores", 1.0, (2, 3), (8,)),
        Node("last", 1.0, (4,), (8,)),
    ]
    backward = [
        Node("loss", 1.0, (5,), (8,)),
        Node("of scores", 1.0, (3, 6), (8,)),
        Node("of query", 1.0, (2, 7), (8,), workspace=100),
        Node("of x", 1.0, (0, 8), (8,)),
    ]
    phased = [replace(node, phase=Phase.FORWARD) for node in forward]
    graph = Graph("grouped", (*phased, *(replace(node, phase=Phase.BACKWARD) for node in backward)), (9,))
    largest = {
        threshold: max(level.working for level in levels_of(without_small(graph, threshold), Spine.of(graph)))
        for threshold in (0, 2)
    }
    assert largest == {0: 124, 2: 24}


def test_where_partial_values_are_many_their_bytes_count():
    graph, spine, room = deep(299, 2)
    threshold = next(t for t in thresholds(graph, spine) if levels_of(without_small(graph, t), spine) is not None)
    plain, divided, apart = (
        bound_of(graph, levels_of(without_small(graph, threshold), spine, form), room, UNLIMITED) / graph.total_cost - 1
        for form in Form
    )
    assert divided > plain > 0.15
    assert apart > 1.7 * divided


def test_what_is_computed_again_falls_as_more_is_kept():
    graph = build_graph("gpt2{depth=6,batch=1,width=96,heads=4,sequence=64,vocab=50,backward=operator}")
    levels = levels_of(graph, Spine.of(graph))
    assert levels is not None
    assert len(set(levels)) < len(levels)
    for level in levels:
        costs = [least(level.lines, kept) for kept in range(0, 400_000, 10_000)]
        assert costs == sorted(costs, reverse=True)
        assert all(cost <= graph.total_cost for cost in costs)


def test_the_bound_rises_as_memory_shrinks_and_nothing_fits_without_a_working_set():
    graph = build_graph("gpt2{depth=6,batch=1,width=96,heads=4,sequence=64,vocab=50,backward=operator}")
    levels = levels_of(graph, Spine.of(graph))
    assert levels is not None
    rooms = [least_room(graph) * k // 4 for k in range(4, 30)]
    found = [bound_of(graph, levels, room, UNLIMITED) for room in rooms]
    assert None not in found
    assert found[0] > graph.total_cost * 1.05
    assert found[-1] < found[0]
    assert bound_of(graph, levels, 1, UNLIMITED) == math.inf


LLAMA = "llama{depth=20,heads=64,width=8192,hidden=28672,backward=operator}"


def test_small_values_left_out_and_a_divided_spine_raise_the_bound():
    graph = build_graph(LLAMA)
    cut = reduced(graph, max(working_sets(graph))).graph
    room, spine = max(working_sets(graph)) * 6 // 5, Spine.of(cut)
    threshold = max(thresholds(cut, spine))

    def bound(threshold, form):
        levels = levels_of(without_small(cut, threshold), spine, form)
        return bound_of(cut, levels, room, UNLIMITED) / graph.total_cost - 1

    whole, without, both = bound(0, Form.PLAIN), bound(threshold, Form.PLAIN), bound(threshold, Form.DIVIDED)
    assert without > 1.3 * whole
    assert both > 1.05 * without


def test_levels_of_a_long_chain_of_blocks_are_groups_of_repetitions():
    graph = build_graph("gpt2{depth=60,batch=1,width=96,heads=4,sequence=64,vocab=50,backward=operator}")
    finest = Spine.of(graph)
    for most in (60, 30, 12):
        spine = finest.coarser(graph, most)
        assert most / 2 < len(spine.nodes) <= most
        assert set(spine.nodes) < set(finest.nodes)
        assert spine.nodes[-1] == finest.nodes[-1]
        levels = levels_of(graph, spine)
        assert len(set(levels)) <= 16  # fewer gradients wait in the first eight levels
    assert len(finest.coarser(graph, 2).nodes) == 2


def test_a_mask_is_no_beginning_of_a_path():
    graphs = [attention_graph(seed, 4) for seed in range(20)]
    masked = [graph for graph in graphs if graph.nodes[0].id == "mask"]
    assert 0 < len(masked) < len(graphs)
    for graph in graphs:
        # At least the input and the end of every block.
        assert [graph.nodes[z].id for z in Spine.of(graph).nodes][-1] == "add3"
        assert len(Spine.of(graph).nodes) >= 5


def test_a_graph_without_forward_nodes_has_no_levels():
    graph = Graph("none", (Node("only", 1.0, (), (4,), phase=Phase.BACKWARD),), (0,))
    spine = Spine.of(graph)
    assert spine.nodes == ()
    assert thresholds(graph, spine) == [0]
    assert levels_of(graph, spine) is None
