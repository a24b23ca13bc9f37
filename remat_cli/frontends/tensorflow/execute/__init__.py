"""Executing: from a plan to a function of eager kernels."""
