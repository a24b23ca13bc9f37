"""A transformer encoder that predicts tokens, as BERT is trained."""

from __future__ import annotations

from typing import Any


def bert(vocab: int, sequence: int, depth: int, width: int, heads: int, dropout: float) -> Any:
    """The model: embeddings of tokens and positions, ``depth`` blocks, and a product with the vocabulary.

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
