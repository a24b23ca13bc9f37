"""What operators of ONNX cost, against published numbers, numpy, and products that are counted."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from onnx_models import Builder, cost_of, imported, resnet50, vgg16

from remat_cli.frontends.onnx.flops import RULES


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
