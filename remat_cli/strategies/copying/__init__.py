"""Strategies that copy values to the host and back."""
