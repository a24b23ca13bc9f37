"""AOTAutograd, as ``compat/aot_autograd.py`` says they are."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from remat_cli.frontends.torch.compat import (
    aot_autograd,
    distributed,
)


def test_meshes_are_opaque_inputs():
    seen = []

    def partition(joint, inputs, **options):
        seen.extend(node.meta["val"] for node in joint.graph.find_nodes(op="placeholder"))
        return aot_autograd.default_split(joint, inputs, **options)

    def backend(graph_module, inputs):
        return aot_autograd.aot(graph_module, inputs, compiler=aot_autograd.as_given, partition=partition)

    with distributed.fake_group(2):
        mesh = init_device_mesh("cpu", (2,))
        weight = nn.Parameter(distribute_tensor(torch.zeros(4), mesh, [Shard(0)]))
        torch.compile(lambda w: (w * w).to_local(), backend=backend)(weight)
        torch.compiler.reset()
    assert [distributed.is_opaque(value) for value in seen] == [False, True, False][: len(seen)]


def test_aot_asks_for_the_split_and_tells_what_inputs_and_outputs_are():
    seen = []

    def partition(joint, joint_inputs, *, num_fwd_outputs, **options):
        kinds = aot_autograd.descriptors()
        places = [node.meta["desc"] for node in joint.graph.find_nodes(op="placeholder")]
        [output] = joint.graph.find_nodes(op="output")
        assert isinstance(places[0], kinds.PlainAOTInput)
        assert isinstance(places[-1], kinds.TangentAOTInput)
        assert isinstance(places[-1].output, kinds.PlainAOTOutput)
        assert any(isinstance(found, kinds.InputMutationAOTOutput) for found in output.meta["desc"])
        seen.append(num_fwd_outputs)
        return aot_autograd.default_split(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **options)

    def backend(graph_module, inputs):
        return aot_autograd.aot(graph_module, inputs, compiler=aot_autograd.as_given, partition=partition)

    count, x = torch.zeros(()), torch.ones(3, requires_grad=True)

    def step(given):
        count.add_(1)
        return (given.sin() * given).sum()

    torch.compiler.reset()
    loss = torch.compile(step, backend=backend, dynamic=False)(x)
    loss.backward()
    [forward_outputs] = seen
    assert forward_outputs == 2
    assert torch.allclose(x.grad, x.sin() + x * x.cos())
    assert count == 1
    torch.compiler.reset()


def test_compiled_functions_may_empty_their_list():
    """AOTAutograd hands its own list to what has the mark, and a copy to what has not."""
    marked = aot_autograd.takes_its_arguments(lambda args: [args.pop()])
    given = [3]
    assert marked(given) == [3]
    assert given == []
    assert marked._boxed_call is True
    module = torch.fx.symbolic_trace(torch.nn.ReLU())
    assert torch.equal(aot_autograd.as_given(module, None)([torch.ones(2)]), torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_gradient_of_dropout_is_two_products(dtype):
    gradient, mask = torch.randn(32, 17, dtype=dtype), torch.rand(32, 17) > 0.15
    kernel = torch.ops.aten.native_dropout_backward(gradient, mask, 1 / 0.85)
    assert torch.equal(aot_autograd.dropout_backward(gradient, mask, 1 / 0.85), kernel)


def gradients(step, x, look):
    """The gradient of ``x`` in eager mode, and as AOTAutograd captures the step; ``look`` is given its graphs."""

    def compiler(graph_module, inputs):
        look(graph_module.graph)
        return aot_autograd.as_given(graph_module, inputs)

    def backend(graph_module, inputs):
        return aot_autograd.aot(graph_module, inputs, compiler=compiler, partition=aot_autograd.default_split)

    for function in (step, torch.compile(step, backend=backend)):
        x = x.detach().requires_grad_()
        function(x).backward()
        yield x.grad


@pytest.mark.parametrize("mode", ["linear", "bilinear", "trilinear", "bicubic", "nearest", "nearest-exact"])
def test_interpolation_is_one_operator_with_the_bits_of_eager_mode(fresh_compiler, mode):
    sizes = {"linear": 1, "trilinear": 3}.get(mode, 2)
    found = []

    def step(x):
        return torch.nn.functional.interpolate(x, scale_factor=1.7, mode=mode).square().sum()

    def look(graph):
        found.extend(node for node in graph.nodes if node.op == "call_function" and "upsample" in str(node.target))

    assert torch.equal(*gradients(step, torch.randn(2, 3, *[5] * sizes), look))
    assert len(found) == 2  # forward and backward
    python = torch.ops.aten.upsample_bilinear2d.vec.py_kernels
    before = dict(python)
    with aot_autograd.whole_interpolation():
        assert len(python) < len(before)
    assert python == before


@pytest.mark.parametrize("options", [{"p": 0.0}, {"p": 0.3, "training": False}, {"p": 0.0, "inplace": True}])
def test_a_dropout_that_drops_nothing_returns_its_input_as_in_eager_mode(fresh_compiler, options):
    found = []

    def step(x):
        y = x * 2
        z = torch.nn.functional.dropout(y, **options)
        z.add_(1)  # both of them
        return (y * torch.nn.functional.dropout(z.sin(), **options)).sum()

    def look(graph):
        found.extend(graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default))

    assert torch.equal(*gradients(step, torch.randn(4, 3), look))
    assert not found


def test_a_dropout_that_drops_something_stays():
    def graph_of(**options):
        graph = torch.fx.symbolic_trace(lambda x: torch.nn.functional.dropout(x, **options))
        aot_autograd.leave_out_idle_dropout(graph)
        return len(graph.graph.find_nodes(op="call_function", target=torch.nn.functional.dropout))

    assert [graph_of(), graph_of(p=0.1), graph_of(p=0.0), graph_of(training=False)] == [1, 1, 0, 0]


def test_the_gradient_of_a_layer_norm_is_that_of_a_contiguous_copy():
    gradient, x = torch.randn(6, 4, 5).permute(1, 2, 0), torch.randn(4, 5, 6)
    weight, bias = torch.randn(6), torch.randn(6)
    _, mean, deviation = torch.ops.aten.native_layer_norm(x, [6], weight, bias, 1e-5)
    rest = ([6], mean, deviation, weight, bias, [True, True, True])
    kernel = torch.ops.aten.native_layer_norm_backward(gradient, x, *rest)
    ours = aot_autograd.layer_norm_backward(gradient, x, *rest)
    assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(ours, kernel, strict=True))
    assert kernel[0].is_contiguous()
    assert aot_autograd.layer_norm_backward(gradient.contiguous(), x, *rest) is NotImplemented
    assert aot_autograd.layer_norm_backward(gradient, x.permute(1, 0, 2), *rest) is NotImplemented


@pytest.mark.filterwarnings("default:`torch.jit:DeprecationWarning")  # Inductor's own, where it is first imported
def test_inputs_without_their_sizes_have_other_places():
    known = aot_autograd.descriptors()
    given = known.PlainAOTInput(4)
    assert aot_autograd.renumbered(given, {4: 2}) == known.PlainAOTInput(2)
    written = aot_autograd.renumbered(known.InputMutationAOTOutput(given), {4: 2})
    assert written == known.InputMutationAOTOutput(known.PlainAOTInput(2))
    result = known.PlainAOTOutput(4)
    assert aot_autograd.renumbered(result, {4: 2}) is result
