"""VGG: convolutions of three by three, halved images between them, two wide layers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels and number of convolutions of every block of VGG16."""
HIDDEN = 4096
_LAYOUT = ("NHWC", "HWIO", "NHWC")

Parameters = dict[str, Any]


def shapes(resolution: int, classes: int) -> Parameters:
    """Shapes of the parameters."""

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


def loss(parameters: Parameters, images: Any, labels: Any, key: Any, *, dropout: float) -> Any:
    """Mean cross entropy."""
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
