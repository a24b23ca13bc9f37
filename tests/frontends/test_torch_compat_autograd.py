"""Nodes of autograd, as ``compat/autograd.py`` says they are."""

import pytest
import torch

from remat_cli.frontends.torch.compat import (
    aot_autograd,
    autograd,
    operators,
)


def test_the_node_behind_results_and_their_views():
    module = torch.nn.Linear(2, 2)

    def step(x):
        out = module(x)
        return out.sum(), out.view(1, 4)[:, :2], out.t()

    compiled = torch.compile(step, backend="aot_eager", dynamic=False)
    number, view, _ = compiled(torch.ones(2, 2))
    node, position, direct = autograd.compiled_node(number)
    assert (position, direct) == (0, True)
    behind, position, direct = autograd.compiled_node(view)
    assert behind is node
    assert (position, direct) == (3, False)  # the memory that it is a view of
    assert autograd.compiled_node(torch.ones(2)) is None
    assert autograd.compiled_node(module.weight.sum()) is None


def test_the_node_of_autograd_that_runs():
    running = []

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            running.append(autograd.running_node())
            return gradient

    result = Own.apply(torch.ones(3, requires_grad=True))
    assert autograd.running_node() is None
    result.sum().backward()
    assert running == [result.grad_fn]


def test_nodes_of_autograd_tell_what_they_keep_and_make():
    weight, x = torch.nn.Parameter(torch.ones(3, 4)), torch.ones(2, 3)
    product = x @ weight
    later = product.exp()
    node, after = product.grad_fn, later.grad_fn
    assert autograd.made_at(node) < autograd.made_at(after)
    assert list(autograd.nodes_behind([None, after])) == [after, node, node.next_functions[1][0]]
    assert [tensor.shape for tensor in autograd.kept_by(node)] == [x.shape]  # the weight is not needed for its gradient
    assert [tensor.data_ptr() for tensor in autograd.kept_by(after)] == [later.data_ptr()]
    assert autograd.gradient_sizes(node) == (2 * 4 * 4, 3 * 4 * 4)
    assert autograd.gradient_bytes(node, 0) == autograd._bytes_of(node._input_metadata[0]) == product.nbytes
    assert autograd.gradient_bytes(node, 1) == 0  # it has one result
    [gradient] = autograd.gradients_for(node)
    assert gradient.shape == product.shape
    assert not gradient.is_contiguous()
    assert node(gradient)[1].shape == weight.shape
    assert [gradient.shape for gradient in autograd.gradients_for(later.sum().grad_fn)] == [()]
    assert autograd.parameter_of(node) is None
    assert autograd.parameter_of(node.next_functions[1][0]) is weight
    product.exp_()
    assert autograd.kept_by(torch.ones(2, requires_grad=True).exp().add_(1).grad_fn) == []


def test_whether_tangents_can_be_freed():
    """As seen from inside a backward function of a compiled graph, after it has emptied its arguments."""
    freed = []

    def compiler(graph, _inputs):
        from functorch.compile import make_boxed_func

        if not any("tangent" in str(node.target) for node in graph.graph.find_nodes(op="placeholder")):
            return make_boxed_func(graph.forward)

        def backward(args):
            reference = operators.weak_storage(args[-1])
            shape = args[-1].shape
            args.clear()
            freed.append(reference.expired())
            return [torch.zeros(shape)]

        return aot_autograd.takes_its_arguments(backward)

    def backend(graph, inputs):
        return aot_autograd.aot(graph, inputs, compiler=compiler, partition=aot_autograd.default_split)

    x = torch.ones(8, requires_grad=True)
    out = torch.compile(lambda y: y.exp(), backend=backend, dynamic=False)(x)
    (out * torch.arange(8.0)).sum().backward()
    assert freed == [autograd.frees_tangents()]


def test_the_words_for_a_tensor_that_was_changed_in_place():
    x = torch.ones(2, requires_grad=True)
    kept = x * 2
    out = (kept * kept).sum()
    with torch.no_grad():
        kept.add_(1)
    with pytest.raises(RuntimeError) as raised:
        out.backward()
    assert autograd.was_changed_in_place(raised.value)
    assert not autograd.was_changed_in_place(RuntimeError("another"))


def test_gradients_of_gradients_of_a_compiled_graph(fresh_compiler):
    x = torch.ones(3, requires_grad=True)
    compiled = torch.compile(lambda x: (x**3).sum(), backend="aot_eager")
    (first,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    assert autograd.has_second_gradient([first])
    (plain,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    assert not autograd.has_second_gradient([plain])
    with pytest.raises(RuntimeError) as raised:
        first.sum().backward()
    assert autograd.refuses_second_gradient(raised.value)
    assert not autograd.refuses_second_gradient(RuntimeError("another"))
