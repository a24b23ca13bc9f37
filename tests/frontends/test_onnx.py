"""ONNX models against published numbers, numpy, the reference implementation of ONNX, and the zoo."""

from __future__ import annotations

import json
from collections import Counter
from importlib import metadata

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_models import Builder, resnet50, vgg16

from remat_cli.cli.main import run
from remat_cli.errors import FrameworkUnavailable, InputError, UsageError
from remat_cli.frontends.onnx.flops import RULES
from remat_cli.frontends.onnx.importing import import_onnx
from remat_cli.graph.document import parse_document
from remat_cli.graph.io import dump_document, graph_from_document, graph_to_document, load_graph
from remat_cli.graph.model import Phase
from remat_cli.zoo.registry import build_graph
from remat_cli.zoo.training import Backward


def imported(tmp_path, builder, *outputs, sizes=None, backward="none", default_cost=None, **options):
    path = builder.save(tmp_path / "net.onnx", *outputs, **options)
    found = import_onnx(path, sizes=sizes or {}, backward=Backward(backward), default_cost=default_cost)
    document = graph_to_document(found.graph)
    assert graph_from_document(parse_document(dump_document(document), "net.json")) == found.graph
    assert all(node.cost > 0 for node in found.graph.nodes)
    assert found.graph.metadata["notes"] == list(found.notes)
    return found.graph


def cost_of(tmp_path, builder, output, **options):
    graph = imported(tmp_path, builder, output, **options)
    (node,) = graph.nodes
    return node.cost


@pytest.mark.parametrize(
    ("network", "parameters", "gmac"),
    # Parameters and GMAC as torchvision publishes them with its models.
    [(vgg16, 138_357_544, 15.47), (resnet50, 25_557_032, 4.09)],
)
def test_parameters_and_macs_are_the_published_ones(tmp_path, network, parameters, gmac):
    builder, logits = network()
    graph = imported(tmp_path, builder, logits, sizes={"batch": 2})
    products = sum(node.cost for node in graph.nodes if node.op in {"Conv", "Gemm"})
    assert products / 2 / 2 / 1e9 == pytest.approx(gmac, rel=0.002)
    assert graph.metadata["parameters"] == parameters
    statistics = 0 if network is vgg16 else 53_120
    assert graph.fixed_memory == 4 * (parameters + statistics + 2 * 3 * 224 * 224)
    assert not (tmp_path / "not-there.bin").exists()  # where all the weights are


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


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("ij->ji", [(3, 4)]),
        ("ii->i", [(4, 4)]),
        ("i,j->ij", [(3,), (4,)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("ij,jk", [(3, 4), (4, 5)]),
    ],
)
def test_einsum_costs_what_numpy_counts_without_optimisation(tmp_path, equation, shapes):
    b = Builder()
    y = b.node("Einsum", *(b.input(f"x{k}", *shape) for k, shape in enumerate(shapes)), equation=equation)
    words = np.einsum_path(equation, *(np.zeros(s) for s in shapes), optimize=False)[1]
    (line,) = [line for line in words.splitlines() if "Naive FLOP count" in line]
    assert cost_of(tmp_path, b, y) == pytest.approx(float(line.split(":")[1]), rel=1e-2)  # numpy prints four digits


@pytest.mark.parametrize(
    ("left", "right"),
    [((3, 4), (4, 5)), ((7, 3, 4), (4, 5)), ((2, 1, 3, 4), (6, 4, 5)), ((4,), (4, 5)), ((2, 3, 4), (4,))],
)
def test_a_matrix_product_costs_two_for_every_multiplication(tmp_path, left, right):
    b = Builder()
    y = b.node("MatMul", b.input("x", *left), b.input("y", *right))
    made = np.matmul(np.zeros(left), np.zeros(right))
    assert cost_of(tmp_path, b, y) == 2 * made.size * left[-1]


def test_a_convolution_costs_two_for_every_multiplication_with_a_weight(tmp_path):
    """Counted with ones: every output of an unpadded convolution of ones with ones is its number of products."""
    for group, stride in ((1, 1), (2, 2), (4, 1)):
        b = Builder()
        y = b.node(
            "Conv", b.input("x", 2, 4, 7, 8), b.input("w", 8, 4 // group, 3, 2), group=group, strides=[stride] * 2
        )
        feeds = {"x": np.ones((2, 4, 7, 8), np.float32), "w": np.ones((8, 4 // group, 3, 2), np.float32)}
        (made,) = ReferenceEvaluator(b.model(y)).run(None, feeds)
        assert cost_of(tmp_path, b, y) == 2 * made.sum()


def test_a_transposed_convolution_costs_two_for_every_multiplication_with_a_weight(tmp_path):
    b = Builder()
    y = b.node("ConvTranspose", b.input("x", 2, 4, 5, 6), b.input("w", 4, 3, 3, 3), strides=[2, 2])
    feeds = {"x": np.ones((2, 4, 5, 6), np.float32), "w": np.ones((4, 3, 3, 3), np.float32)}
    (made,) = ReferenceEvaluator(b.model(y)).run(None, feeds)
    assert cost_of(tmp_path, b, y) == 2 * made.sum()


def test_recurrent_layers_cost_their_products_at_every_step(tmp_path):
    steps, batch, size, hidden = 5, 3, 4, 6
    for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        b = Builder()
        weights = [b.weight(2, gates * hidden, size), b.weight(2, gates * hidden, hidden)]
        y = b.node(op, b.input("x", steps, batch, size), *weights, hidden_size=hidden, direction="bidirectional")
        assert cost_of(tmp_path, b, y) == 2 * (2 * steps * batch * gates * hidden * (size + hidden))


def test_attention_costs_its_two_products(tmp_path):
    b = Builder(opset=23)
    q, k, v = b.input("q", 2, 8, 5, 16), b.input("k", 2, 4, 7, 16), b.input("v", 2, 4, 7, 12)
    assert cost_of(tmp_path, b, b.node("Attention", q, k, v)) == 2 * 2 * 8 * 5 * 7 * (16 + 12)
    b = Builder(opset=23)
    q, k, v = b.input("q", 2, 5, 8 * 16), b.input("k", 2, 7, 4 * 16), b.input("v", 2, 7, 4 * 12)
    y = b.node("Attention", q, k, v, q_num_heads=8, kv_num_heads=4)
    assert cost_of(tmp_path, b, y) == 2 * 2 * 8 * 5 * 7 * (16 + 12)


def test_every_rule_is_for_an_operator_that_onnx_has():
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""}
    assert RULES.keys() <= known


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


def test_a_gradient_through_a_second_output_is_refused_by_the_rule_operator(tmp_path):
    b = Builder()
    weights = [b.weight(1, 12, 4), b.weight(1, 12, 3)]
    states = b.node("LSTM", b.input("x", 5, 2, 4), *weights, hidden_size=3, outputs=2, name="lstm")
    with pytest.raises(UsageError, match="output 1 of lstm"):
        imported(tmp_path, b, states[1], backward="operator")
    assert len(imported(tmp_path, b, states[1], backward="checkmate").nodes) == 3


def test_what_is_not_known_is_refused_in_one_message(tmp_path):
    b = Builder()
    x = b.input("x", "batch", None, 4)
    y = b.node("Relu", x)
    path = b.save(tmp_path / "net.onnx", y)
    with pytest.raises(InputError) as caught:
        import_onnx(path, sizes={"bach": 3})
    words = caught.value.message
    assert 'symbolic dimension "batch" (say --dim batch=SIZE)' in words
    assert "(say --dim x:1=SIZE)" in words
    assert 'no symbolic dimension "bach" (did you mean "batch"?)' in words
    graph = import_onnx(path, sizes={"batch": 3, "x:1": 5}).graph
    assert graph.nodes[0].outputs == (3 * 5 * 4 * 4,)


def test_sizes_that_depend_on_data_can_be_given(tmp_path):
    b = Builder()
    found = b.node("NonZero", b.input("x", 3, 4))
    y = b.node("Cast", b.node("Transpose", found, perm=[1, 0]), to=TensorProto.FLOAT)
    with pytest.raises(InputError, match=r'sizes of 3 tensors are unknown: "nonzero1" \(NonZero\).*--dim TENSOR:AXIS'):
        imported(tmp_path, b, y)
    graph = imported(tmp_path, b, y, sizes={f"{found}:1": 7})
    assert [n.outputs for n in graph.nodes] == [(2 * 7 * 8,), (2 * 7 * 8,), (2 * 7 * 4,)]


def test_operators_of_others_need_shapes_and_a_price(tmp_path):
    b = Builder()
    x = b.input("x", 2, 3)
    y = b.node("Fancy", x, domain="com.example", name="fancy")
    model = b.model(b.node("Relu", y))
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    model.graph.value_info.append(helper.make_tensor_value_info(y, TensorProto.FLOAT, [2, 30]))
    path = str(tmp_path / "net.onnx")
    onnx.save(model, path)
    with pytest.raises(
        InputError, match=r"without a rule for their cost: com\.example\.Fancy \(1 times\).*--default-cost"
    ):
        import_onnx(path, sizes={})
    found = import_onnx(path, sizes={}, default_cost=5)
    assert [(n.cost, n.outputs) for n in found.graph.nodes] == [(5 * 60, (240,)), (60, (240,))]
    assert any("com.example.Fancy (1)" in note for note in found.notes)
    with pytest.raises(UsageError, match=r"derivatives of Fancy.*not known"):
        import_onnx(path, sizes={}, default_cost=5, backward=Backward.OPERATOR)


def test_functions_of_the_model_are_inlined(tmp_path):
    b = Builder()
    y = b.node("Twice", b.input("x", 4), domain="own")
    model = b.model(y)
    body = [helper.make_node("Add", ["a", "a"], ["b"]), helper.make_node("Exp", ["b"], ["c"])]
    model.functions.append(helper.make_function("own", "Twice", ["a"], ["c"], body, [helper.make_opsetid("", 17)]))
    model.opset_import.append(helper.make_opsetid("own", 1))
    onnx.save(model, tmp_path / "net.onnx")
    graph = import_onnx(str(tmp_path / "net.onnx"), sizes={}).graph
    assert [n.op for n in graph.nodes] == ["Add", "Exp"]


def test_control_flow_is_refused(tmp_path):
    branch = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["r"])], "b", [], [helper.make_tensor_value_info("r", TensorProto.FLOAT, [3])]
    )
    b = Builder()
    b.input("x", 3)
    y = b.node("If", b.input("c", element=TensorProto.BOOL), then_branch=branch, else_branch=branch, name="choice")
    with pytest.raises(InputError, match='as data decides, which remat cannot say: If "choice"'):
        imported(tmp_path, b, y)


def test_text_and_broken_files_are_refused(tmp_path):
    path = tmp_path / "net.onnx"
    for content in (b"", b"hello", b"\x00" * 50, json.dumps({"nodes": []}).encode()):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not an ONNX model"):
            import_onnx(str(path), sizes={})
    with pytest.raises(InputError, match="there is no such file"):
        import_onnx(str(tmp_path / "none.onnx"), sizes={})
    b = Builder()
    b.input("x", 3)
    b.nodes.append(helper.make_node("Relu", ["later"], ["y"]))
    b.nodes.append(helper.make_node("Relu", ["x"], ["later"]))
    with pytest.raises(InputError, match="not a good ONNX model"):
        imported(tmp_path, b, "y")


def test_text_has_no_size(tmp_path):
    b = Builder()
    y = b.node(
        "Equal", b.input("words", 3, element=TensorProto.STRING), b.input("others", 3, element=TensorProto.STRING)
    )
    with pytest.raises(InputError, match=r'sizes of 2 tensors are unknown: "words" \(string\)'):
        imported(tmp_path, b, y, elements={y: TensorProto.BOOL})


def test_axes_that_are_not_there_or_have_a_size_of_their_own_are_refused(tmp_path):
    b = Builder()
    y = b.node("Relu", b.input("x", "batch", 4))
    for name, size in ((f"{y}:7", 3), (f"{y}:1", 5)):
        with pytest.raises(InputError, match=rf"--dim {name}={size}"):
            imported(tmp_path, b, y, sizes={"batch": 2, name: size})
    b = Builder()
    y = b.node("Relu", b.input("x", 0, 4))
    with pytest.raises(InputError, match="dimension without a size"):
        imported(tmp_path, b, y)


def test_without_the_package_one_line_says_what_to_install(tmp_path, monkeypatch, capsys):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    builder, logits = vgg16(2)
    path = builder.save(tmp_path / "net.onnx", logits)
    monkeypatch.setattr(metadata, "version", missing)
    assert run(["convert", path]) == FrameworkUnavailable.exit_code == 2
    said = capsys.readouterr().err
    assert "needs the onnx package, which is not installed" in said
    assert "pip install 'remat[onnx]'" in said


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


@pytest.mark.parametrize("texts", [["batch"], ["=3"], ["batch=0"], ["batch=-1"], ["batch=x"], ["a=1", "a=2"]])
def test_bad_dimensions_are_refused(tmp_path, texts, capsys):
    builder, logits = vgg16()
    path = builder.save(tmp_path / "net.onnx", logits)
    assert run(["convert", path, *(part for text in texts for part in ("--dim", text))]) == 2
    assert "--dim" in capsys.readouterr().err


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
