"""Planted mistakes: ``python -m benchmarks.mutations`` says which of them the tests catch, and by which test."""
