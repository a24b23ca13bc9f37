"""Small models and steps, and plans for them."""

import keras
import tensorflow as tf

import remat_cli
from remat_cli.frontends.tensorflow.framework import TensorFlow
from remat_cli.plan.model import Compute

L = keras.layers
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def images(batch=16, size=12, classes=5):
    return tf.random.normal((batch, size, size, 3)), tf.random.uniform((batch,), 0, classes, tf.int32)


def convolutional(dropout=0.2):
    """Convolutions with batch normalisation and dropout, which Keras 3 writes as many small operations."""
    layers = [keras.Input((12, 12, 3))]
    for channels in (8, 8, 16):
        layers += [L.Conv2D(channels, 3, padding="same"), L.BatchNormalization(), L.ReLU(), L.Dropout(dropout)]
    return keras.Sequential([*layers, L.GlobalAveragePooling2D(), L.Dense(5)])


def cnn():
    return convolutional(), images(), LOSS


def compiled_cnn():
    model = convolutional()
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss=LOSS, metrics=["accuracy"])
    return model, images()


def transformer():
    tokens = keras.Input((16,), dtype="int32")
    x = L.Embedding(40, 32)(tokens)
    for _ in range(2):
        normal = L.LayerNormalization()(x)
        x = x + L.Dropout(0.1)(L.MultiHeadAttention(2, 16, dropout=0.1)(normal, normal))
        x = x + L.Dense(32)(L.Dense(64, activation="gelu")(L.LayerNormalization()(x)))
    batch = tf.random.uniform((4, 16), 0, 40, tf.int32)
    return keras.Model(tokens, L.Dense(40)(x)), (batch, batch), LOSS


def recurrent():
    model = keras.Sequential([keras.Input((6,)), L.Embedding(20, 8), L.LSTM(8, return_sequences=True), L.LSTM(8)])
    return model, (tf.random.uniform((3, 6), 0, 20, tf.int32), tf.random.uniform((3,), 0, 8, tf.int32)), LOSS


def graph_of(build, cost="flops"):
    name = build.__name__
    return TensorFlow().capture(build, name, f"tf:steps.py:{name}", device="cpu", cost=cost, tell=print)[0]


def plan_of(graph, budget="70%", seconds=5):
    return remat_cli.solve(graph, budget, remat_cli.SolveOptions(time_limit_s=seconds)).plan


def computed(plan):
    """How often the plan runs each operation of TensorFlow."""
    counts: dict[str, int] = {}
    for statement in plan.statements:
        if isinstance(statement, Compute):
            for call in plan.graph.nodes[statement.node].payload["ops"]:
                counts[call["op"]] = counts.get(call["op"], 0) + 1
    return counts
