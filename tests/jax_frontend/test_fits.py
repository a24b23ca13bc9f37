"""``remat fits`` on a step of JAX: its gradients and the state of its optimizer."""

import remat_cli as remat

STEP = """
import jax.numpy as jnp


def build():
    def loss(weights, inputs, wanted):
        return jnp.mean((jnp.tanh(inputs @ weights["a"]) @ weights["b"] - wanted) ** 2)

    return loss, ({"a": jnp.zeros((8, 32)), "b": jnp.zeros((32, 4))}, jnp.zeros((16, 8)), jnp.zeros((16, 4)))
"""


def test_parameters_gradients_and_state_are_counted(tmp_path):
    (tmp_path / "step.py").write_text(STEP)
    answer = remat.fits(f"jax:{tmp_path}/step.py:build", "1GB", options=remat.SolveOptions(time_limit_s=2))
    parts = answer.fits.choices[0].parts
    assert parts["parameters"] == 4 * (8 * 32 + 32 * 4)
    assert parts["state of AdamW"] == 2 * parts["parameters"]
    assert parts["inputs"] == 4 * 16 * (8 + 4)
