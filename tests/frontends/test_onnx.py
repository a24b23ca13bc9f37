"""Graphs of ONNX models against the reference implementation of ONNX, and the zoo."""

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_models import Builder, imported, resnet50, vgg16

from remat_cli.api import import_model
from remat_cli.cli.main import run
from remat_cli.frontends.imported import Wishes
from remat_cli.frontends.onnx.importing import import_onnx
from remat_cli.graph.io import load_graph
from remat_cli.graph.model import Phase
from remat_cli.zoo.registry import build_graph


@pytest.mark.parametrize(("network", "name"), [(vgg16, "vgg16"), (resnet50, "resnet50")])
@pytest.mark.parametrize("backward", ["operator", "checkmate"])
def test_training_steps_are_those_of_the_zoo(tmp_path, network, name, backward):
    """But for ``Flatten``, a copy in the zoo and a view here, and the size of the loss."""
    builder, logits = network()
    ours = imported(tmp_path, builder, logits, sizes={"batch": 4}, backward=backward)
    zoo = build_graph(f"{name}{{batch=4,backward={backward}}}")

    def nodes(graph):
        keep = [n for n in graph.nodes if "flatten" not in n.id and n.phase is not Phase.LOSS and "loss" not in n.id]
        return Counter((node.phase, node.cost, node.outputs) for node in keep)

    assert nodes(ours) == nodes(zoo)
    if name == "resnet50":  # no Flatten in either: the same nodes read the same
        assert len(ours.nodes) == len(zoo.nodes)
        assert [n.inputs for n in ours.nodes] != []
        assert ours.edges == zoo.edges


def everything():
    """A model that uses many operators, with numbers of all kinds, and a feed for it."""
    b = Builder(opset=20)
    x = b.input("x", 2, 4, 6, 6)
    ids = b.input("ids", 2, 5, element=TensorProto.INT64)
    rng = np.random.default_rng(0)

    def weight(*shape):
        return b.constant(rng.standard_normal(shape).astype(np.float32))

    conv = b.node("Conv", x, weight(8, 2, 3, 3), weight(8), group=2, pads=[1, 1, 1, 1])
    up = b.node("ConvTranspose", conv, weight(8, 3, 2, 2), strides=[2, 2])
    pooled, places = b.node("MaxPool", up, kernel_shape=[2, 2], strides=[2, 2], outputs=2)
    mean = b.node("GlobalAveragePool", conv)
    flat = b.node("Flatten", mean)
    dense = b.node("Gemm", flat, weight(7, 8), weight(7), transB=1)
    best, at = b.node("TopK", dense, b.constant(np.array([3])), outputs=2)
    words = b.node("Gather", weight(11, 16), ids)
    normal = b.node("LayerNormalization", words, weight(16), weight(16))
    parts = b.node("Split", normal, outputs=2, axis=2, num_outputs=2)
    scores = b.node("Softmax", b.node("MatMul", parts[0], b.node("Transpose", parts[1], perm=[0, 2, 1])))
    mixed = b.node("Einsum", scores, parts[1], equation="bij,bjd->bid")
    half = b.node("Cast", mixed, to=TensorProto.FLOAT16)
    long = b.node("Cast", mixed, to=TensorProto.DOUBLE)
    positive = b.node("Greater", mixed, b.constant(np.float32(0)))
    picked = b.node("Where", positive, mixed, b.node("Neg", mixed))
    total = b.node("ReduceSum", picked, b.constant(np.array([1])), keepdims=0)
    states = b.node("LSTM", normal, weight(1, 12, 16), weight(1, 12, 3), hidden_size=3, outputs=3)
    tiled = b.node("Tile", total, b.constant(np.array([3, 2])))
    padded = b.node("Pad", tiled, b.constant(np.array([0, 1, 0, 2])))
    outputs = dict.fromkeys([pooled, best, padded, *states], TensorProto.FLOAT)
    outputs |= dict.fromkeys([places, at], TensorProto.INT64)
    outputs |= {half: TensorProto.FLOAT16, long: TensorProto.DOUBLE}
    feeds = {"x": rng.standard_normal((2, 4, 6, 6)).astype(np.float32), "ids": rng.integers(0, 11, (2, 5))}
    return b, outputs, feeds


def test_sizes_are_those_of_what_the_reference_implementation_computes(tmp_path):
    builder, outputs, feeds = everything()
    graph = imported(tmp_path, builder, *outputs, elements=outputs)
    names = [name for node in builder.nodes for name in node.output]
    evaluator = ReferenceEvaluator(builder.model(*names))
    arrays = dict(zip(names, evaluator.run(None, feeds), strict=True))
    by_output = {}
    for node in graph.nodes:
        for slot, size in enumerate(node.outputs):
            by_output[node.id, slot] = size
    for node in builder.nodes:
        if node.op_type == "Flatten":  # a view
            continue
        for slot, name in enumerate(node.output):
            key = (
                (f"Split/{node.output[0]}/{slot}", 0)
                if node.op_type == "Split"
                else (f"{node.op_type}/{node.output[0]}", slot)
            )
            assert by_output.pop(key) == arrays[name].nbytes, node
    assert not by_output
    assert graph.fixed_memory == sum(a.nbytes for a in feeds.values()) + sum(
        onnx.numpy_helper.to_array(t).nbytes for t in builder.initializers
    )


def test_views_and_constants_are_no_nodes_and_shapes_are_computed(tmp_path):
    """The shape of ``Reshape`` is a program on shapes with a division, which shape inference does not follow."""
    b = Builder()
    x = b.input("x", "batch", 4, 6)
    shape = b.node("Shape", b.node("Relu", x, name="relu"))
    first = b.node("Gather", shape, b.constant(np.array([0])))
    last = b.node("Div", b.node("Gather", shape, b.constant(np.array([2]))), b.constant(np.array([2])))
    wanted = b.node("Concat", first, b.constant(np.array([8])), last, axis=0)
    y = b.node("Reshape", b.nodes[0].output[0], wanted)
    z = b.node("Sigmoid", b.node("Identity", y), name="sigmoid")
    mask = b.node("Transpose", b.constant(np.ones((3, 8), np.float32)), perm=[1, 0])
    w = b.node("Add", z, mask, name="add")
    graph = imported(tmp_path, b, w, sizes={"batch": 10})
    assert [(n.id, n.outputs) for n in graph.nodes] == [
        (name, (10 * 8 * 3 * 4,)) for name in ("relu", "sigmoid", "add")
    ]
    assert [n.inputs for n in graph.nodes] == [(), (0,), (1,)]
    constants = 2 * 8 + 2 * 8 + 8 + 2 * (3 * 8 * 4) - 8  # three indices and a length; the mask, and its transpose
    assert graph.fixed_memory == 10 * 4 * 6 * 4 + constants
    assert graph.outputs == (2,)


def test_what_no_output_depends_on_is_left_out(tmp_path):
    b = Builder()
    x = b.input("x", 3)
    y = b.node("Relu", x, name="kept")
    b.node("Exp", y, name="dead")
    graph = imported(tmp_path, b, y)
    assert [n.id for n in graph.nodes] == ["kept"]
    assert any("1 operation that no output depends on" in note for note in graph.metadata["notes"])


def test_dropout_is_a_view_unless_it_trains_and_then_runs_once(tmp_path):
    for training, once in ((False, 0), (True, 1)):
        b = Builder()
        x = b.node("Relu", b.input("x", 3))
        y = b.node("Dropout", x, b.constant(np.float32(0.5)), b.constant(np.array(training)), name="drop")
        graph = imported(tmp_path, b, b.node("Exp", y))
        assert [n.id for n in graph.nodes if not n.recompute] == ["drop"] * once
        assert len(graph.nodes) == 2 + once


def test_no_gradient_goes_through_integers_and_every_value_has_one_consumer_more(tmp_path):
    """``x -> relu -> (exp, argmax -> gather)``: the gradient comes back through ``exp`` and the table alone."""
    b = Builder()
    x = b.conv(b.input("x", 2, 3, 4, 4), 3, 5, 1, name="conv")
    y = b.node("Relu", x, name="relu")
    at = b.node("ArgMax", y, axis=1, keepdims=0, name="argmax")
    rows = b.node("Gather", b.weight(5, 4), at, name="gather")
    z = b.node("Exp", y, name="exp")
    graph = imported(tmp_path, b, z, rows, backward="operator")
    ids = [n.id for n in graph.nodes]
    assert "grad/argmax" not in ids
    assert not any(node_id.startswith("accumulate/") for node_id in ids)
    by_id = {n.id: n for n in graph.nodes}
    assert by_id["grad/gather"].outputs == ()  # the table's gradient is fixed memory, indices have none
    assert by_id["grad/relu"].outputs == by_id["relu"].outputs
    parameters = 4 * (5 * 3 + 5 + 5 * 4)
    assert graph.fixed_memory == 2 * parameters + 2 * 3 * 4 * 4 * 4
    checkmate = imported(tmp_path, b, z, rows, backward="checkmate")
    assert "grad/argmax" not in {n.id for n in checkmate.nodes}


def test_a_loss_of_the_models_own_is_the_loss(tmp_path):
    b = Builder()
    x = b.gemm(b.input("x", 8, 4), 4, 10)
    labels = b.input("labels", 8, element=TensorProto.INT64)
    loss = b.node("SoftmaxCrossEntropyLoss", x, labels, name="entropy")
    graph = imported(tmp_path, b, loss, backward="operator")
    assert [n.phase for n in graph.nodes] == [Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.BACKWARD]
    assert [graph.value_name(v) for v in graph.outputs] == ["entropy:0"]


def test_functions_of_the_model_are_inlined(tmp_path):
    b = Builder()
    y = b.node("Twice", b.input("x", 4), domain="own")
    model = b.model(y)
    body = [helper.make_node("Add", ["a", "a"], ["b"]), helper.make_node("Exp", ["b"], ["c"])]
    model.functions.append(helper.make_function("own", "Twice", ["a"], ["c"], body, [helper.make_opsetid("", 17)]))
    model.opset_import.append(helper.make_opsetid("own", 1))
    onnx.save(model, tmp_path / "net.onnx")
    graph = import_onnx(str(tmp_path / "net.onnx"), Wishes()).graph
    assert [n.op for n in graph.nodes] == ["Add", "Exp"]


def test_the_command_says_what_was_read_and_what_derived(tmp_path, capsys):
    builder, logits = vgg16()
    path = builder.save(tmp_path / "net.onnx", logits)
    target = str(tmp_path / "step.json")
    assert run(["convert", path, "--dim", "batch=8", "--backward", "operator", "-o", target]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    for words in (
        "costs: derived, FLOPs by a formula per operator",
        "sizes: derived from element types and shapes",
        "(batch=8 as asked)",
        "bytes of 32 initializers, read",
        "backward pass: derived by rule operator, not read; gradients of 32 initializers",
    ):
        assert words in said.err
    graph = load_graph(target)
    assert {n.phase for n in graph.nodes} == {Phase.FORWARD, Phase.LOSS, Phase.BACKWARD}
    assert graph.metadata["dimensions"] == {"batch": 8}
    assert run(["max-batch", target, "--memory", "64MB", "--strategy", "keep-all"]) == 1
    assert "not even one sample" in capsys.readouterr().err  # the batch is known: it is not asked for
    assert import_model(path, sizes={"batch": 8}, backward="operator") == graph


def test_a_parameter_that_is_transposed_or_picked_from_first_gets_its_own_gradient(tmp_path):
    """Both are computed once, as they depend on constants alone; the gradients are as large as the initializers."""
    b = Builder()
    rows = b.node("Gather", b.constant(np.zeros((20, 6), np.float32)), b.constant(np.array([3, 5, 1])))
    product = b.node("MatMul", b.input("x", 3, 6), b.node("Transpose", b.weight(6, 6), perm=[1, 0]))
    graph = imported(tmp_path, b, b.node("Add", product, rows), backward="operator")
    parameters = 4 * (20 * 6 + 6 * 6)
    derived = 4 * (3 * 6 + 6 * 6)
    assert graph.fixed_memory == 2 * parameters + derived + 3 * 6 * 4 + 3 * 8
    assert graph.metadata["parameters"] == parameters / 4
    assert [n.id.partition("/")[0] for n in graph.nodes].count("grad") == 3  # of the loss, of the sum, of the product


def test_what_was_unknown_before_a_constant_was_computed_is_known_after(tmp_path):
    """``Range`` has a length that shape inference calls by a name of its own, and what is picked with it has too."""
    b = Builder()
    x = b.input("x", "batch", 5)
    length = b.node("Gather", b.node("Shape", x), b.constant(np.array(0)))
    length = b.node("Div", b.node("Mul", length, b.constant(np.array(6))), b.constant(np.array(2)))
    numbers = b.node("Range", b.constant(np.array(0)), length, b.constant(np.array(1)))
    rows = b.node("Gather", b.weight(5000, 7), numbers)
    y = b.node("MatMul", rows, b.input("y", 7, 2))
    graph = imported(tmp_path, b, y, b.node("Relu", x), sizes={"batch": 4})
    assert [n.outputs for n in graph.nodes] == [(12 * 2 * 4,), (4 * 5 * 4,)]
