"""Training by plan: equal to the same operations without recomputation, in the user's own loop."""

from dataclasses import replace

import jax
import jax_models
import numpy as np
import optax
import pytest
from jax_plans import graph_of, plain, plan_of, repeated

from remat_cli.errors import UsageError
from remat_cli.frontends.jax import value_and_grad
from remat_cli.graph.io import document_text
from remat_cli.plan.io import plan_to_document


def trained(step, arguments, optimizer, steps=4):
    """Parameters, optimizer state and batch statistics after some steps."""
    parameters, state, *batch, key = arguments
    kept = optimizer.init(parameters)
    update = jax.jit(optimizer.update)
    losses = []
    for _ in range(steps):
        (loss, (state, key)), gradients = step(parameters, state, *batch, key)
        changes, kept = update(gradients, kept, parameters)
        parameters = optax.apply_updates(parameters, changes)
        losses.append(loss)
    return jax.tree_util.tree_leaves((parameters, kept, state, losses, jax.random.key_data(key)))


def same(ones, others):
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(ones, others, strict=True))


@pytest.mark.parametrize("optimizer", [optax.adam(1e-2), optax.sgd(1e-2, momentum=0.9)], ids=["adam", "sgd"])
def test_training_by_plan_equals_training_without_recomputation(optimizer):
    """Auxiliary results, batch statistics, typed keys that the step itself splits."""
    function, arguments, options = jax_models.cnn()
    graph = graph_of("cnn")
    planned = value_and_grad(function, plan=plan_of(graph, repeated(graph)), **options)
    bare = value_and_grad(function, plan=plain(graph), **options)
    ours, others = (trained(step, arguments, optimizer) for step in (planned, bare))
    assert same(ours, others)
    if optimizer.init({}) and len(ours) == len(others):
        wanted = trained(jax.jit(jax.value_and_grad(function, **options)), arguments, optimizer, steps=1)
        found = trained(bare, arguments, optimizer, steps=1)
        np.testing.assert_allclose(float(found[-2]), float(wanted[-2]), rtol=1e-5)


def test_a_plan_in_a_file_and_several_arguments(tmp_path):
    function, arguments, options = jax_models.mixed()
    file = tmp_path / "plan.json"
    file.write_text(document_text(plan_to_document(plain(graph_of("mixed"))), "json"), encoding="utf-8")
    loss, gradients = value_and_grad(function, **options, plan=file)(*arguments)
    assert loss.shape == ()
    assert [gradient.shape for gradient in gradients] == [(16, 16), (16, 2)]


def test_numbers_are_those_of_the_call():
    function, (parameters, x, y) = jax_models.mlp()
    step = value_and_grad(function, plan=plain(graph_of("mlp")))
    first, second = step(parameters, x, y)[0], step(parameters, 2 * x, y)[0]
    np.testing.assert_allclose([first, second], [function(parameters, x, y), function(parameters, 2 * x, y)], rtol=1e-5)
    assert len(step.prepared) == 1


@pytest.mark.parametrize(
    "around",
    [
        jax.jit,
        lambda step: jax.vmap(step, in_axes=(None, None, 0), axis_size=8),
        lambda step: jax.jit(lambda *given: step(*jax_models.mlp()[1])),
        lambda step: jax.grad(lambda *given: step(*given)[0]),
    ],
    ids=["jit", "vmap", "inside", "grad"],
)
def test_other_transformations_around_it_are_refused_with_the_reason(around):
    function, arguments = jax_models.mlp()
    step = value_and_grad(function, plan=plain(graph_of("mlp")))
    with pytest.raises(UsageError, match=r"inside another transformation of JAX.*XLA would undo"):
        around(step)(*arguments)


def test_other_shapes_are_refused():
    function, (parameters, x, y) = jax_models.mlp()
    step = value_and_grad(function, plan=plain(graph_of("mlp")))
    with pytest.raises(UsageError, match=r"1 has the shape \[8, 16\] there and \[4, 16\] here"):
        step(parameters, x[:4], y[:4])


def test_another_function_of_the_same_shapes_is_refused():
    function, arguments = jax_models.mlp()
    step = value_and_grad(lambda *a: 2 * function(*a), plan=plain(graph_of("mlp")))
    with pytest.raises(UsageError, match=r"computes something else|has .* operations"):
        step(*arguments)


def test_a_plan_of_another_graph_is_refused():
    function, arguments = jax_models.mlp()
    with pytest.raises(UsageError, match="for another graph"):
        value_and_grad(function, plan=plain(graph_of("layers")))(*arguments)


def test_other_options_than_those_of_the_export_are_refused():
    function, arguments, _ = jax_models.mixed()
    with pytest.raises(UsageError, match="for another graph"):
        value_and_grad(function, argnums=0, plan=plain(graph_of("mixed")))(*arguments)


def test_a_plan_that_is_not_valid_is_refused():
    function, _ = jax_models.mlp()
    plan = plain(graph_of("mlp"))
    with pytest.raises(UsageError, match="the plan is not valid"):
        value_and_grad(function, plan=replace(plan, statements=plan.statements[:-1]))


def test_arguments_by_name():
    function, (parameters, x, y) = jax_models.mlp()
    step = value_and_grad(function, plan=plain(graph_of("mlp")))
    with pytest.raises(UsageError, match=r"x there is 1 here|1 there is x here"):
        step(parameters, x=x, y=y)
