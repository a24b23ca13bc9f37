"""The two backward rules, against statements of them that share no code with the zoo."""

from collections import Counter

import pytest

from remat_cli.graph.model import Phase
from remat_cli.zoo.layers import common, image
from remat_cli.zoo.network import Network
from remat_cli.zoo.registry import ARCHITECTURES, architecture, build_graph
from remat_cli.zoo.training import Backward, to_graph

NETWORKS = [name for name in ARCHITECTURES.names() if name != "unit-chain"]
RULES = ["checkmate", "operator", "none"]
NO_GRADIENT = {"outer", "cos", "sin", "triu"}
"""Operations without inputs that have a gradient: positions and masks."""


def small(name):
    """A quick specification of a network, without the closing brace."""
    if name == "linear":
        return f"{name}{{n=7,"
    return f"{name}{{batch=2,depth=20," if name == "resnet-deep" else f"{name}{{batch=2,"


def graph_of(name, rule):
    return build_graph(f"{small(name)}backward={rule}}}")


def reads_of(graph):
    """Node id to the names of the values it reads."""
    return {node.id: {graph.value_name(v) for v in node.inputs} for node in graph.nodes}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_graph_is_sound(name, rule):
    graph = graph_of(name, rule)
    order = [Phase.FORWARD, Phase.LOSS, Phase.BACKWARD]
    phases = [order.index(node.phase) for node in graph.nodes]
    assert phases == sorted(phases)
    assert phases.count(1) == (0 if rule == "none" else 1)
    assert len({node.id for node in graph.nodes}) == len(graph.nodes)
    assert all(node.op for node in graph.nodes)
    assert all(node.cost > 0 for node in graph.nodes)
    assert all(size > 0 for node in graph.nodes for size in node.outputs)
    assert all(max(node.inputs, default=-1) < graph.first_value[i] for i, node in enumerate(graph.nodes))
    assert len(graph.outputs) == 1
    if rule != "checkmate":  # the rule makes gradients that nothing reads: of layers that read only the input
        unread = {v for v, readers in enumerate(graph.readers) if not readers}
        assert unread == set(graph.outputs)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ARCHITECTURES.names())
def test_the_same_specification_gives_the_same_graph(name, rule):
    spec = name if name == "unit-chain" else f"{small(name)}backward={rule}}}"
    assert build_graph(spec) == build_graph(spec)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_checkmate_rule_is_followed_to_the_letter(name):
    graph = graph_of(name, "checkmate")
    forward = graph_of(name, "none")
    n = len(forward.nodes)
    assert graph.nodes[:n] == forward.nodes
    loss, backward = graph.nodes[n], graph.nodes[n + 1 :]
    assert loss.phase is Phase.LOSS
    differentiable = [node for node in forward.nodes if node.op not in NO_GRADIENT]
    assert [node.id for node in backward] == [f"grad/{node.id}" for node in reversed(differentiable)]
    index = {node.id: i for i, node in enumerate(graph.nodes)}
    users = [set() for _ in range(n)]
    for j in range(n + 1):
        for value in graph.nodes[j].inputs:
            users[graph.producer[value]].add(j)
    for i in [i for i in range(n) if graph.nodes[i].op not in NO_GRADIENT]:
        node, gradient = graph.nodes[i], graph.nodes[index[f"grad/{graph.nodes[i].id}"]]
        read_nodes = {i} | users[i] | {index[f"grad/{graph.nodes[j].id}"] for j in users[i] if j < n}
        assert set(gradient.inputs) == {v for k in read_nodes for v in graph.values_of(k)}
        assert gradient.cost == 2 * node.cost
        assert sum(gradient.outputs) == sum(node.outputs)
    assert graph.outputs == (graph.first_value[-1] - 1,)


def test_a_chain_under_the_checkmate_rule_written_out():
    reads = reads_of(build_graph("linear{n=3}"))
    assert reads == {
        "layer1": set(),
        "layer2": {"layer1:0"},
        "layer3": {"layer2:0"},
        "loss": {"layer3:0"},
        "grad/layer3": {"layer3:0", "loss:0"},
        "grad/layer2": {"layer2:0", "layer3:0", "grad/layer3:0"},
        "grad/layer1": {"layer1:0", "layer2:0", "grad/layer2:0"},
    }


# What the derivative of each operation reads of its layer's inputs ("in0") and values ("out0").
DERIVATIVE_READS = {
    "conv2d": {"in0"},
    "depthwise_conv2d": {"in0"},
    "conv2d_transpose": {"in0"},
    "dense": {"in0"},
    "tied_dense": {"in0"},
    "relu": {"out0"},
    "relu6": {"out0"},
    "max_pool": {"in0", "out0"},
    "max_pool_indices": {"out1"},
    "max_unpool": {"in1"},
    "avg_pool": set(),
    "global_avg_pool": set(),
    "batch_norm": {"in0", "out1", "out2"},
    "layer_norm": {"in0", "out1", "out2"},
    "concat": set(),
    "flatten": set(),
    "dropout": {"out1"},
    "softmax": {"out0"},
    "gelu": {"in0"},
    "matmul": {"in0", "in1"},
    "split_heads": set(),
    "merge_heads": set(),
    "embedding": set(),
    "add_positions": set(),
    "cross_entropy": {"out1"},
    "squared_error": {"in0"},
    "upsample": set(),
    "zero_padding": set(),
    "pow": {"in0"},
    "mean": set(),
    "rsqrt": {"out0"},
    "mul": {"in0", "in1"},
    "mul_weight": {"in0"},
    "mul_table": {"in1"},
    "rotate_half": set(),
    "repeat_heads": set(),
    "scale": set(),
    "silu": {"in0"},
}
VALUES_MADE = {"batch_norm": 3, "layer_norm": 3, "dropout": 2, "max_pool_indices": 2, "cross_entropy": 2}
PASSED_ON = {"add", "add_waves", "add_mask"}
# How many forward computations the derivative costs; without a gradient of the input, one less.
COST = {"conv2d": 2, "depthwise_conv2d": 2, "conv2d_transpose": 2, "dense": 2, "tied_dense": 2, "matmul": 2}
COST |= {"batch_norm": 2, "layer_norm": 2, "mul": 2, "mul_weight": 2}


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "linear"])
def test_the_operator_rule_reads_what_derivatives_read(name):
    graph = graph_of(name, "operator")
    nodes = {node.id: node for node in graph.nodes}
    reads = reads_of(graph)
    seen = set()
    for node in graph.nodes:
        if node.phase is Phase.BACKWARD:
            continue
        seen.add(node.op)
        assert len(node.outputs) == VALUES_MADE.get(node.op, 1)
        gradient = nodes.get(f"grad/{node.id}")
        if node.op in PASSED_ON | NO_GRADIENT:
            assert gradient is None
            continue
        inputs = [graph.value_name(v) for v in node.inputs]
        names = {f"in{k}": value for k, value in enumerate(inputs)}
        names |= {f"out{k}": f"{node.id}:{k}" for k in range(len(node.outputs))}
        expected = {names[key] for key in DERIVATIVE_READS[node.op] if key in names}
        forward_reads = {
            value for value in reads[gradient.id] if nodes[value.split(":")[0]].phase is not Phase.BACKWARD
        }
        assert forward_reads == expected, node.id
        arriving = reads[gradient.id] - forward_reads
        assert len(arriving) == (0 if node.phase is Phase.LOSS else 1)
        factor = COST.get(node.op, 1) - (1 if not node.inputs and node.op in COST else 0)
        assert gradient.cost == factor * node.cost
    assert seen - PASSED_ON - NO_GRADIENT <= set(DERIVATIVE_READS)


def test_networks_use_every_operation_of_the_table():
    used = {layer.op for name in NETWORKS if name != "linear" for layer in architecture(name).network().layers}
    assert used | {"cross_entropy", "squared_error"} == set(DERIVATIVE_READS) | PASSED_ON | NO_GRADIENT


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_as_large_as_what_they_belong_to_and_all_arrive(name):
    """Every reader of a value delivers its part of the gradient, and the parts are summed pairwise."""
    graph = graph_of(name, "operator")
    nodes = {node.id: node for node in graph.nodes}
    first_size = {node.id: node.outputs[0] for node in graph.nodes if node.phase is not Phase.BACKWARD}
    network = architecture(f"{small(name)}backward=operator}}")
    layers = network.network().layers if name != "linear" else []
    # Every reader of a layer's first value delivers one part per reading, if the layer needs a gradient at all.
    parts = Counter()
    for layer in layers:
        parts.update(t.layer for t in layer.inputs if t.slot == 0)
    for i, layer in [(i, layer) for i, layer in enumerate(layers) if layer.op not in NO_GRADIENT]:
        sums = [key for key in nodes if key == f"accumulate/{layer.id}" or key.startswith(f"accumulate/{layer.id}/")]
        sums = [key for key in sums if key == f"accumulate/{layer.id}" or key.rsplit("/", 1)[1].isdigit()]
        assert len(sums) == max(0, parts[i] - 1), layer.id
        for key in sums:
            assert nodes[key].outputs == (first_size[layer.id],)
            assert len(nodes[key].inputs) == 2
            assert all(graph.size[v] == first_size[layer.id] for v in nodes[key].inputs)


def test_a_residual_block_under_the_operator_rule_written_out():
    x = Network("block").input(1, 2, 4, 4)
    a = image.conv2d("a", x, 2, 3)
    b = common.relu("b", a)
    c = image.conv2d("c", b, 2, 3)
    d = common.add("d", b, c)
    e = common.dropout("e", d)
    network = common.cross_entropy(common.dense("f", image.global_avg_pool("p", e), 3))
    graph = to_graph(network, Backward.OPERATOR)
    assert reads_of(graph) == {
        "a": set(),
        "b": {"a:0"},
        "c": {"b:0"},
        "d": {"b:0", "c:0"},
        "e": {"d:0"},
        "p": {"e:0"},
        "f": {"p:0"},
        "loss": {"f:0"},
        "grad/loss": {"loss:1"},
        "grad/f": {"p:0", "grad/loss:0"},
        "grad/p": {"grad/f:0"},
        "grad/e": {"e:1", "grad/p:0"},
        "grad/c": {"b:0", "grad/e:0"},
        "accumulate/b": {"grad/e:0", "grad/c:0"},
        "grad/b": {"b:0", "accumulate/b:0"},
        "grad/a": {"grad/b:0"},
    }
    nodes = {node.id: node for node in graph.nodes}
    assert nodes["grad/a"].outputs == ()  # only the weights' gradient, in fixed memory
    assert nodes["grad/a"].cost == nodes["a"].cost
    assert nodes["grad/c"].cost == 2 * nodes["c"].cost
    assert nodes["e"].outputs == (128, 32)
    assert nodes["loss"].outputs == (4, 12)
    assert [graph.value_name(v) for v in graph.outputs] == ["loss:0"]


def test_a_value_read_twice_by_one_layer_gets_both_parts():
    a = image.conv2d("a", Network("twice").input(1, 2, 4, 4), 2, 3)
    network = common.cross_entropy(common.flatten("f", common.add("b", a, a)))
    reads = reads_of(to_graph(network, Backward.OPERATOR))
    assert reads["accumulate/a"] == {"grad/f:0"}
    assert reads["grad/a"] == {"accumulate/a:0"}


def test_no_gradient_is_made_before_the_first_weights():
    pooled = image.max_pool("p", Network("late").input(1, 2, 4, 4), 2, stride=2)
    network = common.cross_entropy(common.flatten("f", image.conv2d("c", pooled, 2, 1)))
    graph = to_graph(network, Backward.OPERATOR)
    assert "grad/p" not in {node.id for node in graph.nodes}
    last = graph.nodes[-1]
    assert (last.id, last.outputs) == ("grad/c", ())
    assert {graph.value_name(v) for v in last.inputs} == {"p:0", "grad/f:0"}


def test_fused_activations_add_their_output_to_what_is_read():
    reads = reads_of(build_graph("vgg16{batch=1,backward=operator,fused=true}"))
    assert reads["grad/conv2_1"] == {"pool1:0", "conv2_1:0", "grad/conv2_2:0"}
    assert reads["grad/fc8"] == {"fc7:0", "grad/loss:0"}


def test_concatenation_splits_its_gradient():
    graph = build_graph("densenet121{batch=1,backward=operator}")
    nodes = {node.id: node for node in graph.nodes}
    split = nodes["grad/block1_1/concat"]
    assert split.outputs == (64 * 56 * 56 * 4, 32 * 56 * 56 * 4)
    assert split.cost == nodes["block1_1/concat"].cost


def test_both_losses_reach_inception():
    for rule in ("checkmate", "operator"):
        graph = build_graph(f"inception-v3{{batch=1,auxiliary=true,backward={rule}}}")
        assert reads_of(graph)["loss"] == {"fc:0", "aux/fc:0"}
    nodes = {node.id: node for node in graph.nodes}
    assert nodes["grad/loss"].outputs == (4000, 4000)
    assert "grad/aux/1x1/conv" in nodes


@pytest.mark.parametrize("name", NETWORKS)
def test_fixed_memory_is_inputs_and_twice_the_parameters(name):
    if name == "linear":
        assert graph_of(name, "checkmate").fixed_memory == 0
        return
    network = architecture(f"{small(name)}backward=none}}").network()
    parameters = network.parameters * (2 if name == "llama" else 4)
    assert graph_of(name, "checkmate").fixed_memory == network.input_bytes + 2 * parameters
    assert graph_of(name, "operator").fixed_memory == network.input_bytes + 2 * parameters
    assert graph_of(name, "none").fixed_memory == network.input_bytes + parameters


def test_numbers_of_the_fixed_memory():
    # VGG16: 256 images of 3x224x224 and 138,357,544 parameters and gradients, 4 bytes each.
    assert build_graph("vgg16").fixed_memory == 256 * 3 * 224 * 224 * 4 + 2 * 138_357_544 * 4
    # GPT-2: 8 sequences of 1024 indices of 8 bytes.
    assert build_graph("gpt2").fixed_memory == 8 * 1024 * 8 + 2 * 124_439_808 * 4
    assert build_graph("gpt2{dtype_bytes=2}").fixed_memory == 8 * 1024 * 8 + 2 * 124_439_808 * 2
