"""Plans for keras.RematScope: the snippet trains the same in less memory, and no peak is promised."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest
import tensorflow as tf
from steps import graph_of

from remat_cli.api import SolveOptions, policy
from remat_cli.frontends.tensorflow.capture.layers import layer_path, plain_name, repeatable, without_root
from remat_cli.reports.policy import policy_text
from remat_cli.reports.style import Style

ROOT = Path(__file__).parents[2]
NETWORK = '''
import os, sys
os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "true"
import json, keras, numpy as np, tensorflow as tf

tf.config.threading.set_inter_op_parallelism_threads(1)  # or operations run beside each other


class Block(keras.layers.Layer):
    def __init__(self, width, **options):
        super().__init__(**options)
        self.norm = keras.layers.LayerNormalization(name=self.name + "_norm")
        self.up = keras.layers.Dense(4 * width, activation="gelu", name=self.name + "_up")
        self.down = keras.layers.Dense(width, name=self.name + "_down")

    def build(self, shape):
        self.norm.build(shape)
        self.up.build(shape)
        self.down.build(self.up.compute_output_shape(shape))

    def call(self, x):
        return x + self.down(self.up(self.norm(x)))


def network():
    keras.utils.set_random_seed(0)
    first = x = keras.Input((32,))
    x = keras.layers.Dense(64, name="first")(x)
    for number in range(6):
        x = Block(64, name=f"block{number}")(x)
    return keras.Model(first, keras.layers.Dense(1, name="last")(x))


loss = keras.losses.MeanSquaredError()
x, y = tf.constant(np.random.RandomState(0).randn(512, 32), tf.float32), tf.zeros((512, 1))


def build():
    return network(), (x, y), loss


def measured(model):
    """The loss and the sums of the gradients of a step, and its peak without what was there before."""

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            found = tf.reduce_mean(loss(y, model(x, training=True)))
        return found, tape.gradient(found, [v.value for v in model.trainable_variables])

    step()
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    tf.config.experimental.reset_memory_stats("CPU:0")
    found, gradients = step()
    peak = tf.config.experimental.get_memory_info("CPU:0")["peak"] - before
    return [float(tf.reduce_sum(tf.abs(g))) for g in (found, *gradients)], peak


def built(snippet):
    """The network, built where the snippet says."""
    names = {}
    exec(snippet, names)
    return names["recomputing"](network)


if __name__ == "__main__":
    print(json.dumps([measured(built(snippet) if snippet else network()) for snippet in json.loads(sys.argv[1])]))
'''


def test_layers_cost_in_keras_what_the_plan_says(tmp_path):
    script = tmp_path / "network.py"
    script.write_text(NETWORK, encoding="utf-8")
    names: dict[str, object] = {}
    exec(NETWORK.replace("tf.config.threading", "#"), names)  # threads are set in the process that measures
    graph = graph_of(names["build"])
    found = [policy(graph, percent, "keras-layers", SolveOptions(time_limit_s=10)) for percent in ("80%", "60%")]
    assert all("block" in "".join(one.settings) for one in found)
    command = [sys.executable, str(script), json.dumps(["", *(one.snippet for one in found)])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    (plain, before), *limited = json.loads(done.stdout.splitlines()[-1])
    for (numbers, peak), one in zip(limited, found, strict=True):
        assert numbers == pytest.approx(plain, rel=1e-4)  # tf.function rounds differently
        assert peak < before
        told = one.document()
        assert told["peak_memory"] is None
        assert "TensorFlow orders operations anew" in told["note"]
        assert "\npeak          not known of" in policy_text(told, Style(200, color=False, unicode=True))


def test_layers_that_a_second_run_would_change_are_no_choice():
    """RematScope draws another mask for dropout, and moves the averages of a batch normalisation twice."""

    def build():
        layers = [keras.Input((8,)), keras.layers.LayerNormalization(name="norm")]
        layers += [keras.layers.BatchNormalization(name="batch"), keras.layers.Dropout(0.5, name="drop")]
        layers += [keras.layers.ReLU(name="relu"), keras.layers.Dense(4, name="dense")]
        return keras.Sequential(layers), (tf.zeros((16, 8)), tf.zeros((16,), tf.int32)), loss

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    listed = graph_of(build).metadata["modules"]
    assert {"norm", "relu"} <= set(listed)
    assert {"batch", "drop", "dense"}.isdisjoint(listed)  # a dense layer is told whether it trains, by name


def test_names_of_layers_are_read_from_marks():
    name = "gradient_tape/remat.layer.model./model_1/remat.whole.block.a._3/block_1/mul_1"
    assert layer_path(name) == ("model", "block.a")
    assert plain_name(name) == "gradient_tape/model_1/block_1/mul_1"
    paths = [("m", "a"), ("m", "b", "c"), (), ("m", "d")]
    assert without_root(paths) == [("a",), ("b", "c"), (), ("d",)]
    assert without_root([("a",), ("b",)]) == [("a",), ("b",)]
    assert repeatable([("a",), ("b", "c"), ("b", "d"), ("e", "a")], [("b", "d")], {"e"}) == ["b.c"]
