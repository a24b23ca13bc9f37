"""Measured costs: what is written into the graph is what the device did."""

import gc
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch_plans import graph_of

from remat_cli.cli.main import run
from remat_cli.errors import ExecutionFailed, FrameworkUnavailable, UsageError
from remat_cli.frontends.captured.profiling import measure_operations
from remat_cli.frontends.torch.document import TensorSpec, read_step
from remat_cli.frontends.torch.export import export_model
from remat_cli.frontends.torch.framework import Torch
from remat_cli.frontends.torch.measure import benches as profiling
from remat_cli.frontends.torch.measure.benches import operation_bench
from remat_cli.frontends.torch.measure.memory import above_end, changes_of
from remat_cli.frontends.torch.measure.operations import Operations, new_tensor, place_tensors, seeded
from remat_cli.graph.io import dump_document, graph_to_document, load_graph
from remat_cli.zoo.registry import build_graph

profile = Torch().profile


@pytest.fixture(scope="module")
def conv():
    graph = graph_of("conv")
    return graph, profile(graph, repeats=3)


def test_every_node_has_a_time_a_spread_and_the_sizes_of_its_outputs(conv):
    graph, measured = conv
    assert measured.cost_unit == "us"
    assert all(node.cost > 0 for node in measured.nodes)
    assert [n.outputs for n in measured.nodes] == [n.outputs for n in graph.nodes]
    assert [n.payload for n in measured.nodes] == [n.payload for n in graph.nodes]
    assert (measured.outputs, measured.fixed_memory) == (graph.outputs, graph.fixed_memory)
    facts = measured.metadata["profile"]
    assert facts["device"] == "cpu"
    assert facts["torch"] == torch.__version__
    assert set(facts["spread"]) == {n.id for n in graph.nodes if n.op != "tangents"}
    assert all(spread >= 0 for spread in facts["spread"].values())
    json.dumps(graph_to_document(measured), allow_nan=False)


def test_workspace_is_what_operations_take_and_give_back(conv):
    workspace = {node.id: node.workspace for node in conv[1].nodes}
    assert workspace["relu"] == workspace["head/addmm"] == 0
    assert workspace["grad/norm/native_batch_norm_backward"] > 0  # an intermediate as large as its output


def test_sizes_are_those_of_the_device_where_fake_tensors_are_wrong():
    graph = graph_of("squared")
    [loss] = [k for k, node in enumerate(graph.nodes) if node.op == "mse_loss"]
    assert graph.nodes[loss].outputs == (64 * 32 * 4,)  # a view of what it summed up: this one is known
    wrong = [replace(node, outputs=(4,)) if k == loss else node for k, node in enumerate(graph.nodes)]
    assert profile(replace(graph, nodes=tuple(wrong)), repeats=1).nodes[loss].outputs == (64 * 32 * 4,)


def test_what_a_kernel_leaves_out_takes_no_memory():
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))  # the input takes no gradient
    graph = export_model(lambda: (module, (torch.randn(8, 4),), torch.sum), name="norm", source="torch:x", cost="flops")
    [norm] = [node for node in profile(graph, repeats=1).nodes if node.op == "native_batch_norm_backward"]
    assert norm.outputs[0] == 0
    assert all(norm.outputs[1:])


def test_the_same_operation_on_tensors_of_the_same_form_is_measured_once(conv):
    graph, measured = conv
    operations = Operations(read_step(graph), "cpu")
    nodes = {node.id: k for k, node in enumerate(graph.nodes)}
    assert operations.kind(nodes["mul"]) == operations.kind(nodes["grad/mul"])
    assert operations.kind(nodes["add"]) == operations.kind(nodes["grad/add"])
    assert operations.kind(nodes["conv1/convolution"]) != operations.kind(nodes["conv2/convolution"])
    assert measured.nodes[nodes["mul"]].cost == measured.nodes[nodes["grad/mul"]].cost


@pytest.mark.parametrize("name", ["tied", "in_place", "mlp"])
def test_random_inputs_are_valid_ones(name):
    """Indices above all: an embedding or a pooling layer would fail, or worse."""
    measured = profile(graph_of(name), repeats=1, warmup=0)
    assert measured.metadata["profile"]["kinds"] <= len(measured.nodes)


def test_what_indices_are_computed_from_is_computed_too():
    """A table of distances: random numbers in place of the distances would be no positions in it."""

    class Distances(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(13, 4)

        def forward(self, x):
            places = torch.arange(64)[:, None] - torch.arange(64)[None]
            buckets = (torch.log(places.abs().float() + 1) * 2.9).to(torch.int64)
            return (x * self.table(buckets).sum(-1)).square().mean()

    graph = export_model(lambda: (Distances(), (torch.ones(64, 64),)), name="distances", source="torch:x")
    assert profile(graph, repeats=1, warmup=0).cost_unit == "us"


def test_masks_that_choose_what_is_copied_choose_no_more_than_there_is():
    """As an image's patches take the places of words: a random mask would choose more places than there are patches."""

    class Placed(torch.nn.Linear):
        def forward(self, marked, patches):
            places = marked[:, None].expand(-1, 4)
            return torch.zeros(9, 4).masked_scatter(places, super().forward(patches)).square().sum()

    inputs = (torch.arange(9) < 2, torch.randn(2, 4))
    graph = export_model(lambda: (Placed(4, 4), inputs), name="placed", source="torch:x")
    assert {"masked_scatter", "masked_scatter_backward"} <= {node.op for node in graph.nodes}
    for seed in range(3):
        assert profile(graph, repeats=1, warmup=0, seed=seed).cost_unit == "us"


def test_profiling_again_changes_nothing_but_times(conv):
    again = profile(conv[1], repeats=1)
    same = [replace(node, cost=0.0) for node in again.nodes]
    assert same == [replace(node, cost=0.0) for node in conv[1].nodes]
    assert again.fixed_memory == conv[1].fixed_memory


def test_blocks_of_the_allocator_are_counted_once(conv, monkeypatch):
    monkeypatch.setitem(profiling._BLOCKS, "cpu", 512)
    graph = conv[0]
    padded = profile(graph, repeats=1)
    assert all(size % 512 == 0 for node in padded.nodes for size in node.outputs)
    places = [p["bytes"] for p in graph.metadata["places"] if p["kind"] != "tangent"]
    assert padded.fixed_memory - graph.fixed_memory == sum(-size % 512 for size in places)
    assert profile(padded, repeats=1).fixed_memory == padded.fixed_memory


@pytest.mark.parametrize(
    ("changes", "workspace"),
    [([], 0), ([8], 0), ([8, -8], 8), ([8, 4, -8], 8), ([-4], 0), ([-4, 8, -8], 4), ([4, 8, 16, -8, -16], 24)],
)
def test_workspace_is_the_rise_above_the_end(changes, workspace):
    assert above_end(changes) == workspace


def test_what_garbage_gives_back_is_not_counted():
    def leaves_garbage():
        held = [torch.empty(1 << 20)]
        held.append(held)  # only a collection frees it

    def measured():
        made = torch.empty(1 << 10)
        assert len([[] for _ in range(100)]) == 100  # enough objects for a collection
        return made

    leaves_garbage()
    threshold = gc.get_threshold()
    gc.set_threshold(10, 1, 1)
    try:
        changes = changes_of([leaves_garbage, measured])
        assert gc.isenabled()
    finally:
        gc.set_threshold(*threshold)
    assert changes == [[4 << 20], [4 << 10]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "complex64", "int64", "uint8", "bool", "int8"])
@pytest.mark.parametrize(("shape", "stride"), [([], []), ([3, 4], [1, 3]), ([2, 0], [1, 1]), ([300], [1])])
def test_random_tensors_have_type_shape_strides_and_limits(dtype, shape, stride):
    spec = TensorSpec(dtype, tuple(shape), tuple(stride))
    tensor = new_tensor(spec, "cpu", seeded("cpu", 0), below=200)
    assert str(tensor.dtype) == f"torch.{dtype}"
    assert (list(tensor.shape), list(tensor.stride())) == (shape, stride)
    if not tensor.is_floating_point() and not tensor.is_complex() and tensor.numel() > 1:
        highest = int(tensor.max())
        assert int(tensor.min()) >= 0
        assert 1 <= highest < {"bool": 2, "int8": 128}.get(dtype, 200)


def test_places_are_the_same_for_the_same_seed(conv):
    places = read_step(conv[0]).given
    first, second, other = (place_tensors(places, "cpu", seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


# Refusals


def test_graphs_of_others_are_refused():
    with pytest.raises(UsageError, match="was not made by the PyTorch frontend"):
        profile(build_graph("linear{n=4}"))
    graph = graph_of("mlp")
    with pytest.raises(UsageError, match="another version"):
        profile(replace(graph, metadata=graph.metadata | {"version": 99}))
    with pytest.raises(UsageError, match="at least one repeat"):
        profile(graph, repeats=0)


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(FrameworkUnavailable, match="no CUDA device"):
        profile(graph_of("mlp"), device="cuda")


def measured_alone(graph):
    """As fit measures what it has captured itself."""
    with operation_bench(read_step(graph), "cpu", seed=0) as bench:
        return measure_operations(bench, repeats=1, warmup=0)


@pytest.mark.parametrize(
    ("payload", "trusted", "words"),
    [
        ({"call": "aten.nonsense.default"}, True, 'has no operator "aten.nonsense.default"'),
        (
            {"call": "aten.nonsense.default"},
            False,
            'node layers.2/addmm calls "aten.nonsense.default", which is not one of',
        ),
        ({"args": [{"input": 0}] * 3}, True, r"node layers.2/addmm \(aten.addmm.default\) failed on cpu"),
        ({"args": [{"input": 0}] * 3}, False, r"node layers.2/addmm \(aten.addmm.default\) cannot run: "),
    ],
)
def test_an_operation_that_fails_is_named(payload, trusted, words):
    graph = graph_of("mlp")
    nodes = [
        replace(node, payload=node.payload | payload) if node.id == "layers.2/addmm" else node for node in graph.nodes
    ]
    changed = replace(graph, nodes=tuple(nodes))
    with pytest.raises(ExecutionFailed, match=words):
        measured_alone(changed) if trusted else profile(changed, repeats=1)


def test_from_export_to_a_plan_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("graph.json").write_text(dump_document(graph_to_document(graph_of("tied"))), encoding="utf-8")
    assert run(["profile", "graph.json", "-o", "measured.json", "--repeats", "2"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("wrote measured.json: 36 nodes, ")
    assert said.err.count("\n") == 1
    assert load_graph("measured.json").cost_unit == "us"
    assert run(["solve", "measured.json", "-b", "none", "-q"]) == 0
    assert run(["profile", "graph.json", "--device", "cuda"]) == 2 or torch.cuda.is_available()


def test_indices_that_are_computed_out_of_range_are_measured_with_zeros():
    """The limit of the indices is known, but not that one is added to them on their way."""

    class Shifted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)

        def forward(self, x, indices):
            return self.inner(x)[indices + 1].square().sum()

    def build():
        return Shifted(), (torch.randn(3, 4), torch.randint(0, 2, (50,)))

    measured = profile(export_model(build, name="shifted", source="torch:shifted", cost="flops"), repeats=1)
    assert any(node.op == "index" for node in measured.nodes)
    assert all(node.cost > 0 for node in measured.nodes)
