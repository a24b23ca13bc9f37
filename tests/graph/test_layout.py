"""Places of nodes in a drawing: edges run the right way, and no node hides another."""

import families
from hypothesis import given

from remat_cli.graph.drawing import layered
from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.zoo.registry import build_graph


@given(families.graphs())
def test_edges_run_to_the_right_and_no_two_nodes_share_a_place(graph: Graph):
    plain = Graph(graph.name, tuple(Node(n.id, n.cost, n.inputs, n.outputs) for n in graph.nodes), graph.outputs)
    place = layered(plain)
    for reader, node in enumerate(plain.nodes):
        for value in node.inputs:
            assert place.layer[plain.producer[value]] < place.layer[reader]
    assert len(set(zip(place.layer, place.y, strict=True))) == len(plain.nodes)
    assert place.layers == max(place.layer, default=-1) + 1


def test_the_way_back_runs_below_and_to_the_left():
    graph = build_graph("vgg16")
    place = layered(graph)
    back = {i for i, node in enumerate(graph.nodes) if node.phase is Phase.BACKWARD}
    assert max(place.y[i] for i in back) < min(y for i, y in enumerate(place.y) if i not in back)
    for reader in back:
        for value in graph.nodes[reader].inputs:
            producer = graph.producer[value]
            if producer in back:
                assert place.layer[reader] < place.layer[producer]
    assert place.layer[0] == 0
    assert place.layer[len(graph.nodes) - 1] == 0


def test_a_chain_is_a_straight_line():
    place = layered(Graph("c", tuple(Node(f"n{i}", 1, (i - 1,) if i else (), (1,)) for i in range(9)), (8,)))
    assert place.layer == tuple(range(9))
    assert set(place.y) == {0.0}


def test_nothing_takes_no_place():
    assert layered(Graph("none", (), ())).layers == 0


def test_edges_that_skip_layers_are_arcs_that_end_at_their_nodes():
    skip = Graph("s", tuple(Node(f"n{i}", 1, tuple(range(i)), (1,)) for i in range(4)), (3,))
    place = layered(skip)
    assert place.path(0, 1) == ((0, 0.0), (1, 0.0))
    arc = place.path(0, 3)
    assert (arc[0], arc[-1]) == ((0, 0.0), (3, 0.0))
    assert all(y > 0 for _, y in arc[1:-1])
