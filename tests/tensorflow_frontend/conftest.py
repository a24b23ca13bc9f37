"""Tests with TensorFlow. ``make test-tensorflow`` runs them in an environment of their own; ``make test`` does not.

The folder is not called ``tensorflow``: tests/ is on Python's path, and would then stand in for the library.
"""

from keras_session import as_new as as_new
