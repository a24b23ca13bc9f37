"""Small steps that hold what steps hold: ``build()`` functions as a user writes them."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np


def _normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32) * 0.3)


def mlp():
    def loss(parameters, x, y):
        for layer in parameters[:-1]:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        return jnp.square(x @ parameters[-1]["w"] + parameters[-1]["b"] - y).mean()

    sizes = (16, 32, 24, 1)
    parameters = [{"w": _normal(k, a, b), "b": jnp.zeros(b)} for k, (a, b) in enumerate(pairwise(sizes))]
    return loss, (parameters, _normal(7, 8, 16), _normal(8, 8, 1))


def deep():
    """Ten equal layers, whose activations are larger than their weights."""

    def loss(parameters, x):
        for w in parameters:
            x = jnp.tanh(x @ w) + 1
        return jnp.square(x).mean()

    return loss, ([_normal(k, 16, 16) for k in range(10)], _normal(99, 256, 16))


def cnn():
    """Batch norm with running means as an auxiliary result, dropout, strides, a pooling layer."""

    def loss(parameters, state, x, labels, key):
        means = []
        for layer, mean in zip(parameters["blocks"], state, strict=True):
            x = jax.lax.conv_general_dilated(
                x, layer["w"], layer_strides(layer), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            batch_mean = x.mean((0, 1, 2))
            x = (x - batch_mean) * jax.lax.rsqrt(jnp.square(x - batch_mean).mean((0, 1, 2)) + 1e-5) * layer["scale"]
            x = jax.nn.relu(x)
            key, own = jax.random.split(key)
            x = jnp.where(jax.random.bernoulli(own, 0.9, x.shape), x / 0.9, 0.0)
            means.append(0.9 * mean + 0.1 * batch_mean)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        logits = x.reshape(x.shape[0], -1) @ parameters["dense"]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], -1).mean(), (means, key)

    def layer_strides(layer):
        return (2, 2) if layer["w"].shape[2] > 3 else (1, 1)

    blocks = [{"w": _normal(1, 3, 3, 3, 8), "scale": jnp.ones(8)}, {"w": _normal(2, 3, 3, 8, 8), "scale": jnp.ones(8)}]
    parameters = {"blocks": blocks, "dense": _normal(3, 4 * 4 * 8, 5)}
    arguments = (parameters, [jnp.zeros(8)] * 2, _normal(4, 4, 16, 16, 3), jnp.arange(4) % 5, jax.random.key(3))
    return loss, arguments, {"has_aux": True}


def transformer():
    """Two layers with attention, layer norm, dropout, gelu and an embedding."""
    from remat_cli.frontends.jax import models as model

    shapes = model.transformer_shapes(depth=2, width=16, sequence=8, vocab=12)
    leaves, structure = jax.tree_util.tree_flatten(shapes)
    parameters = structure.unflatten([_normal(k, *leaf.shape) for k, leaf in enumerate(leaves)])
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 12, (4, 8)))

    def loss(parameters, tokens, targets, key):
        return model.transformer_loss(parameters, tokens, targets, key, heads=2, dropout=0.1)

    return loss, (parameters, tokens, tokens, jax.random.key(0))


def layers():
    """A scan over four layers, with their parameters in one array."""

    def loss(parameters, x):
        def layer(x, own):
            return jnp.tanh(x @ own["w"]) + x, x.sum()

        x, sums = jax.lax.scan(layer, x, parameters)
        return x.sum() + jnp.square(sums).mean()

    return loss, ({"w": _normal(0, 4, 8, 8)}, _normal(1, 5, 8))


def control():
    """A long scan, a while loop, a condition, and functions with derivatives of their own."""

    @jax.custom_vjp
    def halved(x):
        return x / 2

    halved.defvjp(lambda x: (x / 2, x.shape), lambda shape, ct: (ct / 2,))

    def loss(w, x):
        x = jax.lax.scan(lambda c, xs: (jnp.tanh(c @ w + xs), None), x, jnp.ones((70, 3, 4)))[0]
        turns = jax.lax.while_loop(lambda n: n < 3, lambda n: n + 1, jnp.int32(0))
        x = jax.lax.cond(turns > 2, jnp.sin, jnp.cos, x) * turns
        return (halved(x) @ w).sum() + jax.nn.relu(x).sum()

    return loss, (_normal(0, 4, 4), _normal(1, 3, 4))


def mixed():
    """Products in bfloat16, the loss in float32, by two arguments."""

    def loss(w, x, v):
        hidden = jax.nn.silu(x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16))
        return jnp.square(hidden.astype(jnp.float32) @ v).mean()

    return loss, (_normal(0, 16, 16), _normal(1, 8, 16), _normal(2, 16, 2)), {"argnums": (0, 2)}


def decomposed():
    """Operations that XLA leaves to LAPACK."""

    def loss(a, b):
        square = a @ a.T + 5 * jnp.eye(4)
        solved = jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(square), b)
        return jnp.linalg.slogdet(square)[1] + solved.sum() + jnp.sort(b, 0)[0].sum()

    return loss, (_normal(0, 4, 4), _normal(1, 4, 2))


def flax_module():
    """A module of flax, whose parameters are a state of its own kind."""
    from flax import nnx

    layers = nnx.Linear(4, 8, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(8, 1, rngs=nnx.Rngs(1))
    definition, state = nnx.split(nnx.Sequential(*layers))
    return (lambda state, x: nnx.merge(definition, state)(x).sum()), (state, _normal(0, 3, 4))


def checkpointed():
    """As users write it by hand; and arrays that the code refers to, a small and a large one."""
    table, large = jnp.arange(4.0), _normal(9, 160, 128)

    def loss(parameters, x):
        for w in parameters:
            x = jax.checkpoint(lambda x, w: jnp.sin(x @ w))(x, w)
        return (x * table).sum() + (large @ jnp.ones(128)).sum() * x[0, 0] + 2.5

    return loss, ([_normal(0, 4, 4), _normal(1, 4, 4)], _normal(2, 6, 4))


ALL = ("mlp", "deep", "cnn", "transformer", "layers", "control", "mixed", "checkpointed", "decomposed", "flax_module")
