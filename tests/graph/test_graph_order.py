"""Topological orders: the graph in another one, and what holds in all of them."""

from collections.abc import Iterator

import pytest
from anyorder import all_orders, peak_of
from families import varied_graph
from seeded import seeded

from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph, Node
from remat_cli.graph.order import always_waiting, ancestors, descendants, has_one_order, reordered
from remat_cli.plan.derive import peak
from remat_cli.zoo.registry import build_graph


def graph_of(seed: int) -> Graph:
    return varied_graph(seed, 1, 6, most_outputs=(3,), max_inputs=2, random_outputs=True)


@seeded(range(30), orders=100)
def test_a_graph_in_another_order_is_the_same_graph(seed: int) -> Iterator[str]:
    graph = graph_of(seed)
    for order in all_orders(graph):
        view = reordered(graph, order)
        assert [node.id for node in view.graph.nodes] == [graph.nodes[k].id for k in order]
        for at, node in enumerate(view.graph.nodes):
            assert [view.values[v] for v in node.inputs] == list(graph.nodes[view.nodes[at]].inputs)
        assert {view.values[v] for v in view.graph.outputs} == set(graph.outputs)
        assert no_remat_peak(view.graph) == peak(graph, order) == peak_of(graph, order)
        yield "orders"


def test_only_topological_orders_of_all_nodes_are_taken() -> None:
    graph = Graph("g", (Node("a", 1.0, (), (1,)), Node("b", 1.0, (0,), (1,))), outputs=(1,))
    for order in ((1, 0), (0,), (0, 0), (0, 1, 1)):
        with pytest.raises(ValueError, match=r"order|earlier"):
            reordered(graph, order)


@seeded(range(60), one=10, many=20, waiting=60)
def test_what_holds_in_every_order(seed: int) -> Iterator[str]:
    """Against all orders: who precedes whom, what waits at a node, and whether there is only one order."""
    graph = graph_of(seed)
    n = len(graph.nodes)
    orders = list(all_orders(graph))
    before, after, waiting = ancestors(graph), descendants(graph), always_waiting(graph)
    assert has_one_order(graph) == (len(orders) == 1)
    yield "one" if len(orders) == 1 else "many"
    yield from ["waiting"] * sum(map(len, waiting))
    for t in range(n):
        for k in range(n):
            always = k != t and all(order.index(k) < order.index(t) for order in orders)
            assert bool(before[t] >> k & 1) == bool(after[k] >> t & 1) == always
        for v in range(len(graph.size)):
            if v in graph.nodes[t].inputs:
                assert v not in waiting[t]
                continue
            waits = all(_waits(graph, order, v, t) for order in orders)
            assert v not in waiting[t] or waits, "said to wait, but not in every order"


def _waits(graph: Graph, order: tuple[int, ...], v: int, t: int) -> bool:
    at = {k: p for p, k in enumerate(order)}
    needed = v in graph.outputs or any(at[j] > at[t] for j in graph.readers[v])
    return at[graph.producer[v]] < at[t] and needed


def test_chains_and_their_training_have_one_order() -> None:
    assert has_one_order(build_graph("vgg16"))
    assert not has_one_order(build_graph("resnet50"))
