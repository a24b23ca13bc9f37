"""Strategies for graphs with collectives, which run beside computations."""
