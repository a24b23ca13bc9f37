"""Models of the zoo in plain JAX: a decoder as GPT-2, and VGG16. Each has shapes of its parameters and a loss."""

from typing import Any

import jax
import jax.numpy as jnp

Parameters = dict[str, Any]

BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels and number of convolutions of every block of VGG16."""
HIDDEN = 4096
_LAYOUT = ("NHWC", "HWIO", "NHWC")


def transformer_shapes(depth: int, width: int, sequence: int, vocab: int) -> Parameters:
    """Shapes of the parameters of a decoder: learned positions, normalisation before attention and the wide layer."""

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


def transformer_loss(parameters: Parameters, tokens: Any, targets: Any, key: Any, *, heads: int, dropout: float) -> Any:
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


def vgg_shapes(resolution: int, classes: int) -> Parameters:
    """Shapes of the parameters of VGG: convolutions of three by three, halved images between them, wide layers."""

    def layer(*shape: int) -> dict[str, jax.ShapeDtypeStruct]:
        bias = jax.ShapeDtypeStruct(shape[-1:], jnp.float32)
        return {"weights": jax.ShapeDtypeStruct(shape, jnp.float32), "bias": bias}

    before, convolutions = 3, []
    for channels, count in BLOCKS:
        for _ in range(count):
            convolutions.append(layer(3, 3, before, channels))
            before = channels
    side = resolution // 2 ** len(BLOCKS)
    dense = [layer(side * side * before, HIDDEN), layer(HIDDEN, HIDDEN), layer(HIDDEN, classes)]
    return {"convolutions": convolutions, "dense": dense}


def vgg_loss(parameters: Parameters, images: Any, labels: Any, key: Any, *, dropout: float) -> Any:
    """Mean cross entropy of the classes of images."""
    layers = iter(parameters["convolutions"])
    x = images
    for _, count in BLOCKS:
        for _ in range(count):
            layer = next(layers)
            x = jax.lax.conv_general_dilated(x, layer["weights"], (1, 1), "SAME", dimension_numbers=_LAYOUT)
            x = jax.nn.relu(x + layer["bias"])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = x.reshape(x.shape[0], -1)
    for number, layer in enumerate(parameters["dense"]):
        x = x @ layer["weights"] + layer["bias"]
        if number < len(parameters["dense"]) - 1:
            x = jax.nn.relu(x)
            if dropout:
                kept = jax.random.bernoulli(jax.random.fold_in(key, number), 1 - dropout, x.shape)
                x = jnp.where(kept, x / (1 - dropout), 0.0)
    return -jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], axis=-1).mean()
