"""A language model: a decoder with learned positions, normalisation before attention and before the wide layer."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

Parameters = dict[str, Any]


def shapes(depth: int, width: int, sequence: int, vocab: int) -> Parameters:
    """Shapes of the parameters."""

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    layer = {
        "attention": {"scale": array(width), "shift": array(width), "in": array(width, 3 * width)},
        "mixed": array(width, width),
        "wide": {"scale": array(width), "shift": array(width), "in": array(width, 4 * width)},
        "out": array(4 * width, width),
    }
    return {
        "tokens": array(vocab, width),
        "positions": array(sequence, width),
        "layers": [layer] * depth,
        "last": {"scale": array(width), "shift": array(width)},
    }


def loss(parameters: Parameters, tokens: Any, targets: Any, key: Any, *, heads: int, dropout: float) -> Any:
    """Mean cross entropy of the next token."""
    x = parameters["tokens"][tokens] + parameters["positions"]
    for layer in parameters["layers"]:
        key, first, second = jax.random.split(key, 3)
        x = x + _dropped(first, attention(layer, x, heads), dropout)
        wide = jax.nn.gelu(normalised(layer["wide"], x) @ layer["wide"]["in"])
        x = x + _dropped(second, wide @ layer["out"], dropout)
    logits = normalised(parameters["last"], x) @ parameters["tokens"].T
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)
    return -chosen.mean()


def attention(layer: Parameters, x: Any, heads: int) -> Any:
    """What every position takes from itself and those before it."""
    batch, sequence, width = x.shape
    split = (normalised(layer["attention"], x) @ layer["attention"]["in"]).reshape(batch, sequence, 3, heads, -1)
    queries, keys, values = split[:, :, 0], split[:, :, 1], split[:, :, 2]
    scores = jnp.einsum("bthd,bshd->bhts", queries, keys) / jnp.sqrt(width / heads)
    seen = jnp.tril(jnp.ones((sequence, sequence), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e9))
    return jnp.einsum("bhts,bshd->bthd", weights, values).reshape(x.shape) @ layer["mixed"]


def normalised(parameters: Parameters, x: Any) -> Any:
    """Every position with mean 0 and variance 1, scaled and shifted."""
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * parameters["scale"] + parameters["shift"]


def _dropped(key: Any, x: Any, rate: float) -> Any:
    if not rate:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0.0)
