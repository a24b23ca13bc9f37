"""Tests with TensorFlow 2.15 and Keras 2. ``make test-keras2`` runs them in an environment of their own."""

from keras_session import as_new as as_new
