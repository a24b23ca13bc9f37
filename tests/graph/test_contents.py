"""Parameters, gradients and inputs of captured steps in words, as far as the graph says what it holds."""

from dataclasses import replace

import pytest

from remat_cli.errors import Infeasible
from remat_cli.graph.io import graph_sha256
from remat_cli.graph.metadata import fixed_bytes, fixed_words, gradient_bytes, line_of, outputs_are_gradients
from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.plan.check import graphs_differ
from remat_cli.planning.solving import solve
from remat_cli.reports.web.graph import node_documents
from remat_cli.zoo.registry import build_graph

KB = 1000


def step(places, results, fixed=100 * KB, gradient=99 * KB):
    """A product, its loss and the gradient of its weight, as a frontend describes it."""
    nodes = (
        Node("mm", 1.0, (), (KB,), phase=Phase.FORWARD),
        Node("loss", 1.0, (0,), (4,), phase=Phase.LOSS),
        Node("grad", 1.0, (0, 1), (gradient,), phase=Phase.BACKWARD),
    )
    metadata = {"frontend": "torch", "places": places, "results": results}
    return Graph("step", nodes, (1, 2), fixed_memory=fixed, metadata=metadata)


TORCH = step(
    [
        {"kind": "parameter", "name": "weight", "bytes": 99 * KB},
        {"kind": "input", "name": "0", "bytes": KB},
    ],
    [
        {"kind": "result", "of": 0, "tensor": {"value": "loss:0"}},
        {"kind": "gradient", "of": 0, "tensor": {"call": "aten.t.default", "args": [[{"value": "grad:0"}]]}},
    ],
)
JAX = step(
    [
        {"kind": "argument", "name": "0.w", "dtype": "float32", "shape": [99, 250]},
        {"kind": "argument", "name": "1", "dtype": "bool", "shape": [1000]},
    ],
    [
        {"kind": "loss", "name": "loss", "array": {"value": "loss:0"}},
        {"kind": "gradient", "name": "0.w", "array": {"value": "grad:0"}},
    ],
)


@pytest.mark.parametrize("graph", [TORCH, JAX])
def test_parameters_and_gradients_have_their_names(graph):
    assert fixed_words(graph) == "100 kB of parameters"
    assert fixed_bytes(graph) == {"parameters": 99 * KB, "inputs": KB}
    assert gradient_bytes(graph) == 99 * KB
    assert outputs_are_gradients(graph)


def test_every_large_part_is_named_and_what_is_outside_of_the_graph_comes_last():
    assert fixed_words(replace(TORCH, fixed_memory=1000 * KB)) == "1 MB of parameters and memory outside the graph"
    trained = {"kind": "variable", "dtype": "float32", "shape": [10, 1000], "trainable": True}
    state = {"kind": "variable", "dtype": "float64", "shape": [10, 500]}
    keras = step([state, state, trained], [], fixed=130 * KB)
    assert fixed_words(keras) == ("130 kB of variables that are not trained, parameters and memory outside the graph")


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {},
        {"frontend": "torch"},
        {"frontend": "torch", "places": 5, "results": {"kind": "gradient"}},
        {"frontend": "torch", "places": [5, None], "results": [[]]},
        {"places": [{"kind": "parameter", "bytes": 5}], "results": []},
        {"frontend": "torch", "places": [{"kind": "parameter", "bytes": 5}, {"kind": "captured", "bytes": 5}]},
        {"frontend": "torch", "places": [{"kind": "tangent", "bytes": 5}]},
    ],
)
def test_graphs_that_do_not_say_have_fixed_memory(metadata):
    graph = replace(TORCH, metadata=metadata)
    assert fixed_words(graph) == "100 kB of fixed memory"
    assert (gradient_bytes(graph), outputs_are_gradients(graph)) == (0, False)


def test_strange_places_are_no_error():
    for place in ({"kind": []}, {"shape": "x"}, {"shape": [-1]}, {"kind": "parameter", "bytes": -5}, {"dtype": 3}):
        assert fixed_words(step([place], [{"kind": "gradient", "array": {"value": 3}}])).startswith("100 kB of ")


def test_no_plan_for_gradients_beside_parameters_says_what_cannot_and_what_can_help():
    with pytest.raises(Infeasible) as refused:
        solve(TORCH, "150kB")
    assert (
        "node grad alone needs 100 kB (its inputs, outputs and workspace) beside 100 kB of parameters, "
        in refused.value.message
    )
    hint = refused.value.hint
    assert hint.startswith("recomputation cannot help: ")
    assert "a smaller batch leaves them as they are" in hint


def test_gradients_that_are_outputs_have_their_name():
    third = Node("grad.1", 1.0, (0,), (50 * KB,), phase=Phase.BACKWARD)
    both = Graph(
        "step",
        (*TORCH.nodes, third),
        (1, 2, 3),
        fixed_memory=TORCH.fixed_memory,
        metadata={
            **TORCH.metadata,
            "results": [*TORCH.metadata["results"], {"kind": "gradient", "tensor": {"value": "grad.1:0"}}],
        },
    )
    with pytest.raises(
        Infeasible, match="the gradients of the parameters alone take 149 kB at the end beside 100 kB of"
    ):
        solve(both, "150kB")


def test_a_large_working_set_asks_for_a_smaller_batch():
    graph = step(TORCH.metadata["places"], TORCH.metadata["results"], fixed=100)
    wide = replace(graph, nodes=(replace(graph.nodes[0], outputs=(900 * KB,)), *graph.nodes[1:]))
    with pytest.raises(Infeasible, match="node grad alone needs") as refused:
        solve(wide, "500kB")
    assert refused.value.hint.endswith("is enough without any; a smaller batch, or this operation in parts, needs less")


def test_what_is_reserved_is_not_blamed_on_the_batch():
    with pytest.raises(Infeasible, match="beside 1 MB of parameters and memory outside the graph") as refused:
        solve(replace(TORCH, fixed_memory=1000 * KB), "500kB")
    assert refused.value.hint.endswith("most of it is memory outside the graph, such as what reserve asks for")


def test_graphs_without_names_say_no_more_than_that_recomputation_cannot_help():
    with pytest.raises(Infeasible) as refused:
        solve(replace(TORCH, metadata=None), "150kB")
    assert "of fixed memory" in refused.value.message
    assert refused.value.hint.endswith("is enough without any")


def test_where_recomputation_helps_the_least_budget_is_told():
    graph = build_graph("unit-chain{n=17}")
    with pytest.raises(Infeasible) as refused:
        solve(graph, "2B")
    assert refused.value.hint.startswith("no budget below 3 bytes can work; 10 bytes works")


# Lines that nodes come from are shown, and make no other graph


PLAIN = build_graph("unit-chain{n=3}")


def told(lines):
    return replace(PLAIN, metadata={**PLAIN.metadata, "lines": lines})


def test_lines_are_no_part_of_the_digest():
    graph = told({"n1": "train.py:7 in forward"})
    assert graph_sha256(graph) == graph_sha256(PLAIN)
    assert graphs_differ(graph, PLAIN) is None
    assert graph_sha256(replace(graph, metadata={**graph.metadata, "batch": 3})) != graph_sha256(PLAIN)


def test_a_pinned_node_says_its_line():
    first, second, _ = node_documents(told({"n1": "train.py:7 in forward"}))
    assert ("line", "train.py:7 in forward") in second["facts"]
    assert not [fact for fact in first["facts"] if fact[0] == "line"]


@pytest.mark.parametrize("lines", [None, [], "n1", {"n1": 7}, {"n1": None}])
def test_other_things_by_that_name_are_no_lines(lines):
    graph = told(lines)
    assert line_of(graph, "n1") == ""
    assert node_documents(graph) == node_documents(PLAIN)


def test_a_graph_without_metadata_has_none():
    assert line_of(replace(PLAIN, metadata=None), "n1") == ""
