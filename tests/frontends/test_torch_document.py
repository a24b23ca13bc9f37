"""Documents of captured steps: what was written is read again as it was; what is damaged is refused, with the place."""

import copy
import json
from dataclasses import replace

import pytest
from torch_plans import graph_of, plain

from remat_cli.errors import UsageError
from remat_cli.frontends.torch.document import Constant, Input, Place, View, read_step, tensors_read
from remat_cli.frontends.torch.execute.program import program
from remat_cli.frontends.torch.train.backend import remat_backend
from remat_cli.plan.derive import derive

MODELS = ("mlp", "conv", "tied", "in_place", "attention", "squared", "exchanged")


@pytest.mark.parametrize("name", MODELS)
def test_what_was_written_is_read_again_as_it_was(name):
    graph = graph_of(name)
    step = read_step(graph)
    assert [operation.document() for operation in step.operations] == [node.payload for node in graph.nodes]
    assert [place.document() for place in step.places] == graph.metadata["places"]
    assert [constant.document() for constant in step.constants] == graph.metadata["constants"]
    assert [result.document(graph.value_name) for result in step.results] == graph.metadata["results"]
    assert graph.nodes[step.tangents].op == "tangents"
    assert len(step.given) == len(step.places) - len(graph.nodes[step.tangents].outputs)


def test_models_here_have_what_the_test_above_is_for():
    """Arguments of other kinds make the trip in ``test_torch_costs``."""
    text = json.dumps([[node.payload for node in graph_of(name).nodes] for name in MODELS])
    for word in ("float", "dtype", "memory_format", "input", "place", "constant", "call"):
        assert f'{{"{word}": ' in text, word
    assert '"random": true' in text
    assert '"item": 1' in text


def test_tensors_are_found_in_lists_and_views_in_order():
    view = View("aten.t.default", (Place(3), (Input(1), "x")), {"k": Constant(0)})
    assert list(tensors_read([2, view, (None, (Input(0, 1),))])) == [Place(3), Input(1), Constant(0), Input(0, 1)]


def deep(levels):
    nested = {"input": 0}
    for _ in range(levels):
        nested = {"call": "aten.t.default", "args": [nested], "kwargs": {}}
    return [nested]


ANY = {"item": None, "dtype": "float32", "shape": [2], "stride": [1]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"call": None}, "call: null is not text"),
        ({"args": None}, "args: it is not a list"),
        ({"kwargs": []}, "kwargs: it is not an object"),
        ({"kwargs": {"a b": 1}}, '"a b" is not the name of an argument'),
        ({"kwargs": {"if": 1}}, '"if" is not the name of an argument'),
        ({"other": 1}, 'it has an unknown field "other"'),
        ({"random": 1}, "random: 1 is neither true nor false"),
        ({"args": [1.5]}, r"args\[0\]: 1.5 is nothing that remat writes"),
        ({"args": [[1, {"x": 3}]]}, r"args\[0\]\[1\]: an object of 1 fields is nothing"),
        ({"args": [{"input": 9}]}, r"args\[0\]: there is no number 9: there are 1"),
        ({"args": [{"input": True}]}, "true is not a whole number"),
        ({"args": [{"input": -1}]}, "-1 is not a whole number"),
        ({"args": [{"input": 0, "part": 1}]}, "part: there is no number 1: there are 1"),
        ({"args": [{"input": 0, "place": 1}]}, 'it has an unknown field "place"'),
        ({"args": [{"value": "tanh:0"}]}, "nothing that remat writes"),
        ({"args": [{"place": 99}]}, "there is no number 99: there"),
        ({"args": [{"constant": 0}]}, "there is no number 0: there are 0"),
        ({"args": [{"float": "x"}]}, '"x" is not a number as remat writes it'),
        ({"args": [{"float": 1}]}, "1 is not a number as remat writes it"),
        ({"args": [{"complex": ["0x1p+0"]}]}, "nothing that remat writes"),
        ({"args": [{"dtype": 3}]}, "3 is not text"),
        ({"args": [{"call": "aten.t.default", "args": []}]}, 'it has no "kwargs"'),
        ({"args": deep(300)}, "more than 190 brackets in brackets"),
        ({"values": []}, "it makes 1 values, and tells of 0"),
        ({"values": [[]]}, "it makes 1 values, and tells of 0"),
        ({"values": [[ANY, ANY]]}, "one of its tensors is on its own, and there are others"),
        ({"values": [[ANY | {"item": "0"}]]}, '"0" is not a whole number'),
        ({"values": [[ANY | {"stride": []}]]}, "it has 1 sizes and 0 strides"),
        ({"values": [[ANY | {"shape": [-2]}]]}, r"shape\[0\]: -2 is not a whole number"),
        ({"values": [[ANY | {"dtype": None}]]}, "dtype: null is not text"),
        ({"values": [[{"item": None}]]}, 'it has no "dtype"'),
    ],
    ids=str,
)
def test_damaged_payloads_are_one_error_with_the_place(change, words):
    graph = graph_of("mlp")
    nodes = tuple(replace(n, payload=n.payload | change) if n.id == "layers.3/tanh" else n for n in graph.nodes)
    with pytest.raises(UsageError, match=rf"that remat did not write: node layers.3/tanh: .*{words}") as raised:
        program(replace(graph, nodes=nodes), derive(graph, range(len(nodes))), "cpu")
    assert raised.value.hint == "export it again"


def damaged(metadata, path, value):
    """``metadata`` with ``value`` at ``path``; without what stands there if that is None."""
    found = metadata = copy.deepcopy(metadata)
    for key in path[:-1]:
        found = found[key]
    if value is None:
        del found[path[-1]]
    else:
        found[path[-1]] = value
    return metadata


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("places",), None, "metadata.places: it is not a list"),
        (("results",), {}, "metadata.results: it is not a list"),
        (("constants", 0, "data"), "?", r"metadata.constants\[0\].data: "),
        (("constants", 0, "shape"), 3, r"metadata.constants\[0\].shape: it is not a list"),
        (("places", 0, "kind"), "weight", r'metadata.places\[0\].kind: "weight" is not parameter or buffer'),
        (("places", 0, "kind"), "tangent", "metadata.places: tangents are not the last"),
        (("places", 0, "bytes"), "8", r'metadata.places\[0\].bytes: "8" is not a whole number'),
        (("places", 0, "name"), None, r'metadata.places\[0\]: it has no "name"'),
        (("places", 0, "below"), -1, r"metadata.places\[0\].below: -1 is not"),
        (("results", 0, "kind"), "loss", r'metadata.results\[0\].kind: "loss" is not result or update'),
        (("results", -1, "of"), "0", r'metadata.results\[9\].of: "0" is not a whole number'),
        (("results", -1, "of"), 99, r"metadata.results\[9\].of: there is no number 99"),
        (
            ("results", 0, "tensor"),
            {"value": "nobody:0"},
            r"metadata.results\[0\].tensor: an object of 1 fields is nothing",
        ),
        (("results", 0, "tensor"), {"input": 0}, r"metadata.results\[0\].tensor: an object of 1 fields is nothing"),
        (("device",), 3, "metadata.device: 3 is not text"),
    ],
    ids=str,
)
def test_damaged_metadata_is_one_error_with_the_place(path, value, words):
    graph = graph_of("conv")
    with pytest.raises(UsageError, match=rf"the graph conv holds a payload that remat did not write: {words}"):
        read_step(replace(graph, metadata=damaged(graph.metadata, path, value)))


def test_a_step_has_one_node_for_its_tangents():
    graph = graph_of("mlp")
    nodes = [
        replace(n, payload=n.payload | {"call": "aten.x.default"}) if n.op == "tangents" else n for n in graph.nodes
    ]
    with pytest.raises(UsageError, match="0 of them make the tangents, and one has to"):
        read_step(replace(graph, nodes=tuple(nodes)))


def test_a_backend_refuses_a_damaged_plan_before_anything_is_compiled():
    graph = graph_of("mlp")
    with pytest.raises(UsageError, match="places: it is not a list"):
        remat_backend(plain(replace(graph, metadata=graph.metadata | {"places": 3})))
