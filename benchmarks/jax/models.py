"""Steps to measure: a residual network, a U-Net and a recurrent network, besides the zoo's."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

LAYOUT = ("NHWC", "HWIO", "NHWC")


def shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def _conv(x: Any, w: Any, stride: int = 1) -> Any:
    return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=LAYOUT)


def _norm(x: Any, p: Any) -> Any:
    mean = x.mean((0, 1, 2))
    variance = jnp.square(x - mean).mean((0, 1, 2))
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p["scale"] + p["shift"]


def layer(kernel: int, before: int, after: int) -> dict[str, Any]:
    return {"w": shape(kernel, kernel, before, after), "scale": shape(after), "shift": shape(after)}


def _cross_entropy(logits: Any, labels: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1).mean()


def resnet50(batch: int = 32, resolution: int = 224) -> tuple[Any, tuple[Any, ...]]:
    """ResNet-50 with batch norm written out, as flax does."""
    depths, blocks, before = (3, 4, 6, 3), [], 64
    for stage, depth in enumerate(depths):
        width = 64 * 2**stage
        for number in range(depth):
            block = {"a": layer(1, before, width), "b": layer(3, width, width), "c": layer(1, width, 4 * width)}
            if number == 0:
                block["skip"] = layer(1, before, 4 * width)
            blocks.append(block)
            before = 4 * width
    strides = [2 if number == 0 and stage else 1 for stage, depth in enumerate(depths) for number in range(depth)]
    parameters = {"stem": layer(7, 3, 64), "blocks": blocks, "dense": shape(before, 1000)}

    def loss(parameters: Any, images: Any, labels: Any) -> Any:
        x = jax.nn.relu(_norm(_conv(images, parameters["stem"]["w"], 2), parameters["stem"]))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for block, stride in zip(parameters["blocks"], strides, strict=True):
            y = jax.nn.relu(_norm(_conv(x, block["a"]["w"]), block["a"]))
            y = jax.nn.relu(_norm(_conv(y, block["b"]["w"], stride), block["b"]))
            y = _norm(_conv(y, block["c"]["w"]), block["c"])
            skip = block.get("skip")
            x = jax.nn.relu(y + (x if skip is None else _norm(_conv(x, skip["w"], stride), skip)))
        return _cross_entropy(x.mean((1, 2)) @ parameters["dense"], labels)

    images, labels = shape(batch, resolution, resolution, 3), jax.ShapeDtypeStruct((batch,), jnp.int32)
    return loss, (parameters, images, labels)


def unet(batch: int = 4, resolution: int = 64, width: int = 16, depth: int = 3) -> tuple[Any, tuple[Any, ...]]:
    """A U-Net: images halved and doubled again, with what is on the same level joined."""
    down, up, before = [], [], 3
    for level in range(depth + 1):
        own = width * 2**level
        down.append([layer(3, before, own), layer(3, own, own)])
        before = own
    for level in reversed(range(depth)):
        own = width * 2**level
        up.append([layer(3, before + own, own), layer(3, own, own)])
        before = own
    parameters = {"down": down, "up": up, "out": shape(1, 1, before, 2)}

    def block(x: Any, layers: Any) -> Any:
        for layer in layers:
            x = jax.nn.relu(_norm(_conv(x, layer["w"]), layer))
        return x

    def loss(parameters: Any, images: Any, labels: Any) -> Any:
        x, kept = images, []
        for level, layers in enumerate(parameters["down"]):
            x = block(x, layers)
            if level < depth:
                kept.append(x)
                x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        for layers, other in zip(parameters["up"], reversed(kept), strict=True):
            x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
            x = block(jnp.concatenate([x, other], axis=-1), layers)
        return _cross_entropy(_conv(x, parameters["out"]), labels)

    labels = jax.ShapeDtypeStruct((batch, resolution, resolution), jnp.int32)
    return loss, (parameters, shape(batch, resolution, resolution, 3), labels)


def scanned(layers: int = 8, batch: int = 8, sequence: int = 64, width: int = 128) -> tuple[Any, tuple[Any, ...]]:
    """A transformer whose equal layers are one ``jax.lax.scan``, with their parameters in single arrays."""
    from remat_cli.frontends.jax import models

    shapes = models.transformer_shapes(1, width, sequence, 512)
    stacked = jax.tree_util.tree_map(lambda s: shape(layers, *s.shape), shapes.pop("layers")[0])

    def loss(parameters: Any, stacked: Any, tokens: Any) -> Any:
        def layer(x: Any, own: Any) -> tuple[Any, None]:
            x = x + models.attention(own, x, 4)
            wide = jax.nn.gelu(models.normalised(own["wide"], x) @ own["wide"]["in"])
            return x + wide @ own["out"], None

        x, _ = jax.lax.scan(layer, parameters["tokens"][tokens] + parameters["positions"], stacked)
        return _cross_entropy(models.normalised(parameters["last"], x) @ parameters["tokens"].T, tokens)

    return loss, (shapes, stacked, jax.ShapeDtypeStruct((batch, sequence), jnp.int32)), {"argnums": (0, 1)}


def zoo(name: str, **options: Any) -> tuple[Any, tuple[Any, ...]]:
    """A model of the zoo."""
    from remat_cli.frontends.jax.architectures import JAX_ARCHITECTURES

    return JAX_ARCHITECTURES.load(name)(**options).make()


SIMULATED = {
    "VGG16, b32": partial(zoo, "jax/vgg16", batch=32),
    "ResNet-50, b32": resnet50,
    "U-Net, b8, 256 x 256": partial(unet, 8, 256, 64, 4),
    "transformer, 12 layers, b8": partial(zoo, "jax/transformer", depth=12),
    "transformer in a scan, 8 layers": scanned,
}
"""Steps whose peaks are simulated: nothing of them runs."""
RUN = {
    "U-Net, b4, 64 x 64": (unet, "60%"),
    "transformer, 4 layers": (
        partial(zoo, "jax/transformer", depth=4, width=64, heads=4, sequence=32, vocab=128, batch=8),
        "60%",
    ),
    "transformer in a scan, 8 layers": (scanned, "60%"),
    "ResNet-50, b16, 128 x 128": (partial(resnet50, 16, 128), "60%"),
    "VGG16, b16, 64 x 64": (partial(zoo, "jax/vgg16", batch=16, resolution=64, classes=10), "85%"),
}
"""Steps that run by plan on a CPU, and their budgets. Parameters and gradients are most of VGG16."""
