"""Regions that may run in parts: what becomes of a graph, and what a document may offer."""

import json
import random
from dataclasses import replace

import networkx
import pytest

from remat_cli.errors import InputError
from remat_cli.graph.document import parse_document
from remat_cli.graph.io import graph_from_document, graph_sha256, graph_to_document
from remat_cli.graph.model import Operation, Phase, Region
from remat_cli.graph.splitting import split, waits_in_a_circle
from tests.families import random_graph

NODES = [
    {"id": "x", "inputs": [], "cost": 1, "memory": 100, "phase": "forward"},
    {"id": "logits", "inputs": ["x"], "cost": 5, "memory": 1000, "phase": "forward"},
    {"id": "loss", "inputs": ["logits"], "cost": 1, "memory": 4, "phase": "loss"},
    {"id": "aside", "inputs": ["x"], "cost": 3, "memory": 10, "phase": "backward"},
    {"id": "dlogits", "inputs": ["logits", "loss"], "cost": 1, "memory": 1000, "phase": "backward"},
    {"id": "dx", "inputs": ["dlogits", "aside"], "cost": 5, "outputs": [100, 7], "phase": "backward"},
]
HEAD = {"id": "head", "nodes": ["logits", "loss", "dlogits"], "cost": [8, 9], "workspace": ["1000B", 500]}
REGION = {"id": "loss", "along": "tokens", "parts": [2, 4], "operations": [HEAD]}


def graph_with(*regions, nodes=NODES, outputs=("loss", "dx")):
    data = {"schema": "remat-graph/1", "nodes": nodes, "outputs": list(outputs), "splits": list(regions)}
    return graph_from_document(_document(data))


def _document(data):
    return parse_document(json.dumps(data), "test")


def test_an_operation_stands_for_its_nodes_and_makes_what_others_read():
    graph = split(graph_with(REGION), {"loss": 4})
    assert [node.id for node in graph.nodes] == ["x", "aside", "head", "dx"]
    head = graph.nodes[2]
    assert (head.cost, head.workspace, head.outputs, head.phase) == (9, 500, (4, 1000), Phase.LOSS)
    assert [graph.value_name(v) for v in head.inputs] == ["x:0"]
    assert [graph.value_name(v) for v in graph.nodes[3].inputs] == ["head:1", "aside:0"]
    assert [graph.value_name(v) for v in graph.outputs] == ["head:0", "dx:0"]
    assert [graph.whole.value_name(v) for v in graph.origin.values] == [
        *("x:0", "aside:0", "loss:0", "dlogits:0", "dx:0", "dx:1")
    ]


def test_an_operation_that_repeats_nodes_reads_what_they_read():
    forward = {"id": "fwd", "nodes": ["logits", "loss"], "cost": [6, 6], "workspace": [1000, 500]}
    backward = {**HEAD, "id": "bwd", "nodes": ["dlogits", "dx"], "repeats": ["logits"]}
    graph = split(graph_with({**REGION, "operations": [forward, backward]}), {"loss": 2})
    assert [node.id for node in graph.nodes] == ["x", "fwd", "aside", "bwd"]
    assert graph.nodes[1].outputs == (4,), "nothing outside reads the logits"
    assert [graph.value_name(v) for v in graph.nodes[3].inputs] == ["x:0", "fwd:0", "aside:0"]


def test_an_operation_that_is_ahead_of_a_node_does_not_wait_for_it_and_who_reads_what_it_makes_does():
    nodes = [*NODES[:3], {"id": "scale", "inputs": ["loss"], "cost": 0, "memory": 4}, *NODES[3:]]
    nodes[5] = {**nodes[5], "inputs": ["logits", "scale"]}
    with pytest.raises(InputError, match="would wait for each other"):
        graph_with(REGION, nodes=nodes)
    offered = graph_with({**REGION, "operations": [{**HEAD, "ahead_of": ["scale"]}]}, nodes=nodes)
    assert graph_from_document(_document(graph_to_document(offered))) == offered
    graph = split(offered, {"loss": 2})
    assert [node.id for node in graph.nodes] == ["x", "aside", "head", "scale", "dx"]
    head, dx = graph.nodes[2], graph.nodes[4]
    assert [graph.value_name(v) for v in head.inputs] == ["x:0"]
    assert [graph.value_name(v) for v in dx.inputs] == ["head:1", "aside:0", "scale:0"]
    assert (head.recompute, head.offload) == (False, (True, False)), (
        "what is not complete is neither copied nor made again"
    )


def test_a_document_with_regions_comes_back_and_has_a_digest_of_its_own():
    graph = graph_with(REGION)
    again = graph_from_document(_document(graph_to_document(graph)))
    assert again == graph
    assert graph_sha256(graph) != graph_sha256(replace(graph, splits=()))


WRONG = {
    "a node that is not there": ({"nodes": ["logit"]}, "there is no node", "logits"),
    "too few costs": ({"cost": [8]}, "has 1 entries, and the region offers 2", ""),
    "too few workspaces": ({"workspace": [8, 9, 10]}, "has 3 entries", ""),
    "its own node repeated": ({"repeats": ["logits"]}, "is one of its own nodes", ""),
    "ahead of what it does not read": ({"ahead_of": ["aside"]}, "is not a node from which the operation reads", ""),
    "ahead of itself": ({"ahead_of": ["loss"]}, "is not a node from which the operation reads", ""),
    "the id of a node": ({"id": "aside"}, "is the id of a node", ""),
    "a circle": ({"nodes": ["x", "aside", "dx"]}, "would wait for each other", "has to be part"),
    "a cost that is no number": ({"cost": [8, "9"]}, "expected a number", ""),
}


@pytest.mark.parametrize(("change", "message", "hint"), WRONG.values(), ids=WRONG)
def test_what_makes_no_sense_is_refused(change, message, hint):
    with pytest.raises(InputError) as refused:
        graph_with({**REGION, "operations": [{**HEAD, **change}]})
    problem = refused.value.problems[0]
    assert message in problem.message
    assert hint in problem.hint


def test_a_node_is_in_one_operation_and_is_repeated_only_if_it_may_be():
    twice = {**HEAD, "id": "other", "nodes": ["loss", "dlogits"]}
    with pytest.raises(InputError, match="is a node of"):
        graph_with(REGION, {**REGION, "id": "second", "operations": [twice]})
    nodes = [{**node, "recompute": node["id"] != "x"} for node in NODES]
    with pytest.raises(InputError, match="may be computed only once"):
        graph_with({**REGION, "operations": [{**HEAD, "repeats": ["x"]}]}, nodes=nodes)


@pytest.mark.parametrize("seed", range(60))
def test_operations_wait_for_each_other_if_contracting_them_leaves_a_circle(seed):
    rng = random.Random(seed)
    graph = random_graph(rng, 8)
    chosen = rng.sample(range(8), rng.randint(2, 6))
    middle = rng.randint(1, len(chosen) - 1)
    sets = [tuple(sorted(part)) for part in (chosen[:middle], chosen[middle:])]
    regions = [Region(f"r{k}", (2,), (Operation(f"o{k}", nodes, (), (1.0,), (0,)),)) for k, nodes in enumerate(sets)]
    flow = networkx.DiGraph()
    flow.add_nodes_from(range(8))
    flow.add_edges_from((graph.producer[v], i) for i, node in enumerate(graph.nodes) for v in node.inputs)
    whole = networkx.quotient_graph(flow, [{*sets[0]}, {*sets[1]}, *({i} for i in range(8) if i not in chosen)])
    circle = not networkx.is_directed_acyclic_graph(whole)
    assert waits_in_a_circle(replace(graph, splits=tuple(regions))) is circle


def test_nothing_in_parts_is_the_graph_itself():
    graph = graph_with(REGION)
    assert split(graph, {}) is graph
    with pytest.raises(ValueError, match="does not offer"):
        split(graph, {"a": 2})
