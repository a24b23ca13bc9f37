"""What is no loss of arrays is refused with hints that work: models of equinox, and whole training steps."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax_plans
import numpy as np
import optax
import pytest
from jax_plans import plain

import remat_cli.frontends.jax as remat_jax
from remat_cli.errors import CaptureFailed

OPTIMIZER = optax.adam(0.01)


def model_and_batch():
    model = eqx.nn.MLP(6, 3, 16, 2, key=jax.random.key(0))
    return model, jax.random.normal(jax.random.key(1), (8, 6)), jnp.arange(8) % 3


def exported(*returned):
    return jax_plans.exported(lambda: returned)


def whole_loss(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(x), y).mean()


def test_a_model_of_equinox_is_refused_with_a_hint_that_works():
    model, x, y = model_and_batch()
    with pytest.raises(CaptureFailed, match=r"the argument 0\.activation is no array but .* relu") as told:
        exported(whole_loss, (model, x, y))
    assert "arrays, static = eqx.partition(model, eqx.is_array)" in told.value.hint
    assert "model = eqx.combine(arrays, static)" in told.value.hint
    arrays, static = eqx.partition(model, eqx.is_array)

    def loss(arrays, x, y):
        model = eqx.combine(arrays, static)
        return whole_loss(model, x, y)

    plan = plain(exported(loss, (arrays, x, y)))
    found = remat_jax.value_and_grad(loss, plan=plan)(arrays, x, y)
    wanted = eqx.filter_jit(eqx.filter_value_and_grad(whole_loss))(model, x, y)
    mine, others = (jax.tree_util.tree_leaves(eqx.filter(tree, eqx.is_array)) for tree in (found, wanted))
    assert len(mine) == len(others) == 7
    for one, other in zip(mine, others, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-5, atol=2e-6)


def test_a_training_step_is_refused_with_a_hint_that_works():
    model, x, y = model_and_batch()
    start, static = eqx.partition(model, eqx.is_array)

    def loss(arrays, x, y):
        return whole_loss(eqx.combine(arrays, static), x, y)

    def step_with(value_and_grad):
        def step(arrays, state, x, y):
            value, gradients = value_and_grad(arrays, x, y)
            updates, state = OPTIMIZER.update(gradients, state)
            return optax.apply_updates(arrays, updates), state, value

        return step

    step = step_with(jax.value_and_grad(loss))
    state = OPTIMIZER.init(start)
    with pytest.raises(CaptureFailed, match="the function returns tuple of 3, and not a loss") as told:
        exported(step, (start, state, x, y))
    assert "plans are for the loss function, not for a training step" in told.value.hint
    planned = step_with(remat_jax.value_and_grad(loss, plan=plain(exported(loss, (start, x, y)))))
    found, wanted = planned(start, state, x, y), step(start, state, x, y)
    for one, other in zip(*map(jax.tree_util.tree_leaves, (found, wanted)), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-3, atol=1e-5)


def test_an_auxiliary_result_without_its_option_is_refused_with_a_hint_that_works():
    def loss(x):
        return x.sum(), x

    with pytest.raises(CaptureFailed, match="the function returns tuple of 2") as told:
        exported(loss, (jnp.ones(2),))
    assert "{'has_aux': True}" in told.value.hint
    assert exported(loss, (jnp.ones(2),), {"has_aux": True}).nodes


def test_an_argument_that_is_a_text_is_named():
    with pytest.raises(CaptureFailed, match=r"the argument 0\.mode is no array but str, and 1 more"):
        exported(lambda a: a["x"].sum(), ({"x": jnp.ones(2), "mode": "fast", "zero": "one"},))
