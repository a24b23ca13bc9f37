import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mangling import as_json, outcome, spoiled

from remat_cli.errors import InputError
from remat_cli.graph.document import parse_document
from remat_cli.graph.io import dump_document, graph_from_document, graph_to_document, load_graph
from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.graph.nodelink import NodeLinkKeys, graph_from_node_link, is_node_link


def read(data, keys=None) -> Graph:
    return graph_from_node_link(parse_document(json.dumps(data, indent=0), "g"), keys or NodeLinkKeys())


def refusal(data) -> list[str]:
    with pytest.raises(InputError) as caught:
        read(data)
    return [line.split(": ", 1)[1] for line in str(caught.value).splitlines()]


def diamond(**changes):
    """a -> b, c -> d, in an order that is no execution order."""
    return {
        "directed": True,
        "multigraph": False,
        "graph": {"name": "diamond", "cost_unit": "us", "fixed_memory": "1kB"},
        "nodes": [
            {"id": "d", "cost": 4, "memory": "4B", "recompute": False, "phase": "loss"},
            {"id": "a", "cost": 1.5, "memory": 1, "colour": "red"},
            {"id": 7, "cost": 2, "memory": 2.0, "op": "conv"},
            {"id": "c", "cost": 3, "memory": 3, "workspace": "1kB"},
        ],
        "links": [
            {"source": "c", "target": "d"},
            {"source": "a", "target": 7},
            {"source": "a", "target": "c", "weight": 3},
            {"source": 7, "target": "d"},
            {"source": "c", "target": "d", "key": 1},
        ],
    } | changes


def test_nodes_are_sorted_stably_and_the_graph_says_so():
    graph = read(diamond())
    assert graph == Graph(
        name="diamond",
        nodes=(
            Node("a", 1.5, (), (1,)),
            Node("7", 2.0, (0,), (2,), op="conv"),
            Node("c", 3.0, (0,), (3,), workspace=1000),
            Node("d", 4.0, (2, 1), (4,), recompute=False, phase=Phase.LOSS),
        ),
        outputs=(3,),
        cost_unit="us",
        fixed_memory=1000,
        metadata=graph.metadata,
    )
    assert graph.metadata["order"] == "sorted topologically"
    assert graph.metadata["keys"]["cost"] == "cost"


def test_an_execution_order_is_kept():
    # b could run first by its name, but the file says a, c, b.
    nodes = [{"id": i, "cost": 1, "memory": 1} for i in "acb"]
    graph = read({"nodes": nodes, "edges": [{"source": "a", "target": "b"}]})
    assert [node.id for node in graph.nodes] == ["a", "c", "b"]
    assert graph.metadata["order"] == "as in the file"
    assert (graph.name, graph.cost_unit, graph.fixed_memory) == ("graph", "unit", 0)


def test_other_keys_can_be_named(tmp_path):
    data = diamond(
        nodes=[{"name": "x", "time": 2, "bytes": 3, "cost": "ignored"}, {"name": "y", "time": 2, "bytes": 3}],
        links=[{"from": "x", "to": "y"}],
    )
    keys = NodeLinkKeys(id="name", cost="time", memory="bytes", source="from", target="to")
    path = tmp_path / "g.json"
    path.write_text(json.dumps(data))
    graph = load_graph(str(path), keys)
    assert [(node.id, node.cost, node.inputs, node.outputs) for node in graph.nodes] == [
        ("x", 2.0, (), (3,)),
        ("y", 2.0, (0,), (3,)),
    ]
    assert graph.metadata["keys"]["memory"] == "bytes"


def test_detection(tmp_path):
    assert is_node_link(parse_document(json.dumps(diamond()), "g"))
    assert not is_node_link(parse_document('{"schema": "remat-graph/1", "nodes": [], "links": []}', "g"))
    assert not is_node_link(parse_document('{"nodes": []}', "g"))
    path = tmp_path / "g.json"
    path.write_text(json.dumps(diamond()))
    assert load_graph(str(path)) == read(diamond())


def alone(*others, **changes):
    """A node, perhaps others, and no links."""
    return {"nodes": [{"id": "a", "cost": 1, "memory": 1} | changes, *others], "links": []}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"directed": False}, "/directed: is false: the graph is not directed (write a DiGraph)"),
        ({"edges": []}, "has both links and edges (keep one of them)"),
        ({"nodes": []}, "/nodes: is an empty list, expected at least one node"),
        ({"nodes": "x", "links": []}, '/nodes: is "x", expected a list'),
        ({"links": [3]}, "/links/0: is 3, expected an object"),
        (
            {"links": [{"source": "a"}]},
            '/links/0: no attribute "target" (if it has another name, give keys="target=NAME")',
        ),
        (
            {"links": [{"source": "a", "target": "q"}]},
            '/links/0/target: there is no node "q" (links name nodes by their id)',
        ),
        (
            {"links": [{"source": True, "target": "a"}]},
            "/links/0/source: there is no node true (links name nodes by their id)",
        ),
        (
            {"nodes": [{"id": "a", "costs": 3, "memory": 4}], "links": []},
            '/nodes: no node has the attribute "cost" (did you mean "costs"? say which attribute is the cost with '
            'keys="cost=NAME"; attributes here: "costs", "memory")',
        ),
        (
            {"nodes": [{"id": "a", "cost": 3}], "links": []},
            '/nodes: no node has the attribute "memory" (say which attribute is the memory with '
            'keys="memory=NAME"; attributes here: "cost")',
        ),
        (
            alone({"id": "b", "memory": 4}),
            '/nodes/1: node "b" has no attribute "cost" (say which attribute is the cost with '
            'keys="cost=NAME"; attributes here: "memory")',
        ),
        (alone(cost=-1), "/nodes/0/cost: is -1, expected a number from 0 to 1e+300"),
        (
            alone(memory=1.5),
            "/nodes/0/memory: is 1.5, expected bytes as a whole number that is not negative, or text such as 64MiB",
        ),
        (alone(memory="1G"), '/nodes/0/memory: "1G" is ambiguous (write 1GB (powers of 1000) or 1GiB (of 1024))'),
        (alone(phase="before"), '/nodes/0/phase: is "before", expected forward or loss or backward or update'),
        (alone(op=3), "/nodes/0/op: is 3, expected text"),
        (alone(recompute=0), "/nodes/0/recompute: is 0, expected true or false"),
        (alone(id=1.5), "/nodes/0/id: is 1.5, expected text or an integer (ids are text or integers)"),
        (
            alone(id="a:1"),
            '/nodes/0/id: "a:1" cannot be an id '
            "(an id has no control characters and does not end in a colon and digits)",
        ),
        (
            alone({"id": "1", "cost": 1, "memory": 1}, id=1),
            '/nodes/1: the id "1" is already used by /nodes/0 '
            '(give every node an id of its own; 1 and "1" are the same)',
        ),
        (
            {"links": [{"source": x, "target": y} for x, y in [("a", "c"), ("c", "d"), ("d", 7), (7, "c")]]},
            "/nodes/0: is part of a cycle: d -> 7 -> c -> d (a graph has no cycles: cut one link)",
        ),
        (
            {"links": [{"source": "a", "target": "a"}]},
            "/nodes/1: is part of a cycle: a -> a (a graph has no cycles: cut one link)",
        ),
    ],
)
def test_refusals(changes, message):
    assert refusal(diamond(**changes)) == [message]


@given(st.data())
def test_mangled_node_links_are_read_or_refused(data):
    mangled = data.draw(spoiled(diamond()))
    document, _ = outcome(lambda: parse_document(as_json(mangled), "g"))
    if document is not None and is_node_link(document):
        graph, message = outcome(lambda: graph_from_node_link(document, NodeLinkKeys()))
        assert len(message.splitlines()) <= 21
        if graph is not None:
            text = dump_document(graph_to_document(graph))
            assert graph_from_document(parse_document(text, "again")) == graph
