"""Costs of the zoo's graphs by the data sheet of a GPU, against the formula written out."""

import pytest

import remat_cli as remat
from remat_cli.errors import UsageError
from remat_cli.frontends.rates import LAUNCH_US

FLOPS_PER_S, BYTES_PER_S = {2: 125e12, 4: 15.7e12, 8: 7.8e12}, 900e9  # NVIDIA V100


def by_hand(flops, moved, dtype_bytes):
    """Microseconds: a launch, and the longer of computing and moving."""
    return LAUNCH_US + 1e6 * max(flops / FLOPS_PER_S[dtype_bytes], moved / BYTES_PER_S)


@pytest.mark.parametrize("dtype_bytes", [2, 4, 8])
def test_a_dense_layer_with_relu_costs_what_the_data_sheet_says(dtype_bytes):
    spec = f"feed-forward{{batch=512,depth=1,width=256,dtype_bytes={dtype_bytes},backward=operator}}"
    graph = remat.build_graph(spec, cost="roofline:v100")
    activation, weights = 512 * 256 * dtype_bytes, (256 * 256 + 256) * dtype_bytes
    product = 2 * 512 * 256 * 256
    expected = {
        "fc1": by_hand(product, activation + weights, dtype_bytes),  # its input is no node's
        "relu1": by_hand(0, 2 * activation, dtype_bytes),
        "out": by_hand(product, 2 * activation + weights, dtype_bytes),
        "grad/out": by_hand(2 * product, 3 * activation + 2 * weights, dtype_bytes),
        "grad/relu1": by_hand(0, 3 * activation, dtype_bytes),
        "grad/fc1": by_hand(product, activation + 2 * weights, dtype_bytes),
    }
    costs = {node.id: node.cost for node in graph.nodes}
    assert {name: costs[name] for name in expected} == pytest.approx(expected, abs=6e-4)
    assert graph.cost_unit == "us"
    assert graph.metadata["costs"]["device"].startswith("NVIDIA V100")


def test_under_the_checkmate_rule_gradients_of_products_take_twice_the_time():
    graph = remat.build_graph("vgg16{batch=64}", cost="roofline:v100")
    costs = {node.id: node.cost for node in graph.nodes}
    assert costs["grad/conv3_2"] - LAUNCH_US == pytest.approx(2 * (costs["conv3_2"] - LAUNCH_US), rel=1e-6)


def test_costs_are_all_that_changes():
    flops = remat.build_graph("resnet18{batch=2}")
    timed = remat.build_graph("resnet18{batch=2}", cost="roofline:a100")
    assert [(n.id, n.inputs, n.outputs) for n in timed.nodes] == [(n.id, n.inputs, n.outputs) for n in flops.nodes]
    assert timed.fixed_memory == flops.fixed_memory
    assert "costs" not in flops.metadata
    assert all(node.cost >= LAUNCH_US for node in timed.nodes)


def test_only_networks_can_be_costed():
    with pytest.raises(UsageError, match="is no network of layers"):
        remat.build_graph("linear{n=3}", cost="roofline:v100")
    with pytest.raises(UsageError, match="is not a cost model"):
        remat.build_graph("vgg16", cost="device")
