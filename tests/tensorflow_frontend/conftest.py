"""Tests with TensorFlow. ``make test-tensorflow`` runs them in an environment of their own; ``make test`` does not.

The folder is not called ``tensorflow``: tests/ is on Python's path, and would then stand in for the library.
"""

import os

os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "true"  # before TensorFlow is imported, so that its allocator counts
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import pytest


@pytest.fixture(autouse=True)
def _as_new():
    """Seeds and names of layers as in a new process."""
    keras.utils.set_random_seed(7)
    yield
    keras.backend.clear_session()
    keras.mixed_precision.set_global_policy("float32")
