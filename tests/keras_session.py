"""Keras and TensorFlow as a new process has them, for the ``conftest.py`` of the folders that test with them."""

import os

os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "true"  # before TensorFlow is imported, so that its allocator counts
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import pytest


@pytest.fixture(autouse=True)
def as_new():
    """Seeds and names of layers as in a new process."""
    keras.utils.set_random_seed(7)
    yield
    keras.backend.clear_session()
    keras.mixed_precision.set_global_policy("float32")
