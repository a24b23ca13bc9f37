"""Blocks of nodes for drawings: every node in one place, few parts each, no circles, and names where they help."""

import random

from families import random_graph
from seeded import seeded

from remat_cli.graph.drawing import Block, blocks, condensed
from remat_cli.graph.model import Graph, Node
from remat_cli.zoo.registry import build_graph

MOST = 130


def inside(block: Block) -> list[Block]:
    return [block, *(found for part in block.parts for found in inside(part))]


def named(*names: str) -> Graph:
    return Graph("g", tuple(Node(name, 1, (k - 1,) if k else (), (1,)) for k, name in enumerate(names)), ())


@seeded(range(12), blocks=5, single=2)
def test_every_node_is_in_one_place_and_no_block_has_many_parts(seed):
    rng = random.Random(seed)
    graph = random_graph(rng, rng.choice([1, 2, 60, 121, 700, 3000]), phases=rng.random() < 0.5, max_outputs=2)
    whole = blocks(graph)
    assert (whole.first, whole.end) == (0, len(graph.nodes))
    assert [b.first for b in inside(whole)[1:] if not b.parts] == list(range(len(graph.nodes)))
    for block in inside(whole):
        if block.parts:
            assert len(block.parts) <= MOST
            assert [part.first for part in block.parts] == [block.first, *(part.end for part in block.parts[:-1])]
            assert block.parts[-1].end == block.end
    for part in whole.parts:
        assert len({graph.nodes[i].phase for i in range(part.first, part.end)}) == 1
    yield "blocks" if any(part.parts for part in whole.parts) else "single"


@seeded(range(6), edges=100)
def test_the_graph_between_blocks_has_the_same_totals_and_all_edges(seed):
    graph = random_graph(random.Random(seed), 900, phases=True, max_outputs=2)
    parts = blocks(graph).parts
    between = condensed(graph, parts)
    assert between.total_cost == graph.total_cost
    assert sum(between.size) == sum(graph.size)
    place = {i: k for k, part in enumerate(parts) for i in range(part.first, part.end)}
    wanted = {(place[graph.producer[v]], place[i]) for i, node in enumerate(graph.nodes) for v in node.inputs}
    found = {(between.producer[v], k) for k, node in enumerate(between.nodes) for v in node.inputs}
    assert found == {(a, b) for a, b in wanted if a != b}
    for _ in found:
        yield "edges"


def test_names_give_the_blocks_where_there_are_names():
    resnet = [part.name for part in blocks(build_graph("resnet50")).parts]
    assert resnet[:8] == ["conv1/conv", "conv1/bn", "conv1/relu", "pool1", "conv2_1", "conv2_2", "conv2_3", "conv3_1"]
    assert {"grad/conv2_1", "grad/conv5_3", "loss"} <= set(resnet)
    dotted = blocks(named(*(f"model.layers.{k}.op{j}" for k in range(20) for j in range(11))))
    assert [part.name for part in dotted.parts] == [f"model.layers.{k}" for k in range(20)]


def test_operations_that_repeat_give_the_blocks_where_names_do_not():
    period = ["conv", "bn", "relu", "conv", "bn", "add", "relu"]
    ops = ["stem", "pool", *period * 30, "mean", "fc"]
    graph = Graph("g", tuple(Node(f"n{k}", 1, (k - 1,) if k else (), (1,), op=op) for k, op in enumerate(ops)), ())
    repeated = [part for part in blocks(graph).parts if part.parts]
    assert len(repeated) >= 29
    assert {part.end - part.first for part in repeated} == {7}
    assert len({tuple(ops[part.first : part.end]) for part in repeated}) == 1


def test_where_nothing_repeats_stretches_do():
    rng = random.Random(5)
    ops = [f"op{rng.randrange(50)}" for _ in range(2000)]
    graph = Graph("g", tuple(Node(f"n{k}", 1, (), (1,), op=op) for k, op in enumerate(ops)), ())
    parts = blocks(graph).parts
    assert len(parts) == 32
    assert parts[0].name == "n0 to n62"


def test_a_few_nodes_are_not_hidden_in_blocks():
    assert not any(part.parts for part in blocks(build_graph("vgg16")).parts)
    assert [part.name for part in blocks(named("only")).parts] == ["only"]
    assert blocks(Graph("none", (), ())).parts == ()
