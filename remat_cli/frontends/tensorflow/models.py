"""Models of the zoo, written with Keras: an encoder that predicts tokens as BERT does, and a U-Net."""

from __future__ import annotations

from typing import Any


def bert(vocab: int, sequence: int, depth: int, width: int, heads: int, dropout: float) -> Any:
    """An encoder: embeddings of tokens and positions, ``depth`` blocks, and a product with the vocabulary.

    Args:
        vocab: Size of the vocabulary.
        sequence: Positions of a sequence.
        depth: Number of blocks.
        width: Features of a position; a multiple of ``heads``.
        heads: Attention heads of a block.
        dropout: Probability of dropping a feature.
    """
    import keras
    import tensorflow as tf

    layers = keras.layers

    class Positions(keras.layers.Layer):  # type: ignore[misc]  # Keras is Any to the type checker
        """Adds a learned vector to each position."""

        def build(self, shape: Any) -> None:
            self.table = self.add_weight(name="table", shape=(sequence, shape[-1]), initializer="uniform")

        def call(self, x: Any) -> Any:
            return x + tf.cast(self.table, x.dtype)

    tokens = keras.Input((sequence,), dtype="int32")
    x = layers.LayerNormalization()(Positions()(layers.Embedding(vocab, width)(tokens)))
    x = layers.Dropout(dropout)(x)
    for _ in range(depth):
        attended = layers.MultiHeadAttention(heads, width // heads, dropout=dropout)(x, x)
        x = layers.LayerNormalization()(x + layers.Dropout(dropout)(attended))
        hidden = layers.Dense(4 * width, activation="gelu")(x)
        x = layers.LayerNormalization()(x + layers.Dropout(dropout)(layers.Dense(width)(hidden)))
    return keras.Model(tokens, layers.Dense(vocab)(x))


def unet(resolution: int, width: int, depth: int, classes: int) -> Any:
    """A U-Net with batch normalisation: ``depth`` times halved and doubled again, two convolutions at each level.

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
