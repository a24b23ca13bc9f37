"""Tests with JAX, which has an environment of its own: ``make test-jax``. ``make test`` leaves the folder out."""
