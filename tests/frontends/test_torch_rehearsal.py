"""Graphs from documents are checked before anything of them runs: operators, types, sizes, strides and storages."""

import copy
import json
import random
from dataclasses import replace

import pytest
import test_torch_models
import torch
from mangling import mangled, refusal
from seeded import seeded
from torch import nn
from torch_plans import graph_of, plain

from remat_cli.errors import ExecutionFailed, ExitCode, UsageError
from remat_cli.frontends.torch import models
from remat_cli.frontends.torch.architectures import TORCH_ARCHITECTURES
from remat_cli.frontends.torch.codec import operator_named
from remat_cli.frontends.torch.document import ITEM_BYTES, View, read_step
from remat_cli.frontends.torch.execute import program
from remat_cli.frontends.torch.execute.rehearsal import PAIRS, rehearse
from remat_cli.frontends.torch.export import export_model
from remat_cli.frontends.torch.framework import Torch
from remat_cli.frontends.torch.installed import BELOW
from remat_cli.frontends.torch.operators import OPERATORS
from remat_cli.graph.document import parse_document
from remat_cli.graph.io import dump_document, graph_from_document, graph_to_document
from remat_cli.plan.derive import derive

profile, run_plan = Torch().profile, Torch().run

MODELS = ("mlp", "conv", "tied", "in_place", "attention", "squared", "exchanged")
MORE = ("bags", "mixed", "losses", "columns", "noise")
ZOO = {
    "torch/gpt2": "{batch=2,depth=1,heads=2,width=8,sequence=8,vocab=20,dropout=0.1}",
    "torch/resnet50": "{batch=2,resolution=32,classes=10}",
    "torch/unet": "{batch=1,resolution=32,width=2,depth=1}",
    "torch/vgg16": "{batch=1}",
}


def graphs():
    """What this frontend exports: every architecture of its zoo, and models that hold what those do not."""
    assert set(ZOO) == set(TORCH_ARCHITECTURES.names())
    yield from map(graph_of, MODELS)
    yield from (export_model(getattr(test_torch_models, name), name=name, source="torch:x") for name in MORE)
    yield from (Torch().export_architecture(name + options) for name, options in ZOO.items())


def called(arguments):
    for argument in arguments:
        if isinstance(argument, View):
            yield argument.call
            yield from called((*argument.args, *argument.kwargs.values()))
        elif isinstance(argument, tuple):
            yield from called(argument)


def test_all_that_is_exported_passes(monkeypatch):
    monkeypatch.setattr(models, "_RESNET_STAGES", ((4, 1, 1), (8, 2, 2)))  # the same blocks, and fewer of them
    seen = set()
    for graph in graphs():
        step = read_step(graph)
        rehearse(step, "cpu")
        for k, operation in enumerate(step.operations):
            seen |= {operation.call} if k != step.tangents else set()
            seen |= set(called((*operation.args, *operation.kwargs.values())))
        seen |= set(called(result.tensor for result in step.results))
    assert len(seen) > 70
    assert seen <= OPERATORS


def test_the_operators_of_the_list_are_there_and_only_compute():
    newest = tuple(map(int, torch.__version__.split(".")[:2])) == (BELOW[0], BELOW[1] - 1)
    missing = set()
    for name in OPERATORS:
        error = refusal(lambda: operator_named(name))  # noqa: B023 - called at once
        assert error is None or "has no operator" in error.message, name  # another version of torch may lack it
        missing |= set() if error is None else {name}
    assert not (missing if newest else set())
    assert len(missing) < 20


def changed(graph, node, **payload):
    nodes = [replace(n, payload=n.payload | payload) if n.id == node else n for n in graph.nodes]
    assert nodes != list(graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def told(payload, **facts):
    """The values of a payload with one tensor, with other facts."""
    [[tensor]] = payload["values"]
    return [[tensor | facts]]


HOSTILE = [
    "inductor._reinterpret_tensor.default",
    "inductor._alloc_from_pool.default",
    "inductor.accumulate_grad_.default",
    "c10d.allreduce_.default",
    "c10d_functional.all_reduce.default",
    "_c10d_functional.broadcast.default",
    "prims.as_strided.default",
    "prim.Print.default",
    "quantized.add.default",
    "aten._reshape_alias.default",
    "aten.set.source_Tensor_storage_offset",
    "aten.resize.default",
    "aten.from_file.default",
    "aten.quantize_per_tensor.default",
    "aten._make_per_tensor_quantized_tensor.default",
    "aten._sparse_coo_tensor_unsafe.default",
    "aten._nested_view_from_buffer.default",
    "aten.add.out",
    "aten.relu_.default",
    "aten.add",
    "remat.tangents",
    "\x1b[2Jaten.add.Tensor",
    "",
]


def test_operators_that_capturing_never_leaves_are_refused_before_anything_runs(monkeypatch):
    def defined(*_):
        raise AssertionError("code was made")

    graph = graph_of("mlp")
    [tanh] = [n for n in graph.nodes if n.id == "layers.3/tanh"]
    monkeypatch.setattr(program, "defined", defined)
    for name in HOSTILE:
        view = {"call": name, "args": [{"input": 0}], "kwargs": {}}
        result = {"kind": "result", "of": 0, "tensor": view | {"args": [{"place": 0}]}}
        graphs = (
            changed(graph, tanh.id, args=[view]),
            changed(graph, tanh.id, args=[[1, {"call": "aten.t.default", "args": [view], "kwargs": {}}]]),
            replace(graph, metadata=graph.metadata | {"results": [result]}),
        )
        graphs += () if name == "remat.tangents" else (changed(graph, tanh.id, call=name),)
        for spoiled in graphs:
            for action in (lambda g: run_plan(plain(g), steps=1), lambda g: profile(g, repeats=1)):
                error = refusal(lambda: action(spoiled))  # noqa: B023 - called at once
                assert error is not None, name
                known = name.startswith("_c10d_functional")  # of a step of several ranks, which one process cannot run
                why = "waits for other processes" if known else "which is not one of the operators that graphs hold"
                assert why in error.message
                assert error.exit_code is ExitCode.USAGE


STRIDED = "aten.as_strided.default"
OUTSIDE = [
    [{"input": 0}, [256], [1], 10**9],
    [{"input": 0}, [1 << 40], [1]],
    [{"input": 0}, [2, 2], [1 << 50, 1]],
    [{"input": 0}, [4], [-1]],
    [{"input": 0}, [4], [1], -4],
    [{"call": STRIDED, "args": [{"input": 0}, [1], [1], 1 << 20], "kwargs": {}}, [1], [1], 0],
]


@pytest.mark.parametrize("args", OUTSIDE, ids=str)
def test_nothing_outside_of_a_storage_is_read(args):
    graph = graph_of("mlp")
    [tanh] = [n for n in graph.nodes if n.id == "layers.3/tanh"]
    whole = changed(graph, tanh.id, args=[{"call": STRIDED, "args": args, "kwargs": {}}])
    place = [{"place": 0} if argument == {"input": 0} else argument for argument in args]
    result = {"kind": "result", "of": 0, "tensor": {"call": STRIDED, "args": place, "kwargs": {}}}
    results = [result, *graph.metadata["results"][1:]]
    for spoiled in (whole, replace(graph, metadata=graph.metadata | {"results": results})):
        if spoiled is not whole and any("input" in str(argument) for argument in place):
            continue  # results name no inputs of nodes
        with pytest.raises(ExecutionFailed, match=r"(node layers.3/tanh .*|metadata.results\[0\].tensor) cannot run: "):
            run_plan(plain(spoiled), steps=1)


def test_what_an_operator_returns_is_what_the_document_says():
    graph = graph_of("mlp")
    [tanh] = [n for n in graph.nodes if n.id == "layers.3/tanh"]
    [[tensor]] = tanh.payload["values"]
    rows, columns = tensor["shape"]
    for facts in (
        {"shape": [rows, columns + 1]},
        {"shape": [columns, rows]},
        {"shape": [rows * columns], "stride": [1]},
        {"stride": [1, rows]},
        {"dtype": "int64"},
        {"item": 3},
    ):
        with pytest.raises(UsageError, match=r"node layers.3/tanh: values\[0\]: the operator returns "):
            run_plan(plain(changed(graph, tanh.id, values=told(tanh.payload, **facts))), steps=1)


@pytest.mark.parametrize(
    ("place", "facts", "words"),
    [
        (0, {"dtype": "quint8"}, r"places\[0\]\.dtype: \"quint8\" is not a type"),
        (0, {"dtype": "\x1b[2J"}, r"places\[0\]\.dtype: \"\\u001b\[2J\" is not a type"),
        (0, {"shape": [1 << 62, 1 << 62]}, r"places\[0\]: it has more bytes than a tensor can have"),
        (0, {"shape": [10**30, 1]}, r"places\[0\]\.shape\[0\]: 1000000000000000000000000000000 is more than"),
        (0, {"stride": [1 << 30, 1]}, r"places\[0\]\.bytes: its sizes and strides reach over"),
        (0, {"bytes": 3}, r"places\[0\]\.bytes: its sizes and strides reach over"),
        (-1, {"shape": [2], "stride": [1], "bytes": 8}, "values: they are not the tangents"),
    ],
)
def test_sizes_and_types_of_places_are_checked(place, facts, words):
    graph = graph_of("mlp")
    places = copy.deepcopy(graph.metadata["places"])
    places[place] |= facts
    with pytest.raises(UsageError, match=words):
        run_plan(plain(replace(graph, metadata=graph.metadata | {"places": places})), steps=1)


def test_types_are_those_of_torch():
    assert {name: getattr(torch, name).itemsize for name in ITEM_BYTES} == ITEM_BYTES


def test_results_are_there_at_the_end():
    graph = graph_of("mlp")
    freed = next(value for value in range(len(graph.size)) if value not in graph.outputs)
    kept = graph.outputs[0]
    for tensor, words in (
        ({"value": graph.value_name(freed)}, "is not an output of the graph"),
        ({"value": graph.value_name(kept), "part": 1}, r"results\[0\].tensor.part: there is no number 1"),
        ([{"value": graph.value_name(kept)}], r"results\[0\].tensor: it is not a tensor"),
        (3, r"results\[0\].tensor: it is not a tensor"),
    ):
        results = [{"kind": "result", "of": 0, "tensor": tensor}, *graph.metadata["results"][1:]]
        with pytest.raises(UsageError, match=words):
            run_plan(plain(replace(graph, metadata=graph.metadata | {"results": results})), steps=1)


class Trusting(nn.Module):
    """Layers whose backward operators, and in part whose forward operators, trust their arguments."""

    def __init__(self):
        super().__init__()
        self.rows = nn.EmbeddingBag(5, 16, mode="sum", scale_grad_by_freq=True)
        self.words = nn.Embedding(5, 16, scale_grad_by_freq=True)
        self.norm = nn.BatchNorm2d(2)
        self.last = nn.LayerNorm(4)
        self.scaled = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))

    def forward(self, indices):
        x = (self.rows(indices) + self.words(indices[:, 0])).reshape(2, 2, 4, 4)
        x = self.norm(x) + nn.functional.adaptive_avg_pool2d(x, (2, 2)).sum()
        grid = torch.cat([torch.tanh(x[:, :1]), torch.tanh(x[:, 1:])], 1).permute(0, 2, 3, 1)
        x = nn.functional.grid_sample(x, grid, align_corners=False)
        flat = torch.log_softmax(torch.cdist(x[0], x[1]), -1)
        x = nn.functional.scaled_dot_product_attention(x, x, x)
        x = nn.functional.max_pool2d(x, 2) + nn.functional.adaptive_max_pool2d(x, 2)
        return self.scaled(self.last(x.reshape(2, 2, 4))).sum() + flat.sum()


def trusting():
    return Trusting(), torch.randint(0, 5, (4, 3)), lambda result: result


def test_backward_operators_are_given_what_forward_operators_were_given_and_returned():
    graph = export_model(trusting, name="trusting", source="torch:x")
    assert refusal(lambda: rehearse(read_step(graph), "cpu")) is None
    tried = set()
    for node in graph.nodes:
        payload = node.payload
        if payload["call"] not in PAIRS and "norm" not in payload["call"]:
            continue
        tensors = [k for k, argument in enumerate(payload["args"]) if isinstance(argument, dict)]
        for k, call, rest in ((tensors[0], "slice.Tensor", [-1, 0, 1]), (tensors[-1], "mul.Tensor", [1000])):
            other = {"call": f"aten.{call}", "args": [payload["args"][k], *rest], "kwargs": {}}
            args = [*payload["args"][:k], other, *payload["args"][k + 1 :]]
            error = refusal(lambda: rehearse(read_step(changed(graph, node.id, args=args)), "cpu"))  # noqa: B023
            if error is not None and "it trusts its arguments, and they do not belong" in error.message:
                tried.add((payload["call"], k))
    assert {call for call, _ in tried} >= {
        f"aten.{name}.default"
        for name in (
            "_adaptive_avg_pool2d_backward",
            "_embedding_bag_backward",
            "_log_softmax_backward_data",
            "_scaled_dot_product_flash_attention_for_cpu_backward",
            "_weight_norm_interface_backward",
            "adaptive_max_pool2d_backward",
            "embedding_dense_backward",
            "grid_sampler_2d_backward",
            "max_pool2d_with_indices_backward",
            "native_batch_norm_backward",
            "native_layer_norm_backward",
        )
    }, tried
    assert ("aten.max_pool2d_with_indices_backward.default", 7) in tried


def test_memory_for_what_nobody_has_is_one_message():
    """Ten terabytes, as an input and as a value."""
    graph = graph_of("mlp")
    [tanh] = [n for n in graph.nodes if n.id == "layers.3/tanh"]
    many = 10**13 // 4
    shape = {"dtype": "float32", "shape": [many], "stride": [1]}
    wide = {"kind": "input", "name": "x", "bytes": 4 * many} | shape
    place = replace(graph, metadata=graph.metadata | {"places": [wide, *graph.metadata["places"]]})
    value = changed(graph, tanh.id, call="aten.zeros.default", args=[[many]], values=told(tanh.payload, **shape))
    for spoiled in (place, value):
        assert refusal(lambda: run_plan(plain(spoiled), steps=1)) is not None  # noqa: B023 - called at once


def spoilable(name):
    """The document of a graph, whose payloads and metadata are to be spoiled."""
    return json.loads(json.dumps(graph_to_document(graph_of(name))))


@seeded(range(300), payload=100, metadata=100, refused=150, rehearsed=10)
def test_documents_with_anything_in_the_wrong_place(seed):
    """Everything between reading a document and running it ends in a graph that may run, or in one clear error."""
    source = random.Random(seed)
    document = spoilable(source.choice(["mlp", "conv", "squared"]))
    if source.random() < 0.5:
        branch, holder, key = "metadata", document, "metadata"
        kept = {k: document["metadata"][k] for k in ("frontend", "version")}
        holder[key] = mangled({k: v for k, v in document["metadata"].items() if k not in kept}, source) | kept
    else:
        branch, node = "payload", source.choice(document["nodes"])
        node["payload"] = mangled(node["payload"], source)
    yield branch

    def check():
        graph = graph_from_document(parse_document(dump_document(document), "x.json"))
        step = read_step(graph)
        rehearse(step, "cpu")
        program.program(graph, derive(graph, range(len(graph.nodes))), "cpu")

    error = refusal(check)
    assert error is None or error.exit_code is ExitCode.USAGE
    yield "rehearsed" if error is None else "refused"
