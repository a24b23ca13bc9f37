"""``remat fits`` on a step of Keras: its gradients and the state of its optimizer."""

import remat_cli as remat

STEP = """
import keras
import tensorflow as tf


def build():
    model = keras.Sequential([keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(4)])
    inputs = tf.zeros((16, 8))
    model(inputs)
    return model, (inputs, tf.zeros((16, 4))), keras.losses.MeanSquaredError()
"""


def test_parameters_gradients_and_state_are_counted(tmp_path):
    (tmp_path / "step.py").write_text(STEP)
    answer = remat.fits(f"tf:{tmp_path}/step.py:build", "1GB", options=remat.SolveOptions(time_limit_s=2))
    parts = answer.fits.choices[0].parts
    assert parts["parameters"] == 4 * (8 * 32 + 32 + 32 * 4 + 4)
    assert parts["state of AdamW"] == 2 * parts["parameters"]
    assert parts["inputs"] >= 4 * 16 * (8 + 4)
