import json
import re
from pathlib import Path

import networkx
import pytest
from cli_process import GRAPHS, TOY
from families import graphs
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.graph.document import parse_document
from remat_cli.graph.io import graph_from_document, graph_to_document, load_graph
from remat_cli.graph.nodelink import NodeLinkKeys, graph_from_node_link, graph_to_node_link
from remat_cli.graph.yaml12 import load_yaml, yaml_text
from remat_cli.plan.io import load_plan

_CHARACTERS = st.text(st.characters(exclude_categories=["Cs"]))
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | _CHARACTERS
    | st.sampled_from(["1.2e9", "1:0", "on", "0x1F", "~", "<<", "=", "- a", "2001-01-01", "a: b", "a #b", "1_000", ""]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_CHARACTERS, inner),
    max_leaves=12,
)


@given(st.dictionaries(_CHARACTERS, _JSON, min_size=1))
@settings(max_examples=150)
def test_what_is_written_as_yaml_is_read_as_the_same_data(data):
    back = load_yaml(yaml_text(data), "x.yaml")
    assert back == data
    assert json.dumps(back) == json.dumps(data)  # to Python alone, 1, 1.0 and true are equal


@given(graphs())
@settings(max_examples=40)
def test_a_graph_comes_back_from_yaml(graph):
    assert graph_from_document(parse_document(yaml_text(graph_to_document(graph)), "x.yaml", "yaml")) == graph


@given(graphs())
@settings(max_examples=40)
def test_a_graph_comes_back_from_node_link_as_far_as_that_goes(graph):
    text, lost = graph_to_node_link(graph)
    back = graph_from_node_link(parse_document(text, "x.json"), NodeLinkKeys())
    assert [n.id for n in back.nodes] == [n.id for n in graph.nodes]
    for ours, theirs in zip(graph.nodes, back.nodes, strict=True):
        assert (ours.cost, ours.workspace, ours.recompute, ours.phase) == (
            theirs.cost,
            theirs.workspace,
            theirs.recompute,
            theirs.phase,
        )
        assert sum(ours.outputs) == sum(theirs.outputs)
        assert {graph.producer[v] for v in ours.inputs} == {back.producer[v] for v in theirs.inputs}
    same = [n.outputs for n in back.nodes] == [n.outputs for n in graph.nodes] and back.outputs == graph.outputs
    extras = graph.metadata is not None or any(n.payload is not None for n in graph.nodes)
    assert same == (not [words for words in lost if not words.startswith("payload")])
    assert extras == any(words.startswith("payload") for words in lost)
    assert networkx.is_directed_acyclic_graph(networkx.node_link_graph(json.loads(text), edges="links"))


def test_json_to_yaml_and_back_gives_the_same_bytes(remat):
    assert remat("convert", str(GRAPHS / "vgg16.json"), "-o", "a.yaml").out == ""
    remat("convert", "a.yaml", "-o", "b.json")
    assert Path("b.json").read_bytes() == (GRAPHS / "vgg16.json").read_bytes()


def test_a_plan_to_yaml_and_back_gives_the_same_bytes(remat):
    remat("solve", TOY, "-b", "80%", "-o", "toy.plan.json")
    remat("convert", "toy.plan.json", "-o", "toy.plan.yaml")
    assert load_plan("toy.plan.yaml")[0] == load_plan("toy.plan.json")[0]
    remat("convert", "toy.plan.yaml", "-o", "again.json")
    assert Path("again.json").read_bytes() == Path("toy.plan.json").read_bytes()
    refused = remat("convert", "toy.plan.json", "--to", "node-link", code=2)
    assert refused.out == ""
    assert "this is a plan" in refused.err


def test_what_was_read_and_what_is_a_default_is_said(remat):
    nodes = [{"id": "a", "weight": 1, "size": 10, "workspace": 3}, {"id": "b", "weight": 2, "size": 20}]
    data = {"graph": {}, "nodes": nodes, "links": [{"source": "a", "target": "b"}]}
    done = remat("convert", "-", "--keys", "cost=weight,memory=size", stdin=json.dumps(data))
    for words in (
        'costs: read for 2 of 2 nodes from attribute "weight"; unit unit: not stated',
        'sizes: read for 2 of 2 nodes from attribute "size"',
        "workspace: read for 1 of 2 nodes, 0 bytes for the others",
        "fixed memory: not stated, 0 bytes",
        "outputs of the graph: not stated, those of the last node",
    ):
        assert words in done.err
    assert remat("convert", "-", "-q", "--keys", "cost=weight,memory=size", stdin=json.dumps(data)).err == ""


_STRING = r'"(?:[^"\\]|\\.)*"'
_DOT_NODE = re.compile(rf"  n(\d+) \[label=({_STRING}), fillcolor=({_STRING})(, penwidth=3)?(, peripheries=2)?\];")
_DOT_EDGE = re.compile(rf"  n(\d+) -> n(\d+)(?: \[label={_STRING}\])?;")


def test_dot_shows_nodes_edges_and_phases(remat):
    graph = load_graph(TOY)
    text = remat("convert", TOY, "--to", "dot").out
    nodes = [m for m in map(_DOT_NODE.fullmatch, text.splitlines()) if m]
    edges = [m for m in map(_DOT_EDGE.fullmatch, text.splitlines()) if m]
    assert len(nodes) == len(graph.nodes)
    assert sorted((int(m[1]), int(m[2])) for m in edges) == sorted(
        (graph.producer[v], i) for i, node in enumerate(graph.nodes) for v in node.inputs
    )
    colours = {graph.nodes[int(m[1])].phase: m[3] for m in nodes}
    assert len(set(colours.values())) == len(colours) == 3
    assert r'"conv1 (conv2d)\n1.2 G flops\n67.11 MB"' in text
    assert [int(m[1]) for m in nodes if m[5]] == [4]
    assert len(text.splitlines()) == len(nodes) + len(edges) + 5


def test_dot_of_a_plan_marks_what_is_computed_again(remat):
    remat("solve", TOY, "-b", "80%", "-o", "toy.plan.json")
    text = remat("convert", "toy.plan.json", "--to", "dot").out
    marked = [m for m in map(_DOT_NODE.fullmatch, text.splitlines()) if m and m[4]]
    assert any("conv1" in m[2] and "computed 2 times" in m[2] for m in marked)
    assert len(marked) < len(load_graph(TOY).nodes)


def test_dot_quotes_hostile_names(remat):
    hostile = ['a"];x[label="', "b\\", "c &amp; <d>", "e\\n"]
    nodes = [{"id": name, "cost": 1, "memory": 1, "inputs": []} for name in hostile]
    text = remat("convert", "-", "--to", "dot", stdin=json.dumps({"schema": "remat-graph/1", "nodes": nodes})).out
    found = [m[2] for m in map(_DOT_NODE.fullmatch, text.splitlines()) if m]
    assert [label[1:].split("\\n1 unit")[0] for label in found] == [
        'a\\"];x[label=\\"',
        "b\\\\",
        "c &amp;amp; <d>",
        "e\\\\n",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "x"], "x: cannot tell the format from the suffix"),
        (["-o", "x.graphml"], "x.graphml: this command writes no .graphml files"),
        (["-o", "x.dot", "--to", "json"], "x.dot: --to json contradicts the suffix .dot"),
        (["-o", "/dev/null/where.json"], "Not a directory"),
        (["--keys", "cost=w"], "--keys is for node-link graphs"),
    ],
)
def test_what_cannot_be_done_is_refused(remat, arguments, words):
    done = remat("convert", TOY, *arguments, code=2)
    assert done.out == ""
    assert words in done.err


def test_a_document_of_another_kind_or_version_is_refused(remat):
    for schema, words in (("remat-report/1", "this is a report"), ("remat-graph/2", "made by a newer remat")):
        assert words in remat("convert", "-", stdin=json.dumps({"schema": schema, "nodes": []}), code=2).err
