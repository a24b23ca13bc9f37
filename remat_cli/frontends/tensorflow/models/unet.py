"""U-Net with batch normalisation."""

from __future__ import annotations

from typing import Any


def unet(resolution: int, width: int, depth: int, classes: int) -> Any:
    """The model: ``depth`` times halved and doubled again, two convolutions at each level.

    Args:
        resolution: Height and width of the images; a multiple of 2**depth.
        width: Channels of the first level; every level doubles them.
        depth: How often the image is halved.
        classes: Classes of a pixel.
    """
    import keras

    layers = keras.layers

    def twice(x: Any, channels: int) -> Any:
        for _ in range(2):
            x = layers.Conv2D(channels, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        return x

    inputs = keras.Input((resolution, resolution, 3))
    x, skips = inputs, []
    for level in range(depth):
        x = twice(x, width << level)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = twice(x, width << depth)
    for level in reversed(range(depth)):
        x = layers.Conv2DTranspose(width << level, 2, strides=2)(x)
        x = twice(layers.Concatenate()([skips[level], x]), width << level)
    return keras.Model(inputs, layers.Conv2D(classes, 1)(x))
